"""Whether a training can go on, judged by the beats of its workers; and if not, who or what is the cause.

A device is named only for what is its own: silence, or work that does not get on. A message that was lost is put down
to its link, and whoever waits for others is never named for it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetune.errors import Refused
from fleetune.monitoring import FailureDetector
from fleetune.monitoring.failure_detector import SILENT
from fleetune.training.beat import COMPUTING, LOADING, SAVING, WAITING
from fleetune.training.saving import SAVING_S

SILENCE_S = 10.0
DOWN_S = 20.0
LOADING_S = 900.0  # weights of a large model come from a disk
COMPUTING_S = 60.0
ROUNDS = 50.0
"""How many times its forecast round a device may compute without an action that ends."""
STOOD_STILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a training cannot go on."""

    device: str
    """Empty where no device is to blame."""
    why: str
    """Follows "device NAME" where there is one."""


@dataclass(frozen=True, slots=True)
class _Beat:
    progress: int
    doing: str
    waits_for: str
    sent_s: float
    lost: Mapping[str, int]
    down: Mapping[str, float]


class Liveness:
    """Hears beats and keeps what they say; the clock is an argument."""

    def __init__(self, coordinator: str, round_s: float, clock: Callable[[], float]) -> None:
        """`round_s`: the forecast time of a round."""
        computing_s = max(COMPUTING_S, ROUNDS * round_s)
        limits_s = {LOADING: LOADING_S, SAVING: SAVING_S, COMPUTING: computing_s}
        self._watch = FailureDetector((), SILENCE_S, clock, limits_s)
        self._coordinator = coordinator
        self._beats: dict[str, _Beat] = {}

    def now_s(self) -> float:
        """The clock, without the time in which this process itself stood still."""
        return self._watch.now_s()

    def joined(self, device: str) -> None:
        """A device takes part from now on."""
        self._watch.add(device)

    def hear(self, device: str, header: Mapping[str, Any], at_s: float) -> float:
        """Take a beat that came at `at_s`; returns when it was sent, by the sender's clock. Refused if it is none."""
        try:
            beat = _beat(header)
            strangers = {beat.waits_for, *beat.lost, *beat.down} - {"", self._coordinator, *self._watch.devices}
            if strangers:  # its words reach people: nothing else may be in them
                raise ValueError(f"{len(strangers)} names that no device has")
            self._watch.beat(device, beat.progress, beat.doing, at_s)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Refused(
                f"device {device} sent a beat that cannot be read ({type(error).__name__}: {error}); "
                "is its version of this program another one?"
            ) from None
        self._beats[device] = beat
        return beat.sent_s

    def fault(self, lost_here: Mapping[str, int], down_here: Mapping[str, float]) -> Fault | None:
        """What is wrong at this moment, by the beats and by the coordinator's own links; None while all is well."""
        concerns = self._watch.suspicions()
        silent = [concern for concern in concerns if concern.kind == SILENT]
        if silent:
            return self._silent([c.device for c in silent], silent[0].since_s)
        links = [(self._coordinator, lost_here, down_here), *((d, b.lost, b.down) for d, b in self._beats.items())]
        for device, lost, _ in links:
            for sender, count in lost.items():
                why = f"{count} message{' was' if count == 1 else 's were'} lost when the connection broke"
                return Fault("", f"link {sender}>{device}: {why}{self._own_stall()}")
        for device, _, down in links:
            for peer, seconds in down.items():
                if seconds > DOWN_S:
                    return Fault("", f"link {device}>{peer}: there is no connection for {seconds:.0f} s")
        for concern in concerns:
            return Fault(
                concern.device, f"is stuck: it has not got on with {concern.doing} for {concern.since_s:.0f} s"
            )
        return None

    def late(self, device: str, kind: str, patience_s: float) -> Fault:
        """Why this device did not say `kind` within the patience: whoever it waits for, in the end, is the cause."""
        chain = [device]
        while (beat := self._beats.get(chain[-1])) is not None and beat.waits_for and chain.count(chain[-1]) == 1:
            chain.append(beat.waits_for)
        last = chain[-1]
        within = f"within {patience_s:.0f} s"
        if len(chain) == 1:
            doing = f" (it is {beat.doing})" if beat else ""
            return Fault(device, f"did not say {kind!r} {within}{doing}")
        waiting = ", which waits for ".join(chain)
        if last in chain[:-1] or last == self._coordinator:
            return Fault("", f"nobody said {kind!r} {within}: {waiting}; a message between them was lost")
        doing = f"{self._beats[last].doing}" if last in self._beats else "not heard"
        return Fault(last, f"keeps the others waiting ({doing}): {device} did not say {kind!r} {within}: {waiting}")

    def _silent(self, devices: Sequence[str], since_s: float) -> Fault:
        first, *more = devices
        if more and len(devices) == len(self._watch.devices):
            names = ", ".join(devices)
            return Fault(
                "", f"none of the devices {names} was heard for {since_s:.0f} s; see to this machine's network"
            )
        others = f"; so is {', '.join(more)}" if more else ""
        return Fault(first, f"is silent for {since_s:.0f} s{others}")

    def _own_stall(self) -> str:
        stall_s = self._watch.longest_stall_s
        return f"; the {self._coordinator} itself stood still for {stall_s:.0f} s" if stall_s > STOOD_STILL_S else ""


def _beat(header: Mapping[str, Any]) -> _Beat:
    """A beat's content, checked: only numbers and short texts are kept."""
    doing, waits_for, sent_s = str(header["doing"]), str(header["waits_for"]), float(header["sent_s"])
    if doing not in (LOADING, COMPUTING, SAVING, WAITING) or not math.isfinite(sent_s):
        raise ValueError(f"doing {doing[:20]!r} at {sent_s}")
    lost = {str(peer): int(count) for peer, count in header["lost"].items()}
    down = {str(peer): float(seconds) for peer, seconds in header["down"].items()}
    return _Beat(int(header["progress"]), doing, waits_for, sent_s, lost, down)
