"""Random problems of kind "d2ft", in the D2FT paper's setting and of any size.

The paper's setting: ViT-S in 74 subnets, of which 72 are a head with its part of the feed-forward network; 5
micro-batches; weight magnitude as the backward score (equal for all micro-batches), Fisher information as the forward
score; a forward-only costs 0.4 of a full (Section IV-A). Budgets are numbers of fulls and forward-onlys, such as 3 + 0
or 2 + 1.
"""

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.d2ft.problem import Numbers, Problem

SUBNETS, MICRO_BATCHES = 72, 5
FORWARD, BACKWARD = 0.4, 0.6
STYLES = ("free", "sample-independent", "proportional", "few values")
"""Scores: all different; backward equal along a row; forward proportional to backward; integers below 5."""


def paper_problem(seed: int, fulls: int, forwards: int) -> Problem:
    """The paper's setting: magnitudes grow with depth, Fisher information is heavy-tailed and correlated in a batch."""
    draw = np.random.default_rng(seed)
    magnitude = np.linspace(1.0, 1.5, SUBNETS) * draw.uniform(0.85, 1.15, SUBNETS) * 40
    gradient = draw.lognormal(0, 0.5, SUBNETS)
    fisher = draw.lognormal(0, 0.8, (1, MICRO_BATCHES)) * draw.lognormal(0, 0.6, (SUBNETS, MICRO_BATCHES))
    return _problem(
        np.repeat(magnitude[:, None], MICRO_BATCHES, axis=1),
        fisher,
        (fulls, forwards),
        weight_magnitude=tuple(magnitude.tolist()),
        gradient_magnitude=tuple(gradient.tolist()),
    )


def random_problem(seed: int, shape: tuple[int, int], style: str, weight: float | None = None) -> Problem:
    """A problem of `shape` (subnets, micro-batches) with budgets of 0.4 full and 0.4 forward-only (Section IV-C)."""
    draw = np.random.default_rng(seed)
    backward = draw.gamma(2, 1, shape)
    forward = backward * draw.uniform(0.05, 0.9, shape)
    if style == "sample-independent":
        backward = np.repeat(backward[:, :1], shape[1], axis=1)
    elif style == "proportional":
        backward = np.repeat(backward[:, :1], shape[1], axis=1)
        forward = backward * FORWARD
    elif style == "few values":
        backward, forward = np.floor(backward * 1.5) % 5, np.floor(forward * 3) % 5
    share = round(0.4 * shape[1])
    magnitudes = tuple(draw.gamma(2, 1, shape[0]).tolist())
    return _problem(
        backward, forward, (share, share), forward_weight=weight, weight_magnitude=magnitudes,
        gradient_magnitude=magnitudes[::-1],
    )  # fmt: skip


def _problem(
    backward: NDArray[np.float64],
    forward: NDArray[np.float64],
    budget: tuple[int, int],
    *,
    forward_weight: float | None = None,
    weight_magnitude: Numbers,
    gradient_magnitude: Numbers,
) -> Problem:
    """Equal costs and budgets in every subnet, `budget` is the number of fulls and of forward-onlys."""

    def everywhere(cost: float) -> Numbers:
        return (round(cost, 9),) * len(backward)

    return Problem(
        backward_scores=tuple(map(tuple, backward.tolist())),
        forward_scores=tuple(map(tuple, forward.tolist())),
        forward_cost=everywhere(FORWARD),
        backward_cost=everywhere(BACKWARD),
        full_capacity=everywhere(budget[0]),
        forward_capacity=everywhere(FORWARD * budget[1]),
        capacity=everywhere(budget[0] + FORWARD * budget[1]),
        forward_weight=forward_weight,
        weight_magnitude=weight_magnitude,
        gradient_magnitude=gradient_magnitude,
    )
