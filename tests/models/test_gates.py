"""Heads in full, forward only and skipped, against transformers' own models with masks, written apart from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fleetune.contracts.run_config import Lora
from fleetune.errors import Refused
from fleetune.models.attention_heads import attention_heads, find_blocks
from fleetune.models.gates import gate_segment
from fleetune.models.head_scores import ScoreAccumulator
from fleetune.models.nf4 import PACKED, unpack
from fleetune.models.randomness import RandomContext
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from tests.support.models.head_families import FAMILIES, FOUR, HEADS, LORA
from tests.support.models.instances import Recorded, batch, recorded
from tests.support.models.plain_nf4 import nearest
from tests.support.training.model_families import LANGUAGE, TEXT, Family

SAMPLES = 3
ROBERTA = Family("roberta", TEXT, {"model_type": "roberta", "vocab_size": 300, "max_position_embeddings": 66, **FOUR})
ENCODER = ("hidden_dropout_prob", "attention_probs_dropout_prob")
DROPOUTS = {
    "bert": ENCODER, "roberta": ENCODER, "vit": ENCODER, "gpt2": ("attn_pdrop", "resid_pdrop", "embd_pdrop"),
    "distilbert": ("dropout", "attention_dropout", "seq_classif_dropout"),
}  # fmt: skip
"""Settings of dropout by family; llama and qwen3 have none by default."""
BY_NAME = {family.name: family for family in (*FAMILIES, ROBERTA)}
TABLES = {
    4: (("1213", "2213", "3213", "1213"), ("2131", "1132", "3132", "1133")),
    2: (("1213", "3213"), ("2131", "1132")),
}
"""Heads -> block -> operations of each head. The first micro-batch is mixed in both blocks. In the first block, all
heads are forward only in the second micro-batch, all are full in the third, and all are skipped in the fourth."""
NOISE = 1e-11
TOLERANCE = 1e-12
"""Noise of float64: sums over heads in another order (see the test of it)."""


def quiet(name: str) -> Family:
    """Return a family without dropout."""
    family = BY_NAME[name]
    return replace(family, config={**family.config, **dict.fromkeys(DROPOUTS.get(name, ()), 0.0)})


def gates_of(ready: Recorded) -> dict[str, str]:
    """Return subnet -> operations, as in TABLES."""
    config = configuration(ready.request, ready.labels)
    blocks = find_blocks(ready.graph, skeleton(config, ready.request), config)
    return {
        head.name: TABLES[head.block.heads][blocks.index(head.block)][head.number] for head in attention_heads(blocks)
    }


def gated(ready: Recorded, gates: dict[str, str]) -> SegmentRunner:
    """Return the whole model as a segment with gates."""
    config = configuration(ready.request, ready.labels)
    segment = ready.segment(ready.units)
    gate_segment(segment, gates, skeleton(config, ready.request), config)
    return segment


def inputs(ready: Recorded, given: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the values that go into the whole model."""
    return {
        ready.graph.inputs[name]: value.double() if value.is_floating_point() else value
        for name, value in given.items()
        if name in ready.graph.inputs
    }


def run(segment: SegmentRunner, family: Family, micro_batch: int, ready: Recorded, round: int = 0) -> torch.Tensor:
    """Return the logits of a micro-batch."""
    draws = RandomContext(5, round, micro_batch, 0, SAMPLES)
    return segment.run(inputs(ready, batch(family, SAMPLES)), SAMPLES, draws)[ready.graph.output]


def adds_up(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Return the layers that join heads and the layers down, by the order of blocks; they are known by name here."""
    ends = (
        ("attention.output.dense", "output.dense"), ("attention.out_lin", "ffn.lin2"), ("attention.o_proj", "mlp.fc2"),
        ("attn.c_proj", "mlp.c_proj"), ("self_attn.o_proj", "mlp.down_proj"),
    )  # fmt: skip
    named = dict(model.named_modules())
    for join, down in ends:
        joins = [name for name in named if name.endswith(f".{join}")]
        if joins:
            return [(named[name], named[name.removesuffix(join) + down]) for name in joins]
    raise AssertionError(f"{type(model).__name__} has other names")


def mask_heads(model: nn.Module, tables: Any, micro_batch: int) -> None:
    """Multiply what joining layers and layers down read by masks; add what forward-only heads make, detached."""
    for layers, rows in zip(adds_up(model), tables, strict=True):
        for layer in layers:
            _mask(layer, [row[micro_batch] for row in rows])


def _mask(layer: Any, operations: list[str]) -> None:
    own = layer.forward

    def forward(given: torch.Tensor) -> torch.Tensor:
        parts = torch.tensor_split(torch.arange(given.shape[-1]), len(operations))
        full, once = torch.zeros_like(given[0, 0]), torch.zeros_like(given[0, 0])
        for part, operation in zip(parts, operations, strict=True):
            full[part], once[part] = float(operation == "1"), float(operation == "2")
        with torch.no_grad():
            constant = own(given * once) - own(torch.zeros_like(given))
        made: torch.Tensor = own(given * full) + constant
        return made

    layer.forward = forward


def control(ready: Recorded, family: Family, micro_batch: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return logits and gradients of transformers' own model with masks, in plain PyTorch."""
    model = ready.whole().train()
    mask_heads(model, TABLES[HEADS.get(family.name, 4)], micro_batch)
    given = {name: v.double() if v.is_floating_point() else v for name, v in batch(family, SAMPLES).items()}
    logits = model(**given).logits
    logits.square().sum().backward()
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the relative L2 distance; 0 if both are noise, as gradients of key biases are, which are truly zero."""
    one, other = one.detach(), other.detach()
    if max(float(one.norm()), float(other.norm())) < NOISE:
        return 0.0
    return float((one - other).norm() / other.norm().clamp_min(NOISE))


CASES = [
    *((name, lora, "block") for name in BY_NAME for lora in (None, LORA)),
    *((name, lora, "layer") for name in ("vit", "bert", "gpt2", "llama, shared keys") for lora in (None, LORA)),
]


@pytest.mark.parametrize(
    ("name", "lora", "granularity"), CASES, ids=[f"{n}-{'adapters' if a else 'all'}-{g}" for n, a, g in CASES]
)
def test_gates_equal_masked_heads_with_detached_contributions(
    name: str, lora: Lora | None, granularity: str, tmp_path: Path
) -> None:
    """Logits and all gradients are those of the masked model; heads that are not full have gradients of exactly zero,
    also if all heads of a block are skipped or forward only, and however fine the units are.
    """
    family = quiet(name)
    ready = recorded(family, tmp_path, granularity, lora=lora, precision="float64")
    config = configuration(ready.request, ready.labels)
    heads = attention_heads(find_blocks(ready.graph, skeleton(config, ready.request), config))
    gates = gates_of(ready)
    segment = gated(ready, gates)
    segment.train()
    for micro_batch in range(4):
        for parameter in segment.parameters.values():
            parameter.grad = None
        logits = run(segment, family, micro_batch, ready)
        logits.square().sum().backward()
        expected, gradients = control(ready, family, micro_batch)
        assert distance(logits.detach(), expected) < TOLERANCE
        for parameter_name, gradient in gradients.items():
            mine = segment.parameters[parameter_name].grad
            mine = torch.zeros_like(gradient) if mine is None else mine
            assert distance(mine, gradient) < TOLERANCE, (micro_batch, parameter_name)
        extra = {n for n, p in segment.parameters.items() if p.grad is not None} - set(gradients)
        assert all(not segment.parameters[n].grad.any() for n in extra)  # type: ignore[union-attr]
        for head in heads:
            for piece in head.slices:
                mine = segment.parameters[piece.parameter].grad
                if gates[head.name][micro_batch] != "1" and mine is not None:
                    assert not piece.of(mine).any(), (head.name, piece)


@pytest.mark.parametrize(("granularity", "mixed"), [("block", None), ("layer", None), ("block", "bf16")])
@pytest.mark.parametrize("name", ["bert", "llama, shared keys"])
def test_heads_are_cut_out_of_weights_in_four_bits(
    name: str, granularity: str, mixed: str | None, tmp_path: Path
) -> None:
    """Logits, gradients of adapters and scores are those of the same model with plain weights that were rounded so,
    bit for bit: whatever a product is made of, it reads the same numbers."""
    family = quiet(name)
    packed = recorded(family, tmp_path, granularity, lora=LORA, mixed_precision=mixed, quantization="nf4")
    plain = recorded(family, tmp_path, granularity, lora=LORA, mixed_precision=mixed)
    gates = gates_of(plain)
    assert gates_of(packed) == gates
    ours, same = gated(packed, gates), gated(plain, gates)
    for each in (ours, same):
        generator = torch.Generator().manual_seed(3)
        for parameter_name, parameter in each.parameters.items():
            if "lora_B" in parameter_name:
                parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 50)
        each.train()
    in_four_bits = [n for n, p in ours.parameters.items() if p.dtype == PACKED]
    assert len(in_four_bits) > 8
    for parameter_name in in_four_bits:
        weight = same.parameters[parameter_name]
        weight.data.copy_(unpack(ours.parameters[parameter_name], weight.shape, weight.dtype))
    if mixed is None:
        whole = dict(plain.whole().named_parameters())
        assert all(torch.equal(same.parameters[n], nearest(whole[n].detach())) for n in in_four_bits)
    for micro_batch in range(4):
        made = []
        for held, each in ((packed, ours), (plain, same)):
            logits = run(each, family, micro_batch, held)
            logits.square().sum().backward()
            made.append((logits, {n: p.grad for n, p in each.parameters.items() if p.grad is not None}))
        (logits, gradients), (expected, others) = made
        assert torch.equal(logits, expected) and gradients.keys() == others.keys()
        assert all(torch.equal(gradients[n], others[n]) for n in others)
    config = configuration(packed.request, packed.labels)
    heads = attention_heads(find_blocks(packed.graph, skeleton(config, packed.request), config))
    scored = [ScoreAccumulator(heads, each.parameters).scores() for each in (ours, same)]
    assert mixed is not None or scored[0] == scored[1], "scores are of float32, plain weights here of bfloat16"
    pairs = zip(scored[0], scored[1], strict=True)
    assert all(one.weight_magnitude == pytest.approx(other.weight_magnitude, rel=1e-3) for one, other in pairs)


def test_the_tolerance_is_that_of_another_order_of_additions(tmp_path: Path) -> None:
    """Gradients of the masked model itself, with its samples in reverse order, differ by more than a 10,000th of the
    tolerance and by less than the tolerance: it is neither loose nor tight by chance.
    """
    family = quiet("vit")
    ready = recorded(family, tmp_path, precision="float64")
    found = []
    for order in (1, -1):
        model = ready.whole().train()
        mask_heads(model, TABLES[4], 0)
        pixels = batch(family, SAMPLES)["pixel_values"].double()
        model(pixel_values=pixels.flip(0) if order < 0 else pixels).logits.square().sum().backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    largest = max(distance(found[1][n], found[0][n]) for n in found[0] if float(found[0][n].norm()) > 1e-6)
    assert TOLERANCE / 1e4 < largest < TOLERANCE


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, bool], Recorded]:
    """Return families with dropout on attention, sums and adapters, recorded when asked for."""

    def record(name: str, granularity: str, adapters: bool) -> Recorded:
        config = {k: v for k, v in BY_NAME[name].config.items()}
        config |= {"attention_dropout": 0.2} if name.startswith("llama") else {}
        lora = replace(LORA, dropout=0.3) if adapters else None
        folder = tmp_path_factory.mktemp("noisy")
        return recorded(replace(BY_NAME[name], config=config), folder, granularity, lora=lora, precision="float64")

    return record


NOISY = (
    ("bert", "block", True), ("gpt2", "block", False), ("llama, shared keys", "block", True), ("bert", "layer", True),
)  # fmt: skip


@pytest.mark.parametrize(("name", "granularity", "adapters"), NOISY)
def test_dropout_does_not_depend_on_how_samples_are_dealt(
    name: str, granularity: str, adapters: bool, noisy: Callable[[str, str, bool], Recorded]
) -> None:
    """Two devices that share a micro-batch have the rows of one that holds all of it; a second run is the same bit for
    bit, and the next round has other masks.
    """
    ready, family = noisy(name, granularity, adapters), BY_NAME[name]
    segment = gated(ready, gates_of(ready))
    segment.train()
    given = inputs(ready, batch(family, SAMPLES))
    for micro_batch in (0, 1, 3):
        whole = run(segment, family, micro_batch, ready)
        assert torch.equal(run(segment, family, micro_batch, ready), whole)
        assert not torch.equal(run(segment, family, micro_batch, ready, round=1), whole)
        parts = [
            segment.run(
                {n: v[first:end] for n, v in given.items()},
                end - first,
                RandomContext(5, 0, micro_batch, first, SAMPLES),
            )[ready.graph.output]
            for first, end in ((0, 1), (1, SAMPLES))
        ]
        assert distance(torch.cat(parts), whole) < TOLERANCE


def test_a_micro_batch_in_full_is_run_as_ever_and_so_is_one_without_draws(
    noisy: Callable[[str, str, bool], Recorded],
) -> None:
    """Where all heads are full, logits and gradients are those of a segment without gates, bit for bit, dropout
    included; evaluation uses all heads.
    """
    ready = noisy("bert", "block", True)
    plain, segment = ready.segment(ready.units), gated(ready, {name: "12" for name in gates_of(ready)})
    found = []
    for one in (plain, segment):
        one.train()
        logits = run(one, BY_NAME["bert"], 0, ready)
        logits.square().sum().backward()
        found.append((logits, {n: p.grad for n, p in one.parameters.items() if p.grad is not None}))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    assert all(torch.equal(gradient, found[1][1][name]) for name, gradient in found[0][1].items())
    given = inputs(ready, batch(BY_NAME["bert"], SAMPLES))
    for one in (plain, segment):
        one.train(False)
    assert torch.equal(*(one.run(given, SAMPLES)[ready.graph.output] for one in (plain, segment)))


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama, shared keys"])
def test_a_sample_does_not_depend_on_the_others(name: str, tmp_path: Path) -> None:
    """A sample alone has the logits that it has among others, in a model without dropout."""
    family = quiet(name)
    ready = recorded(family, tmp_path, precision="float64")
    segment = gated(ready, gates_of(ready))
    segment.train()
    given = inputs(ready, batch(family, SAMPLES))
    for micro_batch in range(4):
        whole = run(segment, family, micro_batch, ready)
        alone = segment.run({n: v[1:2] for n, v in given.items()}, 1, RandomContext(5, 0, micro_batch, 1, SAMPLES))[
            ready.graph.output
        ]
        assert distance(alone, whole[1:2]) < TOLERANCE


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
def test_products_are_as_narrow_as_the_heads_that_run(lora: Lora | None, tmp_path: Path) -> None:
    """A full head costs its share of the block's floating-point operations, a forward-only head the share of a forward,
    a skipped head none: masks that multiply by zero would cost the whole block.
    """
    family = quiet("bert")  # 70 hidden units are dealt as 18, 18, 17 and 17, so shares are exact within a percent
    ready = recorded(family, tmp_path, lora=lora)
    names = sorted(gates_of(ready))

    def operations(digits: str) -> list[int]:
        gates = {name: digits[index % 4] for index, name in enumerate(names)}
        segment = gated(ready, gates)
        segment.train()
        counts = []
        with FlopCounterMode(display=False) as counter:
            logits = run(segment, family, 0, ready)
            counts.append(counter.get_total_flops())
            logits.sum().backward()
        return [counts[0], counter.get_total_flops() - counts[0]]

    (whole, whole_back), (rest, rest_back), mixed = operations("1111"), operations("3333"), operations("1123")
    near = (
        0.2 if lora else 0.02
    )  # each group multiplies by A, which is shared by all heads and large in this small model
    assert mixed[0] - rest == pytest.approx(0.75 * (whole - rest), rel=near)
    assert mixed[1] - rest_back == pytest.approx(0.5 * (whole_back - rest_back), rel=near)


def test_a_gate_of_a_head_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """A plan for another model is not trained by chance."""
    ready = recorded(quiet("vit"), tmp_path)
    with pytest.raises(Refused, match=r"gate of vit.layers.7#0: the model has no such head; it has vit\S*#0 to"):
        gated(ready, {"vit.layers.7#0": "12"})


def test_a_block_that_divides_values_by_a_number_it_holds_is_refused(tmp_path: Path) -> None:
    """Bug: GPT-1 writes down how many heads it has, and made four narrow ones, across heads, of the values of two."""
    family = Family("openai-gpt", LANGUAGE, {
        "model_type": "openai-gpt", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 300,
    })  # fmt: skip
    ready = recorded(family, tmp_path, precision="float64")
    blocks = find_blocks(ready.graph, skeleton(configuration(ready.request, ready.labels), ready.request),
                         configuration(ready.request, ready.labels))  # fmt: skip
    gates = {head.name: "1322"[head.number] for head in attention_heads(blocks)}
    with pytest.raises(Refused, match="cannot run one by one"):
        gated(ready, gates)


def test_scores_of_half_precision_are_those_of_the_loss(tmp_path: Path) -> None:
    """Bug: gradients of fp16 were scored without the scale that training gives to the loss, and most were 0."""
    ready = recorded(quiet("bert"), tmp_path)
    config = configuration(ready.request, ready.labels)
    heads = attention_heads(find_blocks(ready.graph, skeleton(config, ready.request), config))
    segment = ready.segment(ready.units)
    read = [ScoreAccumulator(heads, segment.parameters) for _ in range(3)]
    for accumulator, scale, size in zip(read, (1.0, 2.0**16, 2.0**16), (1.0, 1.0, 2.0**112), strict=True):
        given = sum((p * p).sum() for p in segment.parameters.values() if p.requires_grad)
        accumulator.add_loss(0, given * size, scale)
    plain, scaled, large = (accumulator.scores() for accumulator in read)
    assert plain == scaled, "a scale is a power of two, which rounds nothing"
    assert all(0 < each.gradient_magnitude < float("inf") for each in large), "halved until nothing overflows"


def test_weights_that_are_loaded_later_are_those_that_run(tmp_path: Path) -> None:
    """Gates may be set before weights are there; a later change of weights changes the next run."""
    family = quiet("gpt2")
    ready = recorded(family, tmp_path, precision="float64")
    segment = gated(ready, gates_of(ready))
    segment.train()
    before = run(segment, family, 0, ready)
    segment.put({name: p.detach() * 1.01 for name, p in segment.parameters.items()})
    assert distance(run(segment, family, 0, ready), before) > 1e-3
