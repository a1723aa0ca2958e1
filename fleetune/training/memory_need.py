"""The memory of a lost device: how full it is, what it was doing, and what that needs by its profile."""

from fleetune.clock import Clock
from fleetune.contracts.plan import Plan
from fleetune.formatting import gigabytes
from fleetune.launching import Job
from fleetune.program import seats_of
from fleetune.training.device_watch import in_background
from fleetune.training.task import TrainingTask

MEMORY_S, FULL = 0.3, 0.9
"""Longest wait for what the engine of a device that is given up tells of its memory; the share from which it is told.
"""


def describe_fullness(device: str, job: Job) -> str:
    """Return that a device's memory is full, as the end of a clause; empty if it is not, or its engine does not tell in
    time. Short of memory by little, a container reads its own code again and again, and says nothing.
    """
    told = list[float | None]()
    in_background(f"memory-of-{device}", lambda: told.append(job.memory_share())).join(MEMORY_S)
    share = told[0] if told else None
    return f", with {share:.0%} of its memory in use" if share is not None and share >= FULL else ""


def describe_need(task: TrainingTask, plan: Plan, device: str) -> str:
    """Return the end of a sentence about a device that lacks memory for its part of the plan in force."""
    seats = ", ".join(map(str, seats_of(plan, device))) or "no segment"
    needed = Clock(task.fleet, task.profile).memory_bytes(plan, device)
    return (
        f"while training {seats}: by its profile it needs {gigabytes(needed)}; lower training.micro_batch_samples, "
        "give it more memory or leave it out"
    )
