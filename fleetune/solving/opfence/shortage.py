"""Why nothing fits: the sentence of an infeasible problem, or of a plan that ignored the memories."""

import numpy as np

from fleetune.solving.opfence.case import Case, Place, kept_bytes
from fleetune.solving.proofs import counted

HINT = "split it, keep fewer micro-batches at a time or add a device with more memory"


def shortage(case: Case) -> str | None:
    """What no placement gets round: an operator that no device holds, or all operators against all devices."""
    problem = case.problem
    devices, operators = problem.devices, problem.operators
    roomiest = max(devices, key=lambda device: device.memory_bytes)
    needs = [kept_bytes(problem, x.param_bytes, x.output_bytes) for x in operators]
    largest = max(range(case.operators), key=needs.__getitem__)
    room = roomiest.memory_bytes
    if needs[largest] > room:
        return (
            f"operator {operators[largest].name} needs {needs[largest]} bytes alone (parameters with gradients and "
            f"optimizer state, outputs of {counted(case.rounds, 'micro-batch').replace('batchs', 'batches')}); device "
            f"{roomiest.name}, the roomiest, has {room} and lacks {needs[largest] - room}; {HINT}"
        )
    total = kept_bytes(problem, sum(x.param_bytes for x in operators), sum(x.output_bytes for x in operators))
    have = sum(device.memory_bytes for device in devices)
    if total > have:
        return (
            f"all operators with gradients, optimizer state and outputs need {total} bytes, all devices together have "
            f"{have} and lack {total - have}; device {roomiest.name}, the roomiest, has {room}, operator "
            f"{operators[largest].name}, the largest, needs {needs[largest]}; add memory, or keep fewer micro-batches "
            "at a time"
        )
    return None


def unpacked(case: Case, proven: bool, hurried: bool = False) -> str:
    """Where the sizes alone do not say it: what lacks least when the largest operators are dealt first.

    hurried: a time limit ended the search for one.
    """
    left, first = case.budget_bytes.copy(), None
    for operator in np.argsort(-case.memory_bytes, kind="stable").tolist():
        device = int(left.argmax())
        left[device] -= case.memory_bytes[operator]
        if left[device] < 0 and first is None:
            first = operator, device, -left[device]
    assert first is not None, "only asked where nothing fits"
    operator, device, missing = first
    how = "no placement fits all memories"
    if not proven:
        how = f"no placement was found{' in the time given' if hurried else ''} that fits all memories"
    hint = f"give more time, or {HINT}" if hurried and not proven else HINT
    return (
        f"{how}: with the largest operators placed first, operator {case.problem.operators[operator].name} needs "
        f"{case.memory_bytes[operator]:.0f} bytes and device {case.problem.devices[device].name}, which has most left, "
        f"lacks {missing:.0f} of them; {hint}"
    )


def lacking(case: Case, place: Place) -> str:
    """Which device a placement asks too much of, and how much; empty where all fits."""
    lacks = case.lacks(place)
    worst = max(range(case.devices), key=lacks.__getitem__)
    if lacks[worst] <= 0:
        return ""
    device = case.problem.devices[worst]
    count = int((place == worst).sum())
    return (
        f"device {device.name} lacks {lacks[worst]} bytes for {counted(count, 'operator')} "
        f"({device.memory_bytes + lacks[worst]} of {device.memory_bytes})"
    )
