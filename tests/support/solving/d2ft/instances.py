"""Problems of kind d2ft: a small one, and random ones full of ties, zeros and decimals without a binary fraction."""

from random import Random
from typing import Any

from fleetune.solving.d2ft.problem import Problem

Rows = tuple[tuple[float, ...], ...]


def drawn(**changed: Any) -> Problem:
    """Three subnets x four micro-batches; weight magnitude as the backward score, so that all of them tie."""
    fields: dict[str, Any] = {
        "backward_scores": ((3.0,) * 4, (2.0,) * 4, (5.0,) * 4),
        "forward_scores": ((0.4, 0.1, 0.3, 0.2), (0.2, 0.2, 0.9, 0.2), (0.5, 0.6, 0.7, 0.8)),
        "forward_cost": (0.4, 0.4, 0.1),
        "backward_cost": (0.6, 0.6, 0.2),
        "full_capacity": (2.0, 1.0, 0.3),
        "forward_capacity": (0.4, 0.8, 0.2),
        "capacity": (2.4, 1.8, 0.5),
        "weight_magnitude": (3.0, 2.0, 5.0),
        "gradient_magnitude": (0.5, 2.0, 0.1),
    }
    return Problem(**fields | changed)


def tiny(seed: int, subnets: int = 2, micro_batches: int = 5, **changed: Any) -> Problem:
    """Scores of a few values or many, the same along a row or not; budgets from nothing to everything."""
    random = Random(f"d2ft {seed}")

    def row(length: int, *values: float) -> tuple[float, ...]:
        return tuple(random.choice(values) for _ in range(length))

    fields: dict[str, Any] = {
        "backward_scores": _scores(random, subnets, micro_batches),
        "forward_scores": _scores(random, subnets, micro_batches),
        "forward_cost": row(subnets, 0.0, 0.1, 0.3, 0.4, 2.0),
        "backward_cost": row(subnets, 0.0, 0.2, 0.6, 1.0),
        "full_capacity": row(subnets, 0.0, 0.3, 0.9, 1.2, 3.0, 7.0),
        "forward_capacity": row(subnets, 0.0, 0.1, 0.3, 0.8, 1.2, 9.0),
        "capacity": row(subnets, 0.0, 0.3, 0.6, 1.7, 2.4, 3.1, 5.0, 20.0),
        "forward_weight": random.choice((None, 0.0, 0.1, 0.5, 1.0, 3.0)),
        "weight_magnitude": row(subnets, 0.0, 1.0, 2.0),
        "gradient_magnitude": row(subnets, 0.0, 1.0, 2.0),
    }
    return Problem(**fields | changed)


def alike(subnets: int, micro_batches: int, fulls: int, forwards: int, **changed: Any) -> Problem:
    """The paper's setting: equal devices, a forward-only costs 0.4 of a full, scores random but for their ties."""
    random = Random(f"d2ft alike {subnets} {micro_batches}")
    fields: dict[str, Any] = {
        "backward_scores": tuple((random.uniform(10, 20),) * micro_batches for _ in range(subnets)),
        "forward_scores": tuple(tuple(random.random() for _ in range(micro_batches)) for _ in range(subnets)),
        "forward_cost": (0.4,) * subnets,
        "backward_cost": (0.6,) * subnets,
        "full_capacity": (float(fulls),) * subnets,
        "forward_capacity": (round(0.4 * forwards, 6),) * subnets,
        "capacity": (round(fulls + 0.4 * forwards, 6),) * subnets,
        "weight_magnitude": tuple(random.uniform(10, 20) for _ in range(subnets)),
        "gradient_magnitude": tuple(random.uniform(1, 2) for _ in range(subnets)),
    }
    return Problem(**fields | changed)


def _scores(random: Random, subnets: int, micro_batches: int) -> Rows:
    kinds = (
        lambda: random.random(),
        lambda: float(random.randint(0, 2)),
        lambda: random.choice((0.1, 0.2, 0.3)),
        lambda: 0.0,
    )
    rows = []
    for _ in range(subnets):
        draw = random.choice(kinds)
        one = draw()
        rows.append(tuple(one if random.random() < 0.1 else draw() for _ in range(micro_batches)))
    return tuple(rows if random.random() < 0.7 else [(row[0],) * micro_batches for row in rows])
