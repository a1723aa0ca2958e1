"""Problems of kind "d2ft" in the paper's style, and of any size.

The paper's: ViT-S in 74 subnets, of which 72 are a head and its part of the feed-forward network each; batches of 5
micro-batches; weight magnitude as the backward score (the same for every micro-batch), Fisher information as the
forward score; a forward-only costs 0.4 of a full (Section IV-A). Budgets are said as numbers of both: 3 full, or 2 full
and 1 forward-only.
"""

import numpy as np
from numpy.typing import NDArray

from fleetune.solving.d2ft.problem import Numbers, Problem

SUBNETS, MICRO_BATCHES = 72, 5
FORWARD, BACKWARD = 0.4, 0.6
STYLES = ("free", "sample-independent", "proportional", "few values")
"""Of scores: all differ; backward ones the same along a row; forward ones a share of them; whole numbers below 5."""


def paper(seed: int, fulls: int, forwards: int) -> Problem:
    """Magnitudes grow with depth and differ between heads; Fisher information is heavy-tailed and alike in a batch."""
    draw = np.random.default_rng(seed)
    magnitude = np.linspace(1.0, 1.5, SUBNETS) * draw.uniform(0.85, 1.15, SUBNETS) * 40
    gradient = draw.lognormal(0, 0.5, SUBNETS)
    fisher = draw.lognormal(0, 0.8, (1, MICRO_BATCHES)) * draw.lognormal(0, 0.6, (SUBNETS, MICRO_BATCHES))
    return _problem(
        np.repeat(magnitude[:, None], MICRO_BATCHES, axis=1),
        fisher,
        fulls,
        forwards,
        weight_magnitude=tuple(magnitude.tolist()),
        gradient_magnitude=tuple(gradient.tolist()),
    )


def sized(seed: int, shape: tuple[int, int], style: str, weight: float | None = None) -> Problem:
    """Subnets x micro-batches; 0.4 of all full, 0.4 forward only, as in the paper's Section IV-C."""
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
        backward, forward, share, share, forward_weight=weight, weight_magnitude=magnitudes,
        gradient_magnitude=magnitudes[::-1],
    )  # fmt: skip


def _problem(
    backward: NDArray[np.float64],
    forward: NDArray[np.float64],
    fulls: int,
    forwards: int,
    *,
    forward_weight: float | None = None,
    **magnitudes: Numbers,
) -> Problem:
    def everywhere(cost: float) -> Numbers:
        return (round(cost, 9),) * len(backward)

    return Problem(
        backward_scores=tuple(map(tuple, backward.tolist())),
        forward_scores=tuple(map(tuple, forward.tolist())),
        forward_cost=everywhere(FORWARD),
        backward_cost=everywhere(BACKWARD),
        full_capacity=everywhere(fulls),
        forward_capacity=everywhere(FORWARD * forwards),
        capacity=everywhere(fulls + FORWARD * forwards),
        forward_weight=forward_weight,
        **magnitudes,
    )
