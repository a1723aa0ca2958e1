"""Problems of kind "deft" for tests, the paper's worked example, and solving from JSON to JSON."""

from random import Random
from typing import Any

from fleetune.contracts import json_io
from fleetune.solving.api import document
from fleetune.solving.lola_deft.problem import Problem
from fleetune.solving.lola_deft.solve import solve
from tests.support.solving.lola_deft.reference import check

NONE = float("inf")
EXAMPLE = (
    (13.0, 21.0, NONE, NONE),
    (14.0, 19.0, 24.0, 29.0),
    (32.0, 38.0, NONE, NONE),
    (12.0, 18.0, 27.0, 42.0),
    (34.0, NONE, NONE, NONE),
    (17.0, 26.0, 35.0, 46.0),
)
"""[device][block]: Example 1 of the paper, K = 6 and L = 4, infinite where memory lacks. Its figure is an image: this
table gives the sequence of cuts, the counts after the first one and the allocation that its text prints."""


def plain(**changes: Any) -> dict[str, Any]:
    """Return three devices and two blocks as JSON values."""
    return {
        "kind": "deft",
        "bandwidth": "joint",
        "compute_s": [[1.0, 2.0], [2.0, 3.0], [1.5, 2.5]],
        "memory_bytes": [4000, 4000, 2000],
        "block_memory_bytes": [1000, 3000],
        "block_bits": 6e6,
        "bandwidth_hz": 1e6,
        "spectral_efficiency": [1.0, 2.0, 4.0],
    } | changes


def problem(**changes: Any) -> Problem:
    """Return the same as a problem."""
    return json_io.load(Problem, plain(**changes), "p.json")


def example(bits: float = 0.0) -> Problem:
    """The paper's example with equal parts; with `bits`, a part of each latency is for sending them."""
    sent_s = bits * 4 / 1e6
    return Problem(
        bandwidth="equal",
        compute_s=tuple(tuple(99.0 if s == NONE else s - sent_s for s in row) for row in EXAMPLE),
        memory_bytes=tuple(float(sum(s != NONE for s in row)) for row in EXAMPLE),
        block_memory_bytes=(1.0, 2.0, 3.0, 4.0),
        block_bits=bits,
        bandwidth_hz=1e6,
        spectral_efficiency=(1.0,) * 6,
    )


def drawn(
    seed: int, devices: int = 5, blocks: int = 4, *, bandwidth: str = "joint", rows: str = "deepen", **changes: Any
) -> dict[str, Any]:
    """A random problem that memory allows, as JSON values; computing and sending last about as long, by seed.

    rows: `deepen` (times grow with the block's depth), `any`, or `even` (few distinct numbers, so many ties).
    """
    random = Random(f"{seed} {devices} {blocks} {rows}")
    weight = 10 ** random.uniform(-1.5, 1.5)
    depths = [1 + random.uniform(0, 2) * block for block in range(blocks)]
    needs = [random.randint(1, 6) for _ in range(blocks)]
    compute: list[list[float]] = []
    for _ in range(devices):
        own, row = random.uniform(0.5, 2), []
        for depth in depths:
            if rows == "even":
                row.append(float(random.randint(1, 3)))
            else:
                row.append(weight * own * depth * (1 if rows == "deepen" else random.uniform(0.2, 2)))
        compute.append(sorted(row) if rows == "deepen" else row)
    if rows == "deepen":
        needs.sort()
    memory = [need + random.randint(0, 3) for need in needs] + [random.randint(0, 8) for _ in range(devices - blocks)]
    random.shuffle(memory)
    efficiency = [float(random.randint(1, 2)) if rows == "even" else random.uniform(0.1, 6) for _ in range(devices)]
    return {
        "kind": "deft",
        "bandwidth": bandwidth,
        "compute_s": compute,
        "memory_bytes": memory,
        "block_memory_bytes": needs,
        "block_bits": 1e6,
        "bandwidth_hz": 1e6 if rows == "even" else random.uniform(0.5, 2) * 1e6,
        "spectral_efficiency": efficiency,
    } | changes


def solved(problem: dict[str, Any], method: str = "bisection") -> dict[str, Any]:
    """Return a plan that satisfies the contract."""
    plan = document(solve(json_io.load(Problem, problem, "p.json"), method=method))
    check(problem, plan)
    return plan
