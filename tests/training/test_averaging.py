"""Parts of averages: every element travels once, whatever the parts, and devices agree about who sends what."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from fleetune.program import parse_step
from fleetune.program.steps import average_steps
from fleetune.training.averaging import Averager, State, parts_of
from tests.support.clock.ticks import plan, segment

NAMES = {"u0": ("a", "b"), "u1": ("c", "a", "norm.running_mean", "norm.num_batches_tracked", "ids")}


@given(st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(1, 100))
def test_every_element_is_in_one_part_and_no_part_is_too_large(sizes: list[int], part_bytes: int) -> None:
    """Parameters and running statistics in the order of the units, a shared one once; other buffers stay."""
    tensors: dict[str, torch.Tensor] = {n: nn.Parameter(torch.zeros(k)) for n, k in zip("abc", sizes, strict=True)}
    tensors["norm.running_mean"] = torch.zeros(3)
    tensors["norm.num_batches_tracked"] = torch.zeros((), dtype=torch.int64)
    tensors["ids"] = torch.zeros(5)
    parts = parts_of(NAMES, tensors, part_bytes)
    seen = [(name, k) for part in parts for name, span in part.items() for k in range(*span)]
    wanted = [n for n in ("a", "b", "c", "norm.running_mean", "norm.num_batches_tracked")]
    assert seen == [(name, k) for name in wanted for k in range(tensors[name].numel())]
    for part in parts:
        held = sum((end - first) * tensors[name].element_size() for name, (first, end) in part.items())
        assert 0 < held <= max(part_bytes, 8)


def test_a_seat_pulls_a_part_after_it_has_pushed_the_next() -> None:
    """Two parts are on their way at most; the last ones are pulled without a push."""
    steps = tuple(parse_step(f"{kind} x/0A0 {word} h") for kind, word in (("push", "to"), ("pull", "from")))
    assert [f"{step.kind} {part}" for part, step in average_steps(steps, 3)] == [
        "push 0", "push 1", "pull 0", "push 2", "pull 1", "pull 2",
    ]  # fmt: skip


@dataclass
class Given:
    """What a lane gives of a tensor."""

    value: float
    steps: float


@pytest.mark.parametrize("weights", [{"x": 0.25, "y": 0.75}, {"x": 0.6, "y": 0.4}])
def test_means_are_weighted_and_counts_become_the_largest(weights: dict[str, float]) -> None:
    """A part's sums go when the next part's first term comes, so that one part is held."""
    lanes = {name: [segment("u0 u1", name)] for name in "xy"}
    averager = Averager(plan(lanes), weights, NAMES, {})
    given_by = {"x": Given(1.0, 4), "y": Given(5.0, 7)}
    for number in (0, 1):
        for lane, own in given_by.items():
            tensors = {"model|a": torch.full((2,), own.value + number)}
            averager.collect(lane, number, State(tensors, {"optimizer|step:a": own.steps}))
        mean = averager.means_of("y", 0, number)
        expected = weights["x"] * (1.0 + number) + weights["y"] * (5.0 + number)
        assert torch.allclose(mean.tensors["model|a"], torch.full((2,), expected))
        assert mean.counts == {"optimizer|step:a": 7}
        assert not averager.means_of("x", 0, 1 - number).tensors


@pytest.mark.parametrize("steps", [{"x": 1.0, "y": 7.0}, {"x": 7.0, "y": 1.0}, {"x": 4.0, "y": 4.0}])
def test_moments_of_unequal_counts_of_steps_are_averaged_without_their_bias(steps: dict[str, float]) -> None:
    """Gradients of 1 and of 5 in every step: what AdamW reads of the mean is their mean, whoever took more steps, and
    of equal counts the plain mean of the moments in every bit."""
    lanes, gradients = {name: [segment("u0 u1", name)] for name in "xy"}, {"x": 1.0, "y": 5.0}
    weights = {"x": 0.25, "y": 0.75}
    averager = Averager(plan(lanes), weights, NAMES, {"exp_avg": 0.9})
    moments = {lane: torch.full((2,), gradients[lane] * (1 - 0.9 ** steps[lane]), dtype=torch.float64) for lane in "xy"}
    for lane, moment in moments.items():
        averager.collect(lane, 0, State({"optimizer|exp_avg:a": moment}, {"optimizer|step:a": steps[lane]}))
    mean = averager.means_of("x", 0, 0)
    count = mean.counts["optimizer|step:a"]
    read = mean.tensors["optimizer|exp_avg:a"] / (1 - 0.9**count)
    assert count == max(steps.values()) and torch.allclose(read, torch.full((2,), 4.0, dtype=torch.float64))
    if steps["x"] == steps["y"]:
        assert torch.equal(mean.tensors["optimizer|exp_avg:a"], moments["x"] * 0.25 + moments["y"] * 0.75)
