"""Whether a new measurement replaces the stored fleet: a change is believed once it is measured twice and not by load.

A new fleet means a new plan, and another plan means another training, so noise must not lead to one. Other devices, or
a device with other cores, memory or accelerator, replace the stored fleet at once. Times of links do so only if

- every probe of the link deviates (noise only adds time, so one probe that finds the stored times proves them),
- other programs cannot explain it: a message is longer by more than the share of time that the probing processes
  waited for a core, and more than twice the processor time of its bytes, as two programs on one core's two threads, and
- the measurement before, by another run, found nearly the same.

Rejected: ignoring measurements on a busy machine, which would never believe a slow link of a machine that is always
busy; and wider tolerances, which would hide real changes of the same size on a quiet one.
"""

import math
from collections.abc import Iterable, Mapping
from enum import Enum

from fleetune.contracts.fleet import Fleet, Link
from fleetune.contracts.record import record
from fleetune.discovery.machine import MachineLoad
from fleetune.discovery.measurement import (
    COMPARED_BYTES,
    LinkEvidence,
    Measurement,
    allowed_difference_s,
    message_s,
    same_devices,
    same_link,
    same_link_cpu,
    same_times,
    within_tolerance,
)

MIN_OTHER_CORES = 0.1
"""Cores of other programs below which a machine counts as free: waits are then those of an emulated quota."""
SHARED_CORE_SLOWDOWN = 2.0
"""Factor by which a program computes slower whose core runs another program on its second hardware thread."""


FIELDS = (
    ("cores", "other cores"),
    ("threads", "other threads"),
    ("memory_bytes", "another amount of memory"),
    ("accelerator", "another accelerator"),
    ("launcher", "another launcher"),
    ("engine", "another engine"),
    ("fingerprint", "other hardware, software or limits"),
)
"""Fields of a device that a measurement does not change, and words for a change of each."""


@record
class Verdict:
    """Whether the stored measurement is kept, and why; `why` is empty for one within tolerance."""

    keep: bool
    why: str = ""


class Cause(Enum):
    """Explanation of a deviation from the stored fleet."""

    LOAD = "load"
    NOISE = "noise"
    REAL = "real"


@record
class Deviation:
    """A measured time that differs from the stored one by more than the tolerance."""

    what: str
    """`link desk -> laptop`, or `processor time of desk's links`."""
    log_ratio: float
    """Natural logarithm of new time / stored time."""
    cause: Cause
    load: MachineLoad

    @property
    def text(self) -> str:
        """`38 % slower`, `3.0x slower` or `20 % faster`."""
        ratio = math.exp(abs(self.log_ratio))
        share = ratio - 1 if self.log_ratio > 0 else 1 - 1 / ratio
        amount = f"{ratio:.1f}x" if ratio >= 2 else f"{100 * share:.0f} %"
        return f"{amount} {'slower' if self.log_ratio > 0 else 'faster'}"


def judge(stored: Fleet, new: Measurement, before: Measurement | None, tolerance: float, anew: bool = False) -> Verdict:
    """Decide between the stored fleet and the one that a run measured.

    `before` is the measurement of the run before, if it is known. With `anew` the user asked to measure again, so
    that everything beyond the tolerance is believed.
    """
    if new.fleet.simulated:  # stated, not measured
        return Verdict(keep=stored == new.fleet)
    if not same_devices(stored, new.fleet):
        return Verdict(keep=False, why=_changed_devices(stored, new.fleet))
    if within_tolerance(stored, new.fleet, tolerance):
        return Verdict(keep=True)
    found = deviations(stored, new, tolerance)
    if anew:
        return Verdict(keep=False, why=_listed(found.values()))
    comparable = before is not None and same_devices(stored, before.fleet)
    earlier = deviations(stored, before, tolerance) if before is not None and comparable else {}
    real = [deviation for deviation in found.values() if deviation.cause == Cause.REAL]
    confirmed = [deviation for deviation in real if _agree(deviation, earlier.get(deviation.what))]
    if confirmed:
        so = "so it was" if len(confirmed) == 1 else "so they were"
        return Verdict(keep=False, why=f"{_listed(confirmed)}, and {so} in the run before")
    return Verdict(keep=True, why=" and ".join(_reasons(found.values())))


def deviations(stored: Fleet, new: Measurement, tolerance: float) -> dict[str, Deviation]:
    """what -> deviation, for links and processor times beyond the tolerance; both fleets have the same devices."""
    evidence = {(each.source, each.target): each for each in new.links}
    found = [
        _link_deviation(stored, link, evidence[link.source, link.target], tolerance)
        for link in new.fleet.links
        if not same_link(stored.link(link.source, link.target), link, tolerance)
    ]
    for device in new.fleet.devices:
        old_s, new_s = stored.device(device.name).link_cpu_s_per_byte, device.link_cpu_s_per_byte
        if not same_link_cpu(old_s, new_s, tolerance):
            found.append(_cpu_deviation(device.name, old_s, new_s, evidence, tolerance))
    return {deviation.what: deviation for deviation in found}


def _link_deviation(stored: Fleet, new: Link, evidence: LinkEvidence, tolerance: float) -> Deviation:
    old = stored.link(new.source, new.target)
    ratios = [math.log(message_s(new, size) / message_s(old, size)) for size in COMPARED_BYTES]
    cause = Cause.REAL
    if any(same_times(old, line, tolerance + old.fit_error + line.error) for line in evidence.lines):
        cause = Cause.NOISE
    elif _explained_by_load(stored, old, new, evidence.load, tolerance):
        cause = Cause.LOAD
    what, ratio = f"link {new.source} -> {new.target}", max(ratios, key=abs)
    return Deviation(what=what, log_ratio=ratio, cause=cause, load=evidence.load)


def _explained_by_load(stored: Fleet, old: Link, new: Link, load: MachineLoad, tolerance: float) -> bool:
    """Whether the link may be as stored, had its ends not waited for a core nor shared one."""
    if load.other_cores < MIN_OTHER_CORES:
        return False
    ends = (stored.device(new.source), stored.device(new.target))
    shared_s_per_byte = (SHARED_CORE_SLOWDOWN - 1) * sum(end.link_cpu_s_per_byte for end in ends)
    for size_bytes in COMPARED_BYTES:
        old_s, new_s = message_s(old, size_bytes), message_s(new, size_bytes)
        allowed_s = allowed_difference_s(old, size_bytes, tolerance + old.fit_error + new.fit_error)
        undisturbed_s = (1 - load.waiting) * new_s - shared_s_per_byte * size_bytes
        if undisturbed_s > old_s + allowed_s or new_s < old_s - allowed_s:
            return False
    return True


def _cpu_deviation(
    device: str, old_s: float, new_s: float, evidence: Mapping[tuple[str, str], LinkEvidence], tolerance: float
) -> Deviation:
    load = max((each.load for ends, each in evidence.items() if device in ends), key=lambda load: load.other_cores)
    shared_s = SHARED_CORE_SLOWDOWN * old_s
    explained = load.other_cores >= MIN_OTHER_CORES and (
        old_s < new_s <= shared_s or same_link_cpu(shared_s, new_s, tolerance)
    )
    tiny_s = 1e-12
    return Deviation(
        what=f"processor time of {device}'s links",
        log_ratio=math.log(max(new_s, tiny_s) / max(old_s, tiny_s)),
        cause=Cause.LOAD if explained else Cause.REAL,
        load=load,
    )


def _agree(new: Deviation, before: Deviation | None) -> bool:
    """Whether two deviations show the same change: nearer to each other than either is to the stored time."""
    if before is None or before.cause != Cause.REAL or before.log_ratio * new.log_ratio <= 0:
        return False
    return abs(new.log_ratio - before.log_ratio) < min(abs(new.log_ratio), abs(before.log_ratio))


def _reasons(found: Iterable[Deviation]) -> list[str]:
    """Sentences on deviations that are not believed, by cause."""
    by_cause = {cause: [each for each in found if each.cause == cause] for cause in Cause}
    reasons = []
    if loaded := by_cause[Cause.LOAD]:
        load = max((each.load for each in loaded), key=lambda load: load.other_cores)
        reasons.append(
            f"{_listed(loaded)} while other programs used {load.other_cores:.1f} of {load.cores} "
            f"{'cores' if load.cores > 1 else 'core'}"
        )
    if noisy := by_cause[Cause.NOISE]:
        reasons.append(f"{_listed(noisy)}, but not in every probe")
    if real := by_cause[Cause.REAL]:
        reasons.append(
            f"{_listed(real)}, for the first time; the next run believes it if it measures that again "
            "(--from discover: at once)"
        )
    return reasons


def _listed(found: Iterable[Deviation]) -> str:
    """`link a -> b was 38 % slower`, or `3 links were up to 38 % slower`."""
    by_size = sorted(found, key=lambda each: -abs(each.log_ratio))
    if len(by_size) == 1:
        return f"{by_size[0].what} was {by_size[0].text}"
    what = "links" if all(each.what.startswith("link ") for each in by_size) else "measurements"
    return f"{len(by_size)} {what} were up to {by_size[0].text}"


def _changed_devices(stored: Fleet, new: Fleet) -> str:
    """Which devices are new, gone or different, or which stated properties."""
    before, after = ({device.name: device for device in fleet.devices} for fleet in (stored, new))
    words = [f"device {name} is gone" for name in before if name not in after]
    words += [f"device {name} is new" for name in after if name not in before]
    for name in (name for name in before if name in after):
        changed = [word for field, word in FIELDS if getattr(before[name], field) != getattr(after[name], field)]
        if changed:
            changed = (
                changed[:-1] if len(changed) > 1 and changed[-1] == FIELDS[-1][1] else changed
            )  # follows from those
            words.append(f"device {name} has {' and '.join(changed)}")
    return " and ".join(words) or "the image, the engines, the requested links or the shared machines have changed"
