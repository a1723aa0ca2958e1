"""What plans anew with gates or codecs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fleetune.contracts.plan import Plan
from fleetune.contracts.subnet import Subnet, SubnetPart
from fleetune.planning.revision import Reviser
from fleetune.planning.strategy import Problem
from tests.support.training.gates import GATES
from tests.support.training.lost_lanes import TRAINING
from tests.support.training.runs import Prepared, training_task

OPTIONS: dict[str, dict[str, Any]] = {
    "d2ft": {"full": 1, "forward_only": 1},
    "fusionllm": {"compression_ratio": 8.0, "compression_feedback": True},
}
VALUE_BYTES = 24 * 32 * 8
"""Of one sample between two blocks."""


def reviser_of(ready: Prepared, made: Plan, folder: Path) -> Reviser:
    """Return what plans for the devices that are left, by scores of heads and bytes of values."""
    task = training_task(ready, made, TRAINING, folder)
    sized = tuple(replace(u, output_bytes=VALUE_BYTES, gradient_bytes=VALUE_BYTES) for u in task.profile.units)
    subnets = tuple(
        Subnet(
            name=name,
            parts=(SubnetPart(unit=name.split("#")[0], share=0.4),),
            weight_magnitude=1.0 + number,
            gradient_magnitude=2.0 - number / 4,
            fisher=tuple(float((5 * m + 3 * number) % 7) for m in range(made.micro_batches)),
        )
        for number, name in enumerate(f"bert.encoder.layer.{name}" for name in GATES)
    )
    profile = replace(task.profile, units=sized, subnets=subnets)
    options = OPTIONS[made.strategy]
    return Reviser(problem=Problem.of(replace(task.plan, options=options), task.fleet, profile, ready.seed))
