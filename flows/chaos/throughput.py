"""The throughput of a training with faults, relative to what the devices that were left could give.

The intervals between two commits are added up: from the first commit to the last, only rounds that were not committed
before. An undisturbed interval is one in which the event log has nothing but commits and beats, and no fault happened
in its round or the one before. Its mean length is what the devices of a plan can give: those of the training without
faults count where its plan ran, checkpoints included, and otherwise those of the training with faults. A plan that no
round ran undisturbed is trained by itself afterwards; one that cannot be counts as the fastest one, which makes the
ratio smaller.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.monitoring import Event
from fleetune.monitoring.event_log import BEATS, COMMITTED, RESUMING, STARTED


class Interval(NamedTuple):
    """The time from one commit to that of the next round."""

    devices: tuple[str, ...]
    """Of the plan that the round was committed by."""
    seconds: float
    disturbed: bool
    restarted: bool
    """True if the coordinator was started meanwhile."""
    round: int
    """That was committed at its end."""


@record
class Throughput:
    """What came of the seconds from the first commit to the last."""

    ratio: float
    """Seconds that the rounds take undisturbed, each by the plan that it was committed by, over those that passed."""
    ratio_of_devices: float
    """The same without the intervals in which the coordinator ended and was started again, with all its devices."""
    lost_s: float
    """The difference of these seconds."""
    lost_s_per_fault: float
    """Without those intervals, for each fault of a device."""
    pace: float = 1.0
    """Undisturbed intervals of the training with faults over those without, by the same plans: what a machine that
    others share was slower (above 1), or faults that leave something behind."""
    ratio_at_pace: float = 1.0
    """`ratio_of_devices`, beside the undisturbed intervals of the training with faults itself."""


def read_events(path: Path) -> list[Event]:
    """Return the events of a log; lines that a killed writer could not finish are passed over."""
    found = []
    for line in filter(None, path.read_bytes().split(b"\n")):
        try:
            found.append(json_io.parse(Event, line, str(path)))
        except Refused:
            continue
    return found


def exact_rounds(events: Iterable[Event], devices: Sequence[str], rounds: int) -> int:
    """Return how many rounds were trained by no other plan than the first one, on these devices."""
    others = (each.round for each in events if each.event == RESUMING and each.devices != tuple(devices))
    return min((rounds, *others))


def intervals(events: Iterable[Event], devices: Sequence[str], struck: Collection[int] = ()) -> Iterator[Interval]:
    """Yield the times between commits of rounds that were not committed before.

    devices: of the first plan, which a coordinator begins with whenever it is started. struck: rounds that a device had
    begun last when a fault befell it.
    """
    current, newest, last_s = tuple(devices), -1, None
    disturbed = restarted = False
    for event in events:
        if event.event == COMMITTED and event.round > newest:
            if last_s is not None:
                at_fault = disturbed or not {event.round - 1, event.round}.isdisjoint(struck)
                yield Interval(current, event.at_s - last_s, at_fault, restarted, event.round)
            newest, last_s = event.round, event.at_s
            disturbed = restarted = False
        elif event.event != BEATS:
            disturbed = True
            restarted |= event.event == STARTED
            current = tuple(devices) if event.event == STARTED else event.devices or current


def never_undisturbed(whole: Iterable[Interval], met: Iterable[Interval]) -> list[tuple[str, ...]]:
    """Return the devices of the plans that ran no undisturbed round in either training, each once."""
    both = (*whole, *met)
    known = {each.devices for each in both if not each.disturbed}
    return list(dict.fromkeys(each.devices for each in both if each.devices not in known))


def throughput(
    whole: Sequence[Interval], met: Sequence[Interval], faults: int, others: Sequence[Interval] = ()
) -> Throughput | None:
    """Return the throughput of the training that met faults; None if no round of the other one was undisturbed.

    faults: number of those that befell devices. others: of trainings by the plans that ran no undisturbed round.
    """
    alone = (*others, *whole)
    given = _given(alone, met)
    if not given:
        return None
    of_devices, at_pace = (
        [pair for pair, each in zip(pairs, met, strict=True) if not each.restarted]
        for pairs in (given, _given(met, met, otherwise=alone))
    )
    return Throughput(
        ratio=_ratio(given),
        ratio_of_devices=_ratio(of_devices),
        lost_s=_passed_s(given) - _could_s(given),
        lost_s_per_fault=(_passed_s(of_devices) - _could_s(of_devices)) / max(1, faults),
        pace=_pace(whole, met),
        ratio_at_pace=_ratio(at_pace),
    )


def _pace(whole: Sequence[Interval], met: Sequence[Interval]) -> float:
    """Return the undisturbed seconds of `met` over what `whole` needs for them; 1 if no plan ran so in both."""
    could_s = _undisturbed_s(whole)
    both = [(could_s[each.devices], each.seconds) for each in met if not each.disturbed and each.devices in could_s]
    return 1 / _ratio(both)


def lost_by_fault(
    whole: Sequence[Interval], met: Sequence[Interval], struck: Mapping[int, int], others: Sequence[Interval] = ()
) -> dict[int, float]:
    """Return fault -> seconds that the disturbed intervals took longer than the devices of their plans need.

    others: as of `throughput`. struck: fault -> round that its device had begun last. An interval counts for the newest
    fault of the rounds up to the one that ended it, so that what follows a fault counts for it until the next one.
    """
    lost = dict.fromkeys(struck, 0.0)
    for each, (could_s, seconds) in zip(met, _given((*others, *whole), met), strict=False):
        before = [fault for fault, round in struck.items() if round <= each.round]
        if each.disturbed and before:
            lost[max(before, key=lambda fault: (struck[fault], fault))] += seconds - could_s
    return lost


def _given(
    told: Sequence[Interval], met: Sequence[Interval], otherwise: Sequence[Interval] | None = None
) -> list[tuple[float, float]]:
    """(what the devices of its plan need, seconds) of each interval; empty if no plan ran an undisturbed round.

    told: tells what a plan's devices need; of other plans `otherwise` does, by default `met` itself.
    """
    could_s = {**_undisturbed_s(met if otherwise is None else otherwise), **_undisturbed_s(told)}
    if not could_s:
        return []
    fastest_s = min(could_s.values())
    return [(could_s.get(each.devices, fastest_s), each.seconds) for each in met]


def _undisturbed_s(found: Sequence[Interval]) -> dict[tuple[str, ...], float]:
    """Return the devices of a plan -> the mean length of its undisturbed intervals."""
    seconds: dict[tuple[str, ...], list[float]] = {}
    for each in found:
        if not each.disturbed:
            seconds.setdefault(each.devices, []).append(each.seconds)
    return {devices: fmean(each) for devices, each in seconds.items()}


def _ratio(given: Sequence[tuple[float, float]]) -> float:
    return _could_s(given) / _passed_s(given) if given else 1.0


def _could_s(given: Sequence[tuple[float, float]]) -> float:
    return sum(could_s for could_s, _ in given)


def _passed_s(given: Sequence[tuple[float, float]]) -> float:
    return sum(passed_s for _, passed_s in given)
