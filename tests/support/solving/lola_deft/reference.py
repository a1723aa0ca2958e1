"""The contract of kind "deft", checked in plain Python; shares no code with the solvers."""

import itertools
import math
from typing import Any


def check(problem: dict[str, Any], plan: dict[str, Any]) -> None:
    """Assert one device per block, memory, the band, and the latency of the slowest pair."""
    blocks = len(problem["block_memory_bytes"])
    devices, parts = plan["devices"], plan["bandwidth_hz"]
    assert plan["kind"] == "deft"
    assert len(devices) == len(parts) == blocks
    assert len(set(devices)) == blocks
    assert all(type(device) is int and 0 <= device < len(problem["memory_bytes"]) for device in devices)
    assert all(part > 0 and math.isfinite(part) for part in parts)
    assert sum(parts) <= problem["bandwidth_hz"]
    if problem["bandwidth"] == "equal":
        assert all(math.isclose(part, problem["bandwidth_hz"] / blocks, rel_tol=1e-13) for part in parts)
    over = [b for b, d in enumerate(devices) if problem["block_memory_bytes"][b] > problem["memory_bytes"][d]]
    assert plan["feasible"] == (not over)
    assert plan["objective"] == latency_s(problem, devices, parts)
    if plan["feasible"]:
        assert plan["lower_bound"] <= plan["objective"]
    else:
        assert plan["reason"]


def latency_s(problem: dict[str, Any], devices: list[int], parts: list[float]) -> float:
    """Return the latency of the slowest pair."""
    return max(
        problem["compute_s"][device][block]
        + problem["block_bits"] / (parts[block] * problem["spectral_efficiency"][device])
        for block, device in enumerate(devices)
    )


def best_s(problem: dict[str, Any]) -> float:
    """Return the least latency over all allocations within memory, with the band divided exactly."""
    blocks = len(problem["block_memory_bytes"])
    best = math.inf
    for devices in itertools.permutations(range(len(problem["memory_bytes"])), blocks):
        if all(problem["block_memory_bytes"][b] <= problem["memory_bytes"][d] for b, d in enumerate(devices)):
            best = min(best, alone_s(problem, list(devices), best))
    return best


def alone_s(problem: dict[str, Any], devices: list[int], known_s: float) -> float:
    """Return the least latency of one allocation, or `known_s` if it is not below that."""
    blocks = len(devices)
    if problem["bandwidth"] == "equal":
        return latency_s(problem, devices, [problem["bandwidth_hz"] / blocks] * blocks)
    compute = [problem["compute_s"][d][b] for b, d in enumerate(devices)]
    if problem["block_bits"] == 0:
        return min(known_s, max(compute))
    whole = [problem["block_bits"] / (problem["bandwidth_hz"] * problem["spectral_efficiency"][d]) for d in devices]

    def fits(at_s: float) -> bool:
        if any(at_s <= c for c in compute):
            return False
        return sum(w / (at_s - c) for w, c in zip(whole, compute, strict=True)) <= 1

    high = max(compute) + sum(whole)
    if not fits(known_s if known_s < math.inf else high * (1 + 1e-9)):
        return known_s
    low = max(compute)
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
