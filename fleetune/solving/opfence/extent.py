"""How large a problem may be: its times, bytes and tables must be numbers that this machine can compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetune.errors import Refused

if TYPE_CHECKING:
    from fleetune.solving.opfence.problem import Problem

MOST_S = 1e18
"""Of everything one after another over the slowest link; more is a slip of units."""
MOST_BYTES = 2**62
"""Of all that is kept in memory."""
MOST_MICRO_BATCHES = 1_000_000_000
MOST_PLACES = 4_000_000
"""Operators times devices."""


def prove_extent(problem: Problem, alpha_s: float, beta_s_per_byte: float) -> None:
    """Refuse what cannot be computed with, naming the largest part; alpha and beta: of the slowest links."""
    operators, devices = problem.operators, problem.devices
    if problem.micro_batches > MOST_MICRO_BATCHES:
        raise Refused(f"micro_batches: {problem.micro_batches} is above {MOST_MICRO_BATCHES}; give fewer, larger ones")
    if len(operators) * len(devices) > MOST_PLACES:
        raise Refused(
            f"operators: {len(operators)} on {len(devices)} devices are more than {MOST_PLACES} places; join operators"
        )
    outputs = sum(operator.output_bytes for operator in operators)
    kept = {
        "param_bytes": (2 + problem.optimizer_bytes_per_param_byte) * sum(x.param_bytes for x in operators),
        "output_bytes": 1.0 * problem.micro_batches * outputs,
    }
    _below(MOST_BYTES, "bytes", kept)
    rounds = problem.micro_batches * len(devices)
    taken = {
        "flops_per_s": sum(x.flops for x in operators) / min(x.flops_per_s for x in devices) * rounds,
        "alpha_s": alpha_s * len(operators) * rounds,
        "beta_s_per_byte": beta_s_per_byte * outputs * rounds,
    }
    _below(MOST_S, "s", taken)


def _below(most: float, unit: str, parts: dict[str, float]) -> None:
    if not sum(parts.values()) <= most:
        field = max(parts, key=lambda name: parts[name])
        raise Refused(
            f"{field}: all together come to {parts[field]:.3g} {unit}, beyond the {most:.3g} {unit} that can be "
            "computed with; check the unit"
        )
