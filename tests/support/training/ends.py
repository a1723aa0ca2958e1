"""Whether trainings end alike: in every bit, or but for rounding."""

from pathlib import Path

import torch

from tests.support.training.runs import final_state

TOLERANCE = 1e-5
"""Relative distance of a tensor that other orders of addition may lead to (`design.md`, the control set)."""


def assert_same_bits(whole: Path, cut: Path) -> None:
    """The final weights agree in every bit."""
    one, other = final_state(whole), final_state(cut)
    assert one and one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def assert_same_end(whole: dict[str, torch.Tensor], folder: Path) -> None:
    """Every tensor is that of a training without a loss, but for the rounding of another order of additions."""
    found = final_state(folder)
    assert found.keys() == whole.keys()
    for name, tensor in whole.items():
        distance = float((tensor.double() - found[name].double()).norm())
        assert distance <= TOLERANCE * max(1.0, float(tensor.double().norm())), (name, distance)
