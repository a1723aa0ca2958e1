"""Compute times: interpolation over batch sizes, work that gates leave, and CPU time that encryption takes."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from fleetune.contracts.fleet import Device
from fleetune.contracts.plan import FULL, SKIP, Gate
from fleetune.contracts.profile import Profile
from fleetune.errors import Refused


def interpolate(batch_sizes: Sequence[int], seconds: Sequence[float], samples: int) -> float:
    """Seconds for `samples`, from `seconds` measured at the ascending `batch_sizes`.

    Linear between two sizes, extrapolated along the line through the two nearest sizes, proportional if there is only
    one size. Refused: an extrapolation to a negative time.
    """
    place = bisect_left(batch_sizes, samples)
    if place < len(batch_sizes) and batch_sizes[place] == samples:
        return seconds[place]
    if len(batch_sizes) == 1:
        return seconds[0] * samples / batch_sizes[0]
    right = min(max(place, 1), len(batch_sizes) - 1)
    x0, x1 = batch_sizes[right - 1], batch_sizes[right]
    t0, t1 = seconds[right - 1], seconds[right]
    value = t0 + (t1 - t0) * ((samples - x0) / (x1 - x0))
    if value < 0:
        raise Refused(
            f"times: {samples} samples would take {value:.3g} s on the line through batch sizes {x0} and {x1}; "
            "measure a batch size nearer to it"
        )
    return value


def nanoseconds(seconds: float) -> int:
    """Round seconds to whole nanoseconds, the unit of the simulation."""
    return round(seconds * 1e9)


RemainingShares = Mapping[str, tuple[tuple[float, float], ...]]
"""Unit -> per micro-batch (share of its forward, share of its backward)."""


def remaining_shares(gates: Iterable[Gate], profile: Profile) -> dict[str, tuple[tuple[float, float], ...]]:
    """Shares of the work that gates leave (D2FT §2), for every unit with a gated subnet.

    A skipped subnet runs neither way, a forward-only one only forward; parts of a unit outside all subnets always run.
    Refused: a subnet that the profile does not have.
    """
    subnets = {subnet.name: subnet for subnet in profile.subnets}
    lost: dict[str, list[list[float]]] = {}
    for gate in gates:
        if gate.subnet not in subnets:
            raise Refused(f"plan: gate of {gate.subnet}: the profile has no such subnet; profile with scores")
        for part in subnets[gate.subnet].parts:
            rows = lost.setdefault(part.unit, [[0.0, 0.0] for _ in gate.operations])
            for row, operation in zip(rows, gate.operations, strict=True):
                row[0] += part.share * (operation == SKIP)
                row[1] += part.share * (operation != FULL)
    return {unit: tuple((max(0.0, 1 - f), max(0.0, 1 - b)) for f, b in rows) for unit, rows in lost.items()}


def lost_s_per_byte(device: Device) -> float:
    """Compute seconds that a device loses per byte sent or received.

    A worker computes with t threads, and a thread of the link encrypts beside them, `c = link_cpu_s_per_byte` processor
    seconds a byte. Under `cores` for all of them (a container's quota, or a small machine) each thread gets
    min(1, cores / (t + 1)) of a core while the link is at work, as the cores are dealt evenly, so the link is at work
    for c max(1, (t + 1) / cores) seconds a byte. Meanwhile every computing thread gets c processor seconds done, for
    which it would have needed c max(1, t / cores) alone. The difference is lost:

    - a core more than computing threads: nothing, each thread has its own;
    - as many cores as computing threads: c / t;
    - one thread on half a core: 2c, every processor second takes two; on 1.5 cores: c (2 / 1.5 - 1).

    Nothing is lost where an accelerator computes, nor on an emulated device of the process launcher: that holds only
    the computing thread to its pace (`fleetune.launching.process_limits`), and the link works beside it on the
    machine's own cores.
    """
    if device.accelerator != "cpu" or (device.emulated and device.launcher == "process"):
        return 0.0
    busy = max(1.0, (device.threads + 1) / device.cores)
    alone = max(1.0, device.threads / device.cores)
    return device.link_cpu_s_per_byte * (busy - alone)
