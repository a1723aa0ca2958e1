"""Golden plans of every strategy on small fleets, as readable text."""

from dataclasses import replace

import pytest

from fleetune.drawing import plan_text
from fleetune.planning import Problem, solve
from tests.support.golden import same_as_golden
from tests.support.planning.instances import narrowing, scored, small

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
    """Plans for six micro-batches of 8 samples on a, b and c with speeds 4 : 2 : 1 equal the reviewed ones."""
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
    if "backups" in problem.options:  # with the memory that snapshots and backups need
        roomy = tuple(replace(each, memory_bytes=2 * each.memory_bytes) for each in problem.fleet.devices)
        problem = replace(problem, fleet=replace(problem.fleet, devices=roomy))
    same_as_golden(f"plan-{case}.txt", plan_text(solve("asteroid", problem, now=lambda: 0.0)))


OTHERS: dict[str, tuple[str, dict[str, object]]] = {
    "fusionllm": ("fusionllm", {}),
    "fusionllm-top-k": ("fusionllm", {"method": "equal-compute", "compression_ratio": 100}),
    "lola-deft": ("lola-deft", {"server": "slow"}),
    "lola-deft-equal": ("lola-deft", {"server": "slow", "bandwidth": "equal", "blocks": 2}),
    "split-learning": ("split-learning", {"helpers": ["fast-0", "fast-1"], "cuts": ["block.0.norm", "block.2.conv"]}),
    "d2ft": ("d2ft", {"budgets": {"fast-1": [4, 2]}}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_plan_is_the_one_that_was_looked_at(case: str) -> None:
    """The same network with a head that is a tenth as large, a tenth of all trained, on devices of twice the memory."""
    name, options = OTHERS[case]
    many = 2 if name == "split-learning" else 8  # a client keeps all of its micro-batches
    problem = scored(replace(lighter(narrowing()), options=options, micro_batches=many))
    same_as_golden(f"plan-{case}.txt", plan_text(solve(name, problem, now=lambda: 0.0)))


def lighter(problem: Problem) -> Problem:
    """The problem with a small head, a tenth of all weights trained, and twice the memory."""
    units = [
        replace(unit, param_bytes=size, trainable_bytes=size // 10)
        for unit in problem.profile.units
        for size in [unit.param_bytes // (10 if unit.name == "head" else 1)]
    ]
    devices = tuple(replace(device, memory_bytes=2 * device.memory_bytes) for device in problem.fleet.devices)
    return replace(
        problem,
        fleet=replace(problem.fleet, devices=devices),
        profile=replace(problem.profile, units=tuple(units)),
    )
