"""The weights that belong to each attention head."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetune.contracts.run_config import Lora, ModelRequest
from fleetune.errors import Refused
from fleetune.models.attention_heads import (
    AttentionHead,
    ParameterSlice,
    TransformerBlock,
    attention_heads,
    find_blocks,
    split_evenly,
)
from fleetune.models.recorder import record_model
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import fold_into_units, leaf_modules
from tests.support.models.head_families import FAMILIES, FOUR, HEADS, LORA
from tests.support.models.instances import Recorded, batch, recorded
from tests.support.training.model_families import BY_NAME, IMAGE, LANGUAGE, TEXT, Family

by_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture(scope="module")
def by_blocks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Recorded]:
    """Families, each recorded once by blocks."""

    @functools.cache
    def named(name: str) -> Recorded:
        return recorded(next(f for f in FAMILIES if f.name == name), tmp_path_factory.mktemp("recorded"))

    return lambda family: named(family.name)


def blocks_of(ready: Recorded) -> tuple[TransformerBlock, ...]:
    """Return the blocks of a recorded model."""
    config = configuration(ready.request, ready.labels)
    return find_blocks(ready.graph, skeleton(config, ready.request), config)


def covered(found: tuple[AttentionHead, ...], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the number of slices that cover each weight."""
    counts = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for piece in (piece for head in found for piece in head.slices):
        piece.of(counts[piece.parameter]).add_(1)
    return counts


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
@by_family
def test_heads_divide_the_weights_of_their_block(
    family: Family, lora: Lora | None, tmp_path: Path, by_blocks: Callable[[Family], Recorded]
) -> None:
    """Every weight of a dense layer belongs to one head; so do entries of biases before the sum over heads, rows of B
    and columns of A. Nothing else belongs to any.
    """
    ready = recorded(family, tmp_path, lora=lora) if lora else by_blocks(family)
    found = blocks_of(ready)
    assert len(found) == 2 and {block.heads for block in found} == {HEADS.get(family.name, 4)}
    inner = {
        band.layer.name for block in found for half in (block.attention, block.feed_forward) for band in half.inner
    }
    outer = {half.outer.name for block in found for half in (block.attention, block.feed_forward)}
    seen = set()
    for name, count in covered(attention_heads(found), ready.whole()).items():
        layer, _, own = name.removesuffix(".default.weight").rpartition(".")
        layer = layer.removesuffix(".base_layer")
        mine = (layer in inner and own in ("weight", "bias", "lora_B")) or (
            layer in outer and own in ("weight", "lora_A")
        )
        assert torch.all(count == int(mine)), name
        seen |= {layer} if mine else set()
    assert seen == inner | outer


@by_family
def test_a_head_that_is_not_read_is_not_trained_and_nothing_else_changes(
    family: Family, by_blocks: Callable[[Family], Recorded]
) -> None:
    """If the columns that read a head are zero, its weights have no gradient and do not change the output; all other
    weights have their gradients."""
    ready = by_blocks(family)
    found = attention_heads(blocks_of(ready))
    for chosen in (found[0], found[-1]):
        model = ready.whole()
        named = dict(model.named_parameters())
        columns = {*_outer(chosen)}
        with torch.no_grad():
            for piece in columns:
                piece.of(named[piece.parameter]).zero_()
        before = model(**batch(family, 3)).logits
        before.square().sum().backward()
        for head in found:
            for piece in set(head.slices) - {*_outer(head)}:
                gradient = named[piece.parameter].grad
                assert gradient is not None
                assert bool(torch.any(piece.of(gradient) != 0)) == (head is not chosen), (head.name, piece)
        with torch.no_grad():
            for piece in set(chosen.slices) - columns:
                piece.of(named[piece.parameter]).fill_(0.7)
        assert torch.equal(model(**batch(family, 3)).logits, before)


def _outer(head: AttentionHead) -> list[ParameterSlice]:
    """Return a head's columns in the layer that joins heads and in the layer down."""
    layers = (head.block.attention.outer, head.block.feed_forward.outer)
    return [piece for piece in head.slices if any(piece.parameter in dict(layer.by_input) for layer in layers)]


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], FAMILIES[5]], ids=lambda family: family.name)
def test_the_blocks_are_the_same_however_fine_the_units_are(
    family: Family, tmp_path: Path, by_blocks: Callable[[Family], Recorded]
) -> None:
    """Each block has the members of its module list, in order."""
    coarse, fine = blocks_of(by_blocks(family)), blocks_of(recorded(family, tmp_path, "layer"))
    assert coarse == fine
    assert [block.name.rpartition(".")[2] for block in coarse] == ["0", "1"]


def test_what_is_left_over_is_dealt_evenly() -> None:
    """If units do not divide evenly, the first heads have one more."""
    assert split_evenly(70, 4) == ((0, 18), (18, 36), (36, 53), (53, 70))
    assert split_evenly(64, 2) == ((0, 32), (32, 64))


def refusal(config: dict[str, Any], task: str, folder: Path) -> str:
    """Return the message that refuses a model without heads."""
    with pytest.raises(Refused) as refused:
        blocks_of(recorded(Family("other", task, config), folder))
    assert "supported are blocks that run queries, keys and values" in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "gpt_neox", **FOUR}, "gpt_neox.layers.0 runs attention.query_key_value 32x96, attention.dense"),
        ({"model_type": "phi3", "pad_token_id": 0, **FOUR}, "model.layers.0 runs self_attn.qkv_proj 32x96"),
        (
            {"model_type": "albert", "embedding_size": 16, **FOUR},
            "albert.encoder.albert_layer_groups.0 runs several times in one",
        ),
    ],
    ids=["interleaved", "fused", "shared"],
)
def test_blocks_whose_heads_are_somewhere_else_are_refused(config: dict[str, Any], why: str, tmp_path: Path) -> None:
    """The refusal gives names and shapes, since a guess would score the wrong weights."""
    task = TEXT if config["model_type"] == "albert" else LANGUAGE
    assert f"profile.scores: {why}" in refusal({"vocab_size": 300, **config}, task, tmp_path)


@pytest.mark.parametrize("granularity", ["block", "layer"])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("olmo2", "model.layers.0.self_attn.q_norm"),
        ("olmo3", "model.layers.0.self_attn.q_norm"),
        ("diffllama", "model.layers.0.self_attn"),
    ],
)
def test_heads_that_are_read_together_are_refused(kind: str, what: str, granularity: str, tmp_path: Path) -> None:
    """Bug: where units are layers, norms over all heads got zeros for those that gates left out, and in DiffLlama gates
    were on the weights of other heads, so that another model was trained than the one that is evaluated."""
    family = Family(kind, LANGUAGE, {"model_type": kind, "vocab_size": 300, "pad_token_id": 0, **FOUR})
    with pytest.raises(Refused, match=f"{what} reads several heads at once"):
        blocks_of(recorded(family, tmp_path, granularity))


def test_a_convolutional_network_has_no_heads(tmp_path: Path) -> None:
    """The refusal names the family."""
    assert "ResNetConfig has no blocks with dense layers" in refusal(BY_NAME["resnet"].config, IMAGE, tmp_path)


def test_a_feed_forward_layer_smaller_than_the_number_of_heads_is_refused(tmp_path: Path) -> None:
    """A feed-forward layer with fewer units than heads is refused, because some heads would have no part of it."""
    config = {"model_type": "bert", "vocab_size": 300, **FOUR, "intermediate_size": 3}
    assert "intermediate.dense 32x3" in refusal(config, TEXT, tmp_path)


def test_the_heads_of_a_pretrained_encoder() -> None:
    """MiniLM has 6 blocks of 12 heads of 32, with 128 hidden units each."""
    request = ModelRequest(task=TEXT, source=BY_NAME["minilm"].source)
    config = configuration(request, ("a", "b"))
    module = skeleton(config, request)
    rows = {"input_ids": torch.ones(4, 8, dtype=torch.long), "attention_mask": torch.ones(4, 8, dtype=torch.long)}
    graph = fold_into_units(record_model(module, rows, leaf_modules(module, "block")))
    found = attention_heads(find_blocks(graph, module, config))
    assert len(found) == 72 and found[13].name == "bert.encoder.layer.1#1"
    sizes = [sum(piece.of(module.get_parameter(piece.parameter)).numel() for piece in head.slices) for head in found]
    assert set(sizes) == {4 * 384 * 32 + 3 * 32 + 2 * 384 * 128 + 128}
