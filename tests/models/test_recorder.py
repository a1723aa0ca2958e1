"""A recorded model, cut anywhere and at any batch size, is the unsplit model bit by bit; other models are refused."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fleetune.contracts.run_config import Lora
from fleetune.errors import Refused
from fleetune.models.graph import Graph, graph_text, parse_graph
from fleetune.models.recorder import record_model
from fleetune.models.segment import SegmentRunner, Values
from fleetune.models.units import fold_into_units, merge_uncuttable
from tests.support.models.cuts import Outcome, cut, draws, run_cut
from tests.support.models.instances import CPU, Recorded, batch, recorded, seed_like_units
from tests.support.training.model_families import BY_NAME, FAMILIES, Family

BATCHES = (1, 3, 4, 7)  # batch norms over maps of one pixel need two samples
LORA_TARGETS = {"bert": ("query", "value"), "gpt2": ("c_attn",), "llama": ("q_proj", "v_proj"), "vit": ("q_proj",)}


def run_whole(ready: Recorded, given: dict[str, torch.Tensor], samples: int) -> Outcome:
    """Return the same results of the unsplit model."""
    model = ready.whole().train()
    seed_like_units(model, ready.units, draws(samples))
    logits = model(**given).logits
    (logits**2).sum().backward()
    return logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_equal(ready: Recorded, family: Family, samples: int, segments: list[SegmentRunner]) -> None:
    """Compare values bit by bit; gradients too, except where autograd adds in its own order (tied weights, values that
    several segments read).
    """
    given = batch(family, samples)
    ours, our_gradients = run_cut(segments, given, samples)
    theirs, their_gradients = run_whole(ready, given, samples)
    assert torch.equal(ours, theirs)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in our_gradients.items():
        if family.name in ("gpt2", "llama"):
            torch.testing.assert_close(gradient, their_gradients[name], rtol=1e-4, atol=1e-5, msg=name)
        else:
            assert torch.equal(gradient, their_gradients[name]), name


@pytest.mark.parametrize("granularity", ["block", "layer"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_one_recording_serves_every_cut_and_batch_size(family: Family, granularity: str, tmp_path: Path) -> None:
    """Values and gradients, dropout and batch statistics included, are those of the unsplit model, also for a graph
    that was written and parsed; writing it again gives the same text.
    """
    ready = recorded(family, tmp_path, granularity)
    text = graph_text(ready.graph)
    assert graph_text(parse_graph(text, "graph.json")) == text
    chance = random.Random(f"{family.name}/{granularity}")
    for samples in BATCHES:
        assert_equal(ready, family, samples + (samples == 1 and family.batch_norm), cut(ready, chance))


@pytest.mark.parametrize("name", LORA_TARGETS)
def test_adapters_are_recorded_with_their_base(name: str, tmp_path: Path) -> None:
    """With LoRA only adapters (and the head) have gradients, and they are the unsplit model's."""
    lora = Lora(r=2, alpha=4, dropout=0.1, targets=LORA_TARGETS[name])
    for granularity in ("block", "layer"):
        ready = recorded(BY_NAME[name], tmp_path / granularity, granularity, lora=lora)
        assert_equal(ready, BY_NAME[name], 3, cut(ready, random.Random(name)))


@pytest.mark.parametrize(
    "old, new",
    [
        ('"kind": "function"', '"kind": "code"'),
        ('"output": 3', '"output": 77'),
        ('"id": 2', '"id": 1'),
        ('"$ref": 1', '"$ref": 3'),
        ('"batch"', '"bunch"'),
    ],
)
def test_a_graph_whose_parts_do_not_fit_is_refused(old: str, new: str) -> None:
    """Unknown kinds, missing nodes, duplicate numbers and unknown keys are named with the file."""
    text = graph_text(small(lambda x: x + 1))
    assert old in text
    with pytest.raises(Refused, match=r"^graph\.json: "):
        parse_graph(text.replace(old, new), "graph.json")


class Small(nn.Module):
    """Two linear modules with a function between them."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.register_buffer("shift", torch.ones(4))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """first -> between -> second."""
        out: torch.Tensor = self.second(self.between(self.first(x)))
        return out


def small(between: Callable[[torch.Tensor], torch.Tensor], model: Small | None = None) -> Graph:
    """Return a recorded Small."""
    model = model or Small(between)
    return merge_uncuttable(fold_into_units(record_model(model, {"x": torch.zeros(4, 4)}, {"first", "second", "act"})))


def run_units(graph: Graph, model: Small, x: torch.Tensor) -> torch.Tensor:
    """Run every unit as a segment of its own."""
    values: Values = {graph.inputs["x"]: x}
    for unit in graph.units:
        segment = SegmentRunner(graph, (unit.name,), model, CPU)
        inputs = {n: values[n].detach() for n in segment.input_values}
        values = segment.run({n: v.requires_grad_(graph.value(n).gradient) for n, v in inputs.items()}, len(x))
    return values[graph.output]


def item_under_a_view(x: torch.Tensor) -> torch.Tensor:
    """Changes an item that a view shows."""
    x = x * 1
    seen = x.view(-1, 2, 2)
    x[:, 0] = 0
    return seen.flatten(1)


def change_under_a_view(x: torch.Tensor) -> torch.Tensor:
    """Changes what a view shows."""
    x = x * 1
    seen = x.transpose(0, 1)
    x += 1
    return seen.transpose(0, 1)


class Reversed(torch.autograd.Function):
    """Doubles, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """y = 2 x."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """-2 dy."""
        return gradients[0] * -2


apply_reversed = Reversed.apply  # bound before anybody watches


@pytest.mark.parametrize(
    "between, why",
    [
        (lambda x: x * 2 if x.sum() > 0 else x, "data-dependent"),
        (lambda x: x * x.sum().item(), "known only when it runs"),
        (lambda x: x * 2 if x.shape[0] > 3 else x, "branches on the number of samples"),
        (lambda x: x * (1.0 / x.shape[0]), "known only when it runs"),
        (lambda x: x + x.nonzero().sum(), "shape depends on the data"),
        (lambda x: x.reshape(4, 4), "every batch size"),
        (change_under_a_view, "changed in place"),
        (item_under_a_view, "changed in place"),
        (lambda x: x.mT.mT, "makes a tensor from a property"),
        (lambda x: x.detach().fill_(1.0), "cannot be recorded"),
        (lambda x: torch.tensor(x.tolist()), "data-dependent"),
        (lambda x: Reversed.apply(x), "Reversed computes its gradient by itself"),
        (apply_reversed, "got its gradient only after the operation that made it"),
    ],
)
def test_a_model_without_a_graph_is_refused_in_a_sentence(
    between: Callable[[torch.Tensor], torch.Tensor], why: str
) -> None:
    """Bug: Reformer trained with 38 of 44 tensors without a gradient.

    The refusal says which of these the model does: read its data or the number of samples, change tensors through other
    names, or compute gradients of its own between modules.
    """
    with pytest.raises(Refused, match=f"^model: Small has no graph .*({why})") as refusal:
        small(between)
    assert "\n" not in str(refusal.value)


def test_a_gradient_of_its_own_inside_a_module_is_kept() -> None:
    """A leaf module runs as it is, torch.autograd.Function included, and its gradient is kept."""

    class Inside(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = Reversed.apply(super().forward(x))
            return made

    model = Small(lambda x: x)
    model.second = Inside(4, 4)
    graph = small(lambda x: x, model)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    run_units(graph, model, x).sum().backward()
    assert torch.equal(model.second.bias.grad, torch.full((4,), -6.0))


def test_a_module_that_changes_its_input_is_refused() -> None:
    """The list of operations cannot express a change of an operation's input."""

    class Changes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += 1
            return super().forward(x)

    model = Small(lambda x: x)
    model.second = Changes(4, 4)
    with pytest.raises(Refused, match="module second changes its input in place"):
        small(lambda x: x, model)


def in_place(x: torch.Tensor) -> torch.Tensor:
    """Change a value that came over a cut, and use only the new one."""
    x += 1
    x.mul_(2)
    flat = x.view(-1, 2, 2)
    flat -= 1
    return nn.functional.relu(flat.flatten(1), inplace=True)


def narrowed_in_place(x: torch.Tensor) -> torch.Tensor:
    """Change a half tensor by a float32 one, which it takes over in its own type, as Gemma 4 scales its layers."""
    half = x.to(torch.bfloat16)
    half *= torch.full((1,), 1.5)
    return half.to(x.dtype)


def without_gradient(x: torch.Tensor) -> torch.Tensor:
    """Return a factor without a gradient."""
    with torch.no_grad():
        factor = x.abs().mean(1, keepdim=True)
    return x * factor


def assigned_items(x: torch.Tensor) -> torch.Tensor:
    """Fill a tensor by its items, as encoder-decoder models shift their inputs."""
    shifted = x.new_zeros(x.shape)
    shifted[:, 1:] = x[:, :-1].clone()
    shifted[:, 0] = 7
    return shifted.masked_fill_(shifted == 7, 1.5)


def copied_into_items(x: torch.Tensor) -> torch.Tensor:
    """Put a tensor together in memory of its own, as DeepSeek-V3 does with its keys."""
    whole = x.new_empty(x.shape)
    whole[..., :2].copy_(x[..., 2:])
    whole[..., 2:].copy_(x[..., :2])
    return whole


def items_changed_in_place(x: torch.Tensor) -> torch.Tensor:
    """Change items, and items of items, in place."""
    whole = x * 1
    whole[:, 1:] += whole[:, :-1].clone() * 2
    whole[:, 1].mul_(2)
    whole[:, None][..., 0] = 3.0
    return whole


@pytest.mark.parametrize(
    "between",
    [in_place, narrowed_in_place, without_gradient, assigned_items, copied_into_items, items_changed_in_place],
)
def test_glue_means_the_same_when_it_is_cut_off(between: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In-place functions become their pure forms, and no_grad stays in force: values and gradients are the model's."""
    torch.manual_seed(0)
    model = Small(between)
    graph = small(between, model)
    x = torch.randn(5, 4)
    values: Values = {graph.inputs["x"]: x}
    whole = SegmentRunner(graph, tuple(u.name for u in graph.units), model, CPU)
    for outcome in (run_units(graph, model, x), whole.run(values, 5)[graph.output]):
        assert torch.equal(outcome, model(x))
    (whole.run(values, 5)[graph.output].sum()).backward()
    ours = model.first.weight.grad
    model.zero_grad()
    model(x).sum().backward()
    assert ours is not None and model.first.weight.grad is not None
    assert torch.equal(ours, model.first.weight.grad)


def test_a_module_that_works_in_place_may_stand_right_behind_a_cut() -> None:
    """nn.ReLU(inplace=True) as a unit of its own does not change the value that it received."""
    model = Small(lambda x: x)
    model.between = lambda x: model.act(x) + model.shift
    graph = small(model.between, model)
    x = torch.randn(5, 4)
    assert [unit.name for unit in graph.units] == ["first", "act", "second"]
    assert torch.equal(run_units(graph, model, x), model(x))
