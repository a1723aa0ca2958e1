"""Plans of every strategy for a small fleet, as text a reviewer can read."""

from dataclasses import replace

import pytest

from fleetune.drawing import plan_text
from fleetune.planning import Problem, solve
from tests.clock import fleets
from tests.golden import same_as_golden
from tests.planning.instances import small

CASES = {
    "single": ("single", {}),
    "dp": ("dp", {}),
    "pp": ("pp", {}),
    "pp-given-order": ("pp", {"devices": ["c", "b", "a"], "order": "given"}),
    "pp-groups": ("pp", {"groups": [["a"], ["b", "c"]]}),
    "pp-warmup": ("pp", {"devices": ["a", "b"], "warmup": "P-p"}),
}


@pytest.mark.parametrize("case", CASES)
def test_plan_is_the_one_that_was_looked_at(case: str) -> None:
    """Six micro-batches of 8 samples on a, b, c of speeds 4 : 2 : 1."""
    method, options = CASES[case]
    problem = small(micro_batch_samples=8, micro_batches=6, **options)
    same_as_golden(f"plan-{case}.txt", plan_text(solve(method, problem, now=lambda: 0.0)))


ASTEROID_CASES = {
    "asteroid": {},
    "asteroid-paper": {"method": "asteroid"},
    "asteroid-every-device": {"every_device": True},
    "asteroid-free-warmup": {"warmup": "free"},
    "asteroid-blocks": {"layers": "blocks"},
    "asteroid-three-layers": {"layers": 3},
    "asteroid-backups": {"backups": 1},
}


@pytest.mark.parametrize("case", ASTEROID_CASES)
def test_hybrid_plan_is_the_one_that_was_looked_at(case: str) -> None:
    """A network whose early layers are large in activations and its late ones in weights, on five uneven devices."""
    problem = replace(narrowing(), options=ASTEROID_CASES[case])
    same_as_golden(f"plan-{case}.txt", plan_text(solve("asteroid", problem, now=lambda: 0.0)))


def narrowing() -> Problem:
    """Eight micro-batches of 8 samples of four blocks of two units and a head, on two fast devices, two half as fast
    with half of the memory, and a slow one; a byte takes a microsecond on every link."""
    units = [
        replace(
            fleets.unit(name, param_bytes=500 * 4**block, activation_bytes=4000 // 2**block),
            output_bytes=2000 // 2**block,
            gradient_bytes=2000 // 2**block,
        )
        for block in range(4)
        for name in (f"block.{block}.conv", f"block.{block}.norm")
    ]
    units.append(fleets.unit("head", param_bytes=20_000))
    pace = {"fast-0": 0.001, "fast-1": 0.001, "half-0": 0.002, "half-1": 0.002, "slow": 0.02}
    memory = {"fast-0": 400_000, "fast-1": 400_000, "half-0": 200_000, "half-1": 200_000, "slow": 400_000}
    return Problem(
        fleet=fleets.fleet(*(fleets.device(name, size) for name, size in memory.items())),
        profile=fleets.profile(units, pace),
        micro_batch_samples=8,
        micro_batches=8,
    )
