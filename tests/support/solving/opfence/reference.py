"""The contract of kind "opfence", checked slowly in exact fractions; shares no code with the solver."""

import itertools
import math
from fractions import Fraction
from typing import Any

Plain = dict[str, Any]


class Judged:
    """Cost of a placement in exact fractions."""

    def __init__(self, problem: Plain, placement: dict[str, str]) -> None:
        devices = [device["name"] for device in problem["devices"]]
        operators = {operator["name"]: operator for operator in problem["operators"]}
        at = {name: place for place, name in enumerate(devices)}
        alpha = [[Fraction(x or 0) for x in row] for row in problem["alpha_s"]]
        beta = [[Fraction(x or 0) for x in row] for row in problem["beta_s_per_byte"]]
        carried: dict[tuple[int, int], list[int]] = {}
        for name, operator in operators.items():
            readers = {placement[user] for user, other in operators.items() if name in other["inputs"]}
            for reader in readers - {placement[name]}:
                carried.setdefault((at[placement[name]], at[reader]), []).append(operator["output_bytes"])
        dense_s = {
            (a, b): sum((alpha[a][b] for _ in sizes), Fraction(0)) + beta[a][b] * sum(sizes)
            for (a, b), sizes in carried.items()
        }
        slowest_s = max(dense_s.values(), default=Fraction(0))
        self.links: dict[tuple[str, str], tuple[Fraction, Fraction]] = {}
        """(from, to) -> bytes on the wire, ratio."""
        receive_s = [Fraction(0)] * len(devices)
        for (a, b), sizes in carried.items():
            wire, ratio = _sent(problem, sum(sizes), dense_s[a, b], slowest_s)
            self.links[devices[a], devices[b]] = wire, ratio
            receive_s[b] += alpha[a][b] * len(sizes) + beta[a][b] * wire
        compute_s, self.memory_bytes = [Fraction(0)] * len(devices), [Fraction(0)] * len(devices)
        optimizer = Fraction(problem.get("optimizer_bytes_per_param_byte", 2.0))
        for name, device in placement.items():
            operator, place = operators[name], at[device]
            compute_s[place] += Fraction(operator["flops"]) / Fraction(problem["devices"][place]["flops_per_s"])
            self.memory_bytes[place] += operator["param_bytes"] * (2 + optimizer)
            self.memory_bytes[place] += problem["micro_batches"] * operator["output_bytes"]
        slowest = max(compute_s + receive_s)
        self.objective = sum(compute_s) + sum(receive_s) + (problem["micro_batches"] - 1) * slowest
        budgets = [device["memory_bytes"] for device in problem["devices"]]
        self.fits = all(held <= budget for held, budget in zip(self.memory_bytes, budgets, strict=True))


def _sent(problem: Plain, dense_bytes: int, dense_s: Fraction, slowest_s: Fraction) -> tuple[Fraction, Fraction]:
    if problem.get("compression_ratio") is None or slowest_s == 0:
        asked = Fraction(1)
        if problem.get("compression_ratio") is None:
            return Fraction(dense_bytes), asked
    else:
        share = Fraction(problem["codec_bytes_per_kept_element"]) / Fraction(problem.get("element_bytes", 4))
        asked = max(Fraction(1), share * Fraction(problem["compression_ratio"]) * dense_s / slowest_s)
    kept = math.ceil(Fraction(dense_bytes) / Fraction(problem.get("element_bytes", 4)) / asked)
    wire = kept * Fraction(problem["codec_bytes_per_kept_element"])
    return (Fraction(dense_bytes), Fraction(1)) if wire >= dense_bytes else (wire, asked)


def check(problem: Plain, plan: Plain) -> Judged:
    """Assert everything that the contract says about a plan of any method."""
    devices = [device["name"] for device in problem["devices"]]
    judged = Judged(problem, plan["placement"])
    assert list(plan["placement"]) == [operator["name"] for operator in problem["operators"]]
    assert set(plan["placement"].values()) <= set(devices)
    assert plan["objective"] == _close(judged.objective)
    assert plan["feasible"] == judged.fits
    found = {(link["from"], link["to"]): link for link in plan["links"]}
    assert len(found) == len(plan["links"])
    assert list(found) == sorted(judged.links, key=lambda pair: (devices.index(pair[0]), devices.index(pair[1])))
    for pair, (wire, ratio) in judged.links.items():
        assert found[pair]["bytes"] == _close(wire), pair
        assert found[pair]["ratio"] == _close(ratio), pair
    assert sorted(name for cluster in plan["clusters"] for name in cluster) == sorted(devices)
    if plan["lower_bound"] is not None:
        assert 0 <= plan["lower_bound"] <= plan["objective"]
    return judged


def best(problem: Plain) -> Fraction | None:
    """Return the objective of the best placement that fits, by enumeration; None: none fits."""
    names = [operator["name"] for operator in problem["operators"]]
    devices = [device["name"] for device in problem["devices"]]
    found = None
    for choice in itertools.product(devices, repeat=len(names)):
        judged = Judged(problem, dict(zip(names, choice, strict=True)))
        if judged.fits and (found is None or judged.objective < found):
            found = judged.objective
    return found


class _close:
    """Equal to a float up to rounding."""

    def __init__(self, exact: Fraction) -> None:
        self.exact = exact

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, int | float)
        return abs(Fraction(other) - self.exact) <= abs(self.exact) * Fraction(1, 10**9)

    def __repr__(self) -> str:
        return f"about {float(self.exact)!r}"
