"""Memory of opfence plans: messages for infeasible problems, and packings where no contiguous partition fits."""

import numpy as np

from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.instance import Instance, Placement, required_bytes
from fleetune.solving.validation import plural

HINT = "split it, keep fewer micro-batches at a time or add a device with more memory"


def infeasibility_reason(instance: Instance) -> str | None:
    """Return why no placement fits, judged by sizes alone, or None: the largest operator, then the total."""
    problem = instance.problem
    devices, operators = problem.devices, problem.operators
    roomiest = max(devices, key=lambda device: device.memory_bytes)
    needs = [required_bytes(problem, x.param_bytes, x.output_bytes) for x in operators]
    largest = max(range(instance.operators), key=needs.__getitem__)
    room = roomiest.memory_bytes
    if needs[largest] > room:
        return (
            f"operator {operators[largest].name} needs {needs[largest]} bytes alone (parameters with gradients and "
            f"optimizer state, outputs of {plural(instance.micro_batches, 'micro-batch')}); device "
            f"{roomiest.name}, the roomiest, has {room} and lacks {needs[largest] - room}; {HINT}"
        )
    total = required_bytes(problem, sum(x.param_bytes for x in operators), sum(x.output_bytes for x in operators))
    have = sum(device.memory_bytes for device in devices)
    if total > have:
        return (
            f"all operators with gradients, optimizer state and outputs need {total} bytes, all devices together have "
            f"{have} and lack {total - have}; device {roomiest.name}, the roomiest, has {room}, operator "
            f"{operators[largest].name}, the largest, needs {needs[largest]}; add memory, or keep fewer micro-batches "
            "at a time"
        )
    return None


def packing_failure(instance: Instance, proven: bool, timed_out: bool = False) -> str:
    """Describe the operator that lacks least memory if the largest are placed first.

    timed_out: a time limit ended the search for a packing.
    """
    left, first = instance.budget_bytes.copy(), None
    for operator in np.argsort(-instance.memory_bytes, kind="stable").tolist():
        device = int(left.argmax())
        left[device] -= instance.memory_bytes[operator]
        if left[device] < 0 and first is None:
            first = operator, device, -left[device]
    assert first is not None, "only asked where nothing fits"
    operator, device, missing = first
    how = "no placement fits all memories"
    if not proven:
        how = f"no placement was found{' in the time given' if timed_out else ''} that fits all memories"
    hint = f"give more time, or {HINT}" if timed_out and not proven else HINT
    return (
        f"{how}: with the largest operators placed first, operator {instance.problem.operators[operator].name} needs "
        f"{instance.memory_bytes[operator]:.0f} bytes and device "
        f"{instance.problem.devices[device].name}, which has most left, lacks {missing:.0f} of them; {hint}"
    )


def memory_violation(instance: Instance, placement: Placement) -> str:
    """Name the device that lacks most memory and how much; empty if everything fits."""
    lacks = instance.missing_bytes(placement)
    worst = max(range(instance.devices), key=lacks.__getitem__)
    if lacks[worst] <= 0:
        return ""
    device = instance.problem.devices[worst]
    count = int((placement == worst).sum())
    return (
        f"device {device.name} lacks {lacks[worst]} bytes for {plural(count, 'operator')} "
        f"({device.memory_bytes + lacks[worst]} of {device.memory_bytes})"
    )


MAX_DETERMINISTIC_S = 5.0
"""Deterministic solver seconds without a time limit."""
MIN_SOLVER_S = 0.1
"""Minimum solver seconds."""
MAX_SOLVER_PAIRS = 50_000
"""Limit of operators times devices for the constraint solver."""


def pack(instance: Instance, deadline: Deadline = NO_DEADLINE) -> tuple[Placement | None, bool]:
    """Return a placement that fits, or None, and whether that is proven.

    First fit decreasing, then a constraint solver until the deadline.
    """
    placement = greedy_packing(instance)
    if placement is not None:
        return placement, True
    if instance.operators * instance.devices > MAX_SOLVER_PAIRS:
        return None, False
    return _solve_packing(instance, deadline)


def greedy_packing(instance: Instance) -> Placement | None:
    """Return a placement found by first fit decreasing, or None, which proves nothing."""
    for tight in (True, False):
        placement = _first_fit_decreasing(instance, tight)
        if placement is not None and instance.fits(placement):
            return placement
    return None


def _first_fit_decreasing(instance: Instance, tight: bool) -> Placement | None:
    left = instance.budget_bytes.copy()
    found = np.empty(instance.operators, np.int64)
    for operator in np.argsort(-instance.memory_bytes, kind="stable").tolist():
        need = instance.memory_bytes[operator]
        after = left - need
        if after.max() < 0:
            return None
        device = int(np.where(after < 0, np.inf, after).argmin()) if tight else int(after.argmax())
        found[operator] = device
        left[device] -= need
    return found


def _solve_packing(instance: Instance, deadline: Deadline) -> tuple[Placement | None, bool]:
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    # Rounded up: a packing of these fits the devices; whole numbers stay exact.
    need = [int(np.ceil(x)) for x in instance.memory_bytes.tolist()]
    whole = all(x == y for x, y in zip(need, instance.memory_bytes.tolist(), strict=True))
    on = [[model.new_bool_var("") for _ in range(instance.devices)] for _ in need]
    for places in on:
        model.add_exactly_one(places)
    for device, budget in enumerate(instance.problem.devices):
        model.add(sum(n * places[device] for n, places in zip(need, on, strict=True)) <= budget.memory_bytes)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    if deadline.limited:
        solver.parameters.max_time_in_seconds = max(deadline.left_s(), MIN_SOLVER_S)
    else:
        solver.parameters.max_deterministic_time = MAX_DETERMINISTIC_S
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, whole and status == cp_model.INFEASIBLE
    placement = np.array([next(d for d, x in enumerate(places) if solver.value(x)) for places in on], np.int64)
    return (placement, True) if instance.fits(placement) else (None, False)
