"""bisection is optimal: compared with brute force and with every other method, at any scale."""

from random import Random
from typing import Any

import numpy as np
import pytest

from fleetune.contracts import json_io
from fleetune.solving.lola_deft.allocation import min_latency_s
from fleetune.solving.lola_deft.instance import Instance
from fleetune.solving.lola_deft.methods import SUMMARIES
from fleetune.solving.lola_deft.methods.assignments import joint_optimum
from fleetune.solving.lola_deft.problem import Problem
from tests.support.solving.lola_deft.instances import drawn, plain, solved
from tests.support.solving.lola_deft.reference import best_s

SAME = 1e-12
"""Relative rounding difference of two equally good divisions."""


@pytest.mark.parametrize("rows", ["deepen", "any", "even"])
@pytest.mark.parametrize("seed", range(20))
def test_optimal_beside_brute_force(seed: int, rows: str) -> None:
    """The plan is within 1e-9 of the best injection with the band divided exactly; the bound is as close below."""
    problem = drawn(seed, 3 + seed % 4, 1 + seed % 3, rows=rows)
    best, plan = best_s(problem), solved(problem)
    assert plan["objective"] == pytest.approx(best, rel=1e-9)
    assert plan["objective"] * (1 - 1e-9) <= plan["lower_bound"] <= min(plan["objective"], best * (1 + SAME))


@pytest.mark.parametrize("seed", range(60))
def test_never_worse_than_any_method(seed: int) -> None:
    """On problems of many sizes and weights, no method's feasible plan is faster, and none is below the bound."""
    problem = drawn(seed, 4 + seed % 9, 1 + seed % 4, rows=("deepen", "any", "even")[seed % 3])
    plan = solved(problem)
    for method in SUMMARIES:
        other = solved(problem, method)
        assert other["lower_bound"] == plan["lower_bound"]
        if other["feasible"]:
            assert other["objective"] >= plan["objective"] * (1 - SAME)


@pytest.mark.parametrize("seed", range(10))
def test_order_does_not_matter(seed: int) -> None:
    """Listing devices and blocks in another order does not change the latency."""
    problem, random = drawn(seed, 7, 4, rows=("deepen", "any")[seed % 2]), Random(seed)
    devices, blocks = list(range(7)), list(range(4))
    random.shuffle(devices)
    random.shuffle(blocks)
    other = problem | {
        "compute_s": [[problem["compute_s"][d][b] for b in blocks] for d in devices],
        "memory_bytes": [problem["memory_bytes"][d] for d in devices],
        "spectral_efficiency": [problem["spectral_efficiency"][d] for d in devices],
        "block_memory_bytes": [problem["block_memory_bytes"][b] for b in blocks],
    }
    for bandwidth in ("joint", "equal"):
        asked = {"bandwidth": bandwidth}
        one, another = solved(problem | asked), solved(other | asked)
        assert another["objective"] == pytest.approx(one["objective"], rel=SAME)


@pytest.mark.parametrize("method", [name for name in SUMMARIES if name != "dual-ascent"])
@pytest.mark.parametrize("seed", range(5))
def test_scaling_laws(seed: int, method: str) -> None:
    """Twice the band, half the bits and twice the efficiency are the same; twice all seconds is twice the latency."""
    problem = drawn(seed)
    bits, band = problem["block_bits"], problem["bandwidth_hz"]
    better = {"spectral_efficiency": [2 * r for r in problem["spectral_efficiency"]]}
    slower = {"compute_s": [[2 * s for s in row] for row in problem["compute_s"]], "block_bits": 2 * bits}
    plan = solved(problem, method)
    wide, few, good = (
        solved(problem | changes, method) for changes in ({"bandwidth_hz": 2 * band}, {"block_bits": bits / 2}, better)
    )
    assert wide["objective"] == few["objective"] == good["objective"] <= plan["objective"]
    assert wide["devices"] == few["devices"]
    assert wide["bandwidth_hz"] == [2 * hz for hz in few["bandwidth_hz"]]
    assert solved(problem | slower, method)["objective"] == 2 * plan["objective"]


@pytest.mark.parametrize("bits", [1e3, 1e12])
@pytest.mark.parametrize("band", [1.0, 1e9])
@pytest.mark.parametrize("seed", range(3))
def test_any_unit(seed: int, bits: float, band: float) -> None:
    """From microseconds to thousands of years of sending, the optimum is that of brute force, by every exact method."""
    problem = drawn(seed, 5, 3, block_bits=bits, bandwidth_hz=band)
    assert solved(problem)["objective"] == pytest.approx(best_s(problem), rel=1e-9)
    equal = problem | {"bandwidth": "equal"}
    assert solved(equal, "crunch")["objective"] == pytest.approx(best_s(equal), rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"block_bits": 1e-60, "bandwidth_hz": 1e60, "spectral_efficiency": [1e60, 1e-60, 1.0]},
        {"block_bits": 1e60, "bandwidth_hz": 1e-60, "spectral_efficiency": [1e60, 1e-60, 1.0]},
        {"compute_s": [[1e300, 1e300]] * 3},
        {"compute_s": [[1e-300, 2e-300]] * 3, "block_bits": 1e-60},
        {"compute_s": [[0, 0]] * 3},
        {"compute_s": [[0, 0]] * 3, "block_bits": 0},
        {"block_bits": 0},
        {"compute_s": [[1e9, 1e9 + 1e-6]] * 3, "block_bits": 1e-3},
        {"spectral_efficiency": [1e-12, 1e-12, 1.0]},
        {"memory_bytes": [0, 0, 0], "block_memory_bytes": [0, 0]},
    ],
)
@pytest.mark.parametrize("bandwidth", ["joint", "equal"])
@pytest.mark.parametrize("method", SUMMARIES)
def test_extremes_stay_finite(method: str, bandwidth: str, changes: dict[str, Any]) -> None:
    """Zeros, huge and tiny numbers side by side give a plan of finite numbers, optimal where the method is."""
    problem = plain(bandwidth=bandwidth, **changes)
    if method == "dual-ascent" and bandwidth == "equal":
        return
    plan = solved(problem, method)
    if method == "bisection" or (method == "crunch" and bandwidth == "equal"):
        assert plan["objective"] == pytest.approx(best_s(problem), rel=1e-9)


def test_one_block_gets_the_whole_band() -> None:
    """A single block goes to the device with the shortest computing and sending."""
    problem = plain(compute_s=[[1.0], [4.0], [2.0]], block_memory_bytes=[1])
    plan = solved(problem)
    assert plan["devices"] == [2]
    assert plan["objective"] == pytest.approx(2.0 + 6 / 4)
    assert plan["bandwidth_hz"] == pytest.approx([1e6])


def test_by_hand() -> None:
    """Two alike channels of 6 s each, computing 0 s and 5 s: ending at 15 s needs 6/15 + 6/10 = the whole band."""
    problem = plain(compute_s=[[0.0, 9.0], [9.0, 5.0]], memory_bytes=[9, 9], block_memory_bytes=[1, 1])
    plan = solved(problem | {"spectral_efficiency": [1.0, 1.0]})
    assert plan["devices"] == [0, 1]
    assert plan["objective"] == pytest.approx(15.0)
    assert plan["bandwidth_hz"] == pytest.approx([4e5, 6e5])


def test_a_fast_computer_gives_its_band_away() -> None:
    """The exact division is never slower than equal parts of the same allocation, and mostly faster."""
    gains = []
    for seed in range(30):
        even, best = solved(drawn(seed), "crunch"), solved(drawn(seed))
        gains.append(even["objective"] / best["objective"])
    assert min(gains) >= 1
    assert sorted(gains)[15] > 1.03


@pytest.mark.parametrize("rows", ["deepen", "any", "even"])
@pytest.mark.parametrize(("devices", "blocks"), [(100, 64), (300, 200), (200, 200), (400, 3)])
def test_large_problems(devices: int, blocks: int, rows: str) -> None:
    """Hundreds of devices: the gap to the proven bound stays within 1e-9, by a handful of assignments."""
    problem = drawn(devices, devices, blocks, rows=rows)
    plan = solved(problem)
    assert plan["objective"] <= plan["lower_bound"] * (1 + 1e-9)
    assert joint_optimum(Instance(json_io.load(Problem, problem, "p"))).assignments <= 12
    equal = problem | {"bandwidth": "equal"}
    assert solved(equal, "crunch")["objective"] == solved(equal, "bisection")["objective"] >= plan["objective"]


def test_the_band_is_used_up() -> None:
    """If there are bits to send, all blocks finish together and use the whole band."""
    problem = drawn(5)
    plan = solved(problem)
    instance = Instance(json_io.load(Problem, problem, "p"))
    assert sum(plan["bandwidth_hz"]) == pytest.approx(problem["bandwidth_hz"], rel=1e-14)
    for block, (device, hz) in enumerate(zip(plan["devices"], plan["bandwidth_hz"], strict=True)):
        sent_s = problem["block_bits"] / (hz * problem["spectral_efficiency"][device])
        assert problem["compute_s"][device][block] + sent_s == pytest.approx(plan["objective"], rel=1e-12)
    assert min_latency_s(instance, np.array(plan["devices"])) == pytest.approx(plan["objective"], rel=1e-14)
