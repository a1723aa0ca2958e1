"""Heartbeats of the workers, and what the coordinator concludes from them.

A device is named only for its own faults: silence, or work without progress. A lost message is attributed to its link,
and a device that waits for others is never named for the delay.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from fleetune.errors import Refused
from fleetune.links.endpoint import Endpoint
from fleetune.monitoring import FailureDetector
from fleetune.monitoring.failure_detector import SILENT
from fleetune.training.checkpoints import SAVING_S
from fleetune.training.exchange import Exchange

BEAT_S = 0.5
FAST_BEATS, FAST_BEAT_S = 10, 0.05
"""The first beats are frequent, since they measure the clocks before the first round."""
COORDINATOR_TIMEOUT_S = 60.0
LOADING, COMPUTING, SAVING, WAITING = "loading", "computing", "saving", "waiting"
SILENCE_S = 10.0
DOWN_S = 20.0
LOADING_S = 900.0  # weights of a large model come from a disk
COMPUTING_S = 60.0
STUCK_ROUNDS = 50.0
"""A device counts as stuck after this many forecast rounds without a completed action."""
STALL_S = 5.0


class PeriodicThread:
    """Calls `act` at intervals in a thread of its own, until the `with` block ends."""

    def __init__(self, act: Callable[[], None], interval_s: Callable[[], float]) -> None:
        self._act, self._interval_s = act, interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s()):
            self._act()


class Heartbeat:
    """Heartbeats of a worker: its activity, the peer it waits for, and the losses of its links.

    `doing` is set by the compute thread. `abandoned` is called with a sentence once the coordinator has been silent for
    COORDINATOR_TIMEOUT_S: it has ended or cannot be reached, and nothing else would end this process.
    """

    def __init__(
        self,
        exchange: Exchange,
        endpoint: Endpoint,
        coordinator: str,
        abandoned: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.doing = LOADING
        self._exchange, self._endpoint, self._clock = exchange, endpoint, clock
        self._coordinator, self._abandoned = coordinator, abandoned
        self._detector = FailureDetector([coordinator], COORDINATOR_TIMEOUT_S, clock)
        self._progress = self._beats = 0
        exchange.on_progress = self._count_progress

    def running(self) -> PeriodicThread:
        """Return a context in which the worker beats."""
        return PeriodicThread(self.beat, lambda: FAST_BEAT_S if self._beats < FAST_BEATS else BEAT_S)

    def beat(self) -> None:
        """Send the worker's state, and check that the coordinator has not fallen silent."""
        self._beats += 1
        waits_for = self._exchange.waits_for
        state = {
            "progress": self._progress,
            "doing": WAITING if waits_for else self.doing,
            "waits_for": waits_for,
            "sent_s": self._clock(),
            "lost": dict(self._endpoint.lost_from),
            "down": self._endpoint.down_s,
        }
        self._exchange.send_control("beat", state)
        last_arrival_s = self._endpoint.last_arrival_s(self._coordinator)
        if last_arrival_s is not None:
            self._detector.beat(self._coordinator, 0, at_s=last_arrival_s)
        for suspicion in self._detector.suspicions():
            self._abandoned(
                f"nothing was heard from the {self._coordinator} for {suspicion.since_s:.0f} s: "
                "it has ended or cannot reach this device, so the worker ends"
            )

    def _count_progress(self) -> None:
        self._progress += 1


@dataclass(frozen=True, slots=True)
class Fault:
    """Cause that ends a training."""

    device: str
    """Empty if no device is at fault."""
    why: str
    """Sentence that follows "device NAME" if there is one."""


class _LinkReport(NamedTuple):
    """Faults of links as the device at one end sees them."""

    device: str
    lost: Mapping[str, int]
    """Sender -> messages that were lost."""
    down: Mapping[str, float]
    """Peer -> seconds without a connection."""


@dataclass(frozen=True, slots=True)
class _BeatState:
    progress: int
    doing: str
    waits_for: str
    sent_s: float
    lost: Mapping[str, int]
    down: Mapping[str, float]


class Liveness:
    """Collects the workers' beats and finds the device or link at fault; the clock is an argument."""

    def __init__(self, coordinator: str, round_s: float, clock: Callable[[], float]) -> None:
        """round_s: the forecast duration of a round."""
        computing_s = max(COMPUTING_S, STUCK_ROUNDS * round_s)
        limits_s = {LOADING: LOADING_S, SAVING: SAVING_S, COMPUTING: computing_s}
        self._detector = FailureDetector((), SILENCE_S, clock, limits_s)
        self._coordinator = coordinator
        self._beats: dict[str, _BeatState] = {}

    def now_s(self) -> float:
        """Return the clock's time without the periods in which this process itself was suspended."""
        return self._detector.now_s()

    def add_device(self, device: str) -> None:
        """Monitor a device from now on."""
        self._detector.add(device)

    def record_beat(self, device: str, header: Mapping[str, Any], at_s: float) -> float:
        """Record a beat that arrived at `at_s`; return its send time by the sender's clock. Refused if malformed."""
        try:
            beat = _parse_beat(header)
            strangers = {beat.waits_for, *beat.lost, *beat.down} - {"", self._coordinator, *self._detector.devices}
            if strangers:  # names in a beat reach error messages, so only known devices are accepted
                raise ValueError(f"{len(strangers)} names that no device has")
            self._detector.beat(device, beat.progress, beat.doing, at_s)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Refused(
                f"device {device} sent a beat that cannot be read ({type(error).__name__}: {error}); "
                "is its version of this program another one?"
            ) from None
        self._beats[device] = beat
        return beat.sent_s

    def find_fault(self, lost_here: Mapping[str, int], down_here: Mapping[str, float]) -> Fault | None:
        """Return the current fault, judged by the beats and the coordinator's own links; None if there is none."""
        suspicions = self._detector.suspicions()
        silent = [suspicion for suspicion in suspicions if suspicion.kind == SILENT]
        if silent:
            return self._silent([c.device for c in silent], silent[0].since_s)
        reports = [_LinkReport(self._coordinator, lost_here, down_here)]
        reports += [_LinkReport(device, beat.lost, beat.down) for device, beat in self._beats.items()]
        for report in reports:
            for sender, count in report.lost.items():
                why = f"{count} message{' was' if count == 1 else 's were'} lost when the connection broke"
                return Fault("", f"link {sender}>{report.device}: {why}{self._own_stall()}")
        for report in reports:
            for peer, seconds in report.down.items():
                if seconds > DOWN_S:
                    return Fault("", f"link {report.device}>{peer}: there is no connection for {seconds:.0f} s")
        for suspicion in suspicions:
            return Fault(
                suspicion.device,
                f"is stuck: it has made no progress in {suspicion.doing} for {suspicion.since_s:.0f} s",
            )
        return None

    def explain_timeout(self, device: str, kind: str, patience_s: float) -> Fault:
        """Return the fault behind a missing `kind` message: the last device in the chain of those that wait."""
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
        if more and len(devices) == len(self._detector.devices):
            names = ", ".join(devices)
            return Fault("", f"none of the devices {names} was heard for {since_s:.0f} s; check this machine's network")
        others = f"; so is {', '.join(more)}" if more else ""
        return Fault(first, f"is silent for {since_s:.0f} s{others}")

    def _own_stall(self) -> str:
        stall_s = self._detector.longest_stall_s
        return f"; the {self._coordinator} itself stood still for {stall_s:.0f} s" if stall_s > STALL_S else ""


def _parse_beat(header: Mapping[str, Any]) -> _BeatState:
    """Parse and validate a beat's content."""
    doing, waits_for, sent_s = str(header["doing"]), str(header["waits_for"]), float(header["sent_s"])
    if doing not in (LOADING, COMPUTING, SAVING, WAITING) or not math.isfinite(sent_s):
        raise ValueError(f"doing {doing[:20]!r} at {sent_s}")
    lost = {str(peer): int(count) for peer, count in header["lost"].items()}
    down = {str(peer): float(seconds) for peer, seconds in header["down"].items()}
    return _BeatState(int(header["progress"]), doing, waits_for, sent_s, lost, down)
