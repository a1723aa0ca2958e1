"""A device with some samples of a micro-batch draws the same numbers for them as a device with all samples."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fleetune.contracts.run_config import Lora
from fleetune.errors import Refused
from fleetune.models.graph import graph_text, parse_graph
from fleetune.models.randomness import RandomContext, unit_seed
from fleetune.models.recorder import record_model
from fleetune.models.segment import SegmentRunner
from fleetune.models.units import fold_into_units
from fleetune.profiling.profile import min_samples
from tests.support.models.instances import batch, recorded
from tests.support.training.model_families import ENCODER, TEXT, Family

SAMPLES, FIRST, OWN = 8, 2, 3
INPUT = torch.randn(SAMPLES, 4, 6, generator=torch.Generator().manual_seed(1))
QUERY, KEY, VALUE = torch.randn(3, SAMPLES, 2, 6, 4, generator=torch.Generator().manual_seed(2))
ATTENTION = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
ALLOWED = torch.rand(SAMPLES, 1, 6, 6, generator=torch.Generator().manual_seed(3)) > 0.3
ALLOWED[FIRST + 1, 0, 4] = False  # a row that may see nothing
RELATIVE = {"pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16}


class Leaf(nn.Module):
    """A call as a module."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *given: Tensor) -> Tensor:
        """Run the call."""
        return self.call(*given)


class Model(nn.Module):
    """Named inputs, one leaf (or the call between modules), and the output."""

    def __init__(self, call: Callable[..., Tensor], glue: bool = False) -> None:
        super().__init__()
        self.leaf = Leaf(call)
        self.last = nn.Identity()
        self._glue = glue

    def forward(self, **given: Tensor) -> Tensor:
        """leaf -> identity."""
        made = self.leaf.call(*given.values()) if self._glue else self.leaf(*given.values())
        out: Tensor = self.last(made)
        return out


def both(call: Callable[..., Tensor], *given: Tensor, glue: bool = False, own: int = OWN) -> tuple[Tensor, Tensor]:
    """Return the rows of the whole draw, and a device's draw for those rows."""
    model = Model(call, glue)
    inputs = {f"x{number}": value for number, value in enumerate(given)}
    graph = fold_into_units(record_model(model, inputs, {"last"} if glue else {"leaf", "last"}))
    graph = parse_graph(graph_text(graph), "graph")
    segment = SegmentRunner(graph, tuple(unit.name for unit in graph.units), model, torch.device("cpu"))
    draws = RandomContext(1, 2, 3, FIRST, SAMPLES)

    def run(first: int, end: int) -> Tensor:
        values = {number: inputs[name][first:end] for name, number in graph.inputs.items()}
        return segment.run(values, end - first, draws)[graph.output]

    return run(0, SAMPLES)[FIRST : FIRST + own], run(FIRST, FIRST + own)


@pytest.mark.parametrize("glue", [False, True], ids=["leaf", "glue"])
@pytest.mark.parametrize("own", [OWN, 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.dropout(x, 0.3),
        lambda x: functional.dropout(x, p=0.3, inplace=False, training=True),
        lambda x: functional.dropout(x, 1.0),
        lambda x: torch.dropout(x, 0.3, True),
        lambda x: torch.dropout(x, p=0.3, train=True),
        nn.Dropout(0.3),
        lambda x: functional.dropout(functional.dropout(x, 0.3), 0.5),
        lambda x: x * torch.rand(x.shape[0], 4, 1),
        lambda x: x * torch.rand((x.shape[0], 4, 1), dtype=x.dtype),
        lambda x: x * torch.rand(size=(x.shape[0], 4, 1)),
        lambda x: x * torch.randn([x.shape[0], 1, 1]),
        lambda x: x + torch.rand(4, 1),
        lambda x: x + functional.dropout(torch.ones(1, 4, 6), 0.5),  # the same for all samples
        lambda x: functional.dropout(x.transpose(0, 1), 0.5).transpose(0, 1),
        lambda x: functional.dropout(x, 0.3, training=False),
        lambda x: functional.dropout2d(x[..., None], 0.5, training=False),
        lambda x: functional.softmax(x, -1) * x.shape[1],
    ],
)
def test_a_device_draws_its_rows_of_the_whole(call: Callable[[Tensor], Tensor], own: int, glue: bool) -> None:
    """Dropout in all its spellings and torch.rand agree bit by bit, whichever dimension holds the samples.

    Bug: a first dimension of 1 was taken for the one sample of a device. DeBERTa's relative positions, which are the
    same for all samples, got wrong dropout, and losses were a quarter off.
    """
    whole, sliced = both(call, INPUT, glue=glue, own=own)
    assert torch.equal(whole, sliced)


@pytest.mark.parametrize("own", [OWN, 1])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + torch.empty_like(x).uniform_(-2, 2),
        lambda x: x * x.new_empty((x.shape[0], 1, 1)).normal_(mean=1.0, std=0.2),
        lambda x: x * torch.empty((1, 6)).uniform_(-0.5, 0.5).exp(),  # the same for all samples
        lambda x: x + torch.empty(1).normal_(0.0, 3.0),
        lambda x: x - torch.empty_like(x).exponential_().log(),
        lambda x: x + torch.rand_like(x),
        lambda x: x + torch.randn_like(x[:1]),  # the same for all samples
    ],
    ids=["uniform", "normal", "uniform for all", "normal for all", "exponential", "like", "like, for all"],
)
def test_a_tensor_that_is_filled_in_place_is_drawn_alike(call: Callable[[Tensor], Tensor], own: int) -> None:
    """Bug: DINOv3 moves the places of all patches by random numbers, and could not be profiled."""
    whole, sliced = both(call, INPUT, own=own)
    assert torch.equal(whole, sliced)


@pytest.mark.parametrize("masks", ["none", "bool", "float", "lowest", "causal", "scaled"])
def test_attention_with_dropout_draws_its_rows_of_the_whole(masks: str) -> None:
    """Every kind of mask works, fully masked rows included."""

    def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        blocked = torch.finfo().min if masks == "lowest" else float("-inf")
        given: dict[str, object] = {
            "none": {},
            "bool": {"attn_mask": allowed},
            "float": {"attn_mask": torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, blocked)},
            "lowest": {"attn_mask": torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, blocked)},
            "causal": {"is_causal": True},
            "scaled": {"scale": 0.3},
        }[masks]  # type: ignore[assignment]
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2, **given)  # type: ignore[arg-type]

    whole, sliced = both(attend, QUERY, KEY, VALUE, ALLOWED)
    assert torch.equal(whole, sliced)
    assert torch.isfinite(sliced).all()


def test_attention_with_shared_heads_draws_its_rows_of_the_whole() -> None:
    """Several query heads share one key head, a mask is given by position, or there is no dropout."""

    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2, enable_gqa=True)

    def plain(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, allowed)

    whole, sliced = both(grouped, QUERY, KEY[:, :1], VALUE[:, :1])
    assert torch.equal(whole, sliced)
    whole, sliced = both(plain, QUERY, KEY, VALUE, ALLOWED)
    torch.testing.assert_close(whole, sliced)  # torch's own kernel, which may add up rows in another order


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.sigmoid().bernoulli(),
        lambda x: x + torch.randint(0, 9, x.shape),
        lambda x: x[:, torch.randperm(4)],
        lambda x: torch.normal(0.0, 1.0, x.shape),
        lambda x: functional.dropout(x.reshape(-1, 6), 0.3).reshape(x.shape),
        lambda x: x * torch.rand(x.shape[0], x.shape[0])[:, :1, None],
        lambda x: functional.dropout1d(x),
        lambda x: functional.alpha_dropout(x, 0.5, True),
        lambda x: functional.gumbel_softmax(x),
        lambda x: functional.rrelu(x, training=True),
        lambda x: ATTENTION(x, x, x)[0],  # its dropout is inside one function
    ],
)
def test_draws_that_cannot_be_divided_are_refused(call: Callable[[Tensor], Tensor]) -> None:
    """They are refused however deep they are inside a function of torch, and the graph tells planners first."""
    with pytest.raises(Refused, match=r"^model: .*; give its segment one device$"):
        both(call, INPUT)
    model = Model(call)
    graph = record_model(model, {"x": INPUT}, {"leaf", "last"})
    assert min_samples(fold_into_units(graph), model, SAMPLES) == {"leaf": SAMPLES, "last": 1}


@pytest.mark.parametrize(
    "call", [lambda x: functional.dropout2d(x[..., None], 0.5, training=False)[..., 0], lambda x: functional.rrelu(x)]
)
def test_what_draws_nothing_can_be_divided(call: Callable[[Tensor], Tensor]) -> None:
    """A random function that is not in training keeps no group from sharing its samples."""
    model = Model(call)
    graph = record_model(model, {"x": INPUT}, {"leaf", "last"})
    assert min_samples(fold_into_units(graph), model, SAMPLES) == {"leaf": 1, "last": 1}


def test_every_unit_of_every_micro_batch_has_its_own_seed() -> None:
    """Different seeds, rounds, micro-batches or units give different values, and the same ones the same value."""
    seeds = [
        unit_seed(*key) for key in ((1, 2, 3, "a"), (2, 1, 3, "a"), (1, 3, 2, "a"), (1, 2, 3, "b"), (1, 23, 4, "a"))
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert unit_seed(1, 2, 3, "a") == seeds[0]


@pytest.mark.parametrize("shares", [(1, 7), (3, 5)])
def test_dropout_on_what_all_samples_share_adds_up_over_devices(shares: tuple[int, int], tmp_path: Path) -> None:
    """Bug: a device with one sample took DeBERTa's relative positions, with a first dimension of 1, for its sample and
    was 25 to 44 % off. Parts of a micro-batch add up to the whole's loss and gradients.
    """
    lora = Lora(r=2, dropout=0.3, targets=("pos_query_proj", "pos_key_proj"))
    family = Family("deberta", TEXT, {"model_type": "deberta-v2", "relative_attention": True, **ENCODER, **RELATIVE})
    ready = recorded(family, tmp_path, lora=lora, precision="float64")
    given = batch(family, 8)

    def gradients(spans: list[tuple[int, int]]) -> dict[str, Tensor]:
        segment = ready.segment(ready.units)
        segment.train()
        for first, end in spans:
            values = {number: given[name][first:end] for name, number in segment.graph.inputs.items()}
            logits = segment.run(values, end - first, RandomContext(1, 2, 3, first, 8))[segment.graph.output]
            (logits**2).sum().backward()
        return {name: p.grad for name, p in segment.parameters.items() if p.grad is not None}

    whole, parts = gradients([(0, 8)]), gradients([(0, shares[0]), (shares[0], 8)])
    assert any("pos_key_proj.lora_B" in name and bool(tensor.any()) for name, tensor in whole.items())
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)
