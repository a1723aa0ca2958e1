"""A plan as text: for terminals, and for golden files whose diff is the review."""

from fleetune.contracts.plan import Plan, PlanResult
from fleetune.drawing.quantities import seconds


def plan_text(plan: Plan | PlanResult) -> str:
    """A headline, then a line per segment: units, warm-up, samples of each device; explicit orders after that."""
    result = plan if isinstance(plan, PlanResult) else None
    core = plan.plan if isinstance(plan, PlanResult) else plan
    lines = [f"{core.strategy}: {core.micro_batches} micro-batches of {core.micro_batch_samples} samples"]
    if result is not None:
        lines[0] += f", a round takes {seconds(result.objective)}"
        if result.lower_bound is not None:
            lines[0] += f" (no plan takes less than {seconds(result.lower_bound)})"
    table = [
        (
            f"{lane.name}/{index}",
            span_text(segment.units),
            f"warm-up {segment.warmup}",
            ", ".join(f"{share.device} {share.samples}" for share in segment.shares),
        )
        for lane in core.lanes
        for index, segment in enumerate(lane.segments)
    ]
    widths = [max(len(row[k]) for row in table) for k in range(3)]
    lines += [
        "  " + "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[3]]) for row in table
    ]
    lines += [f"  order of {order.device}: {' '.join(order.actions)}" for order in core.order]
    return "\n".join(lines) + "\n"


def span_text(units: tuple[str, ...]) -> str:
    """`embed .. layer.3 (5 units)`"""
    if len(units) == 1:
        return f"{units[0]} (1 unit)"
    return f"{units[0]} .. {units[-1]} ({len(units)} units)"
