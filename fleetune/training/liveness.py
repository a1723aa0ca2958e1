"""Heartbeats of the workers, what the coordinator concludes from them, and how long it waits for answers.

A device is named only for its own faults: silence, or work without progress. A lost message is attributed to its link,
and a device that waits for others is never named for the delay.

Silence alone ends nothing. A device that was not heard within its limit, or whose connection has ended, is asked for a
sign of life. It is lost if it gives none within a second limit, while another device is heard: if none is, the network
of this machine is at fault, and that is waited for longer.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from fleetune.errors import Refused
from fleetune.links.endpoint import Endpoint
from fleetune.monitoring import FailureDetector, SilenceRule
from fleetune.monitoring.failure_detector import SILENT, STUCK
from fleetune.recovery import protocol as p
from fleetune.recovery import state as phases
from fleetune.recovery.state import OWED, State
from fleetune.training.checkpoints import SAVING_AT_STOP_S, SAVING_S
from fleetune.training.exchange import Exchange

BEAT_S = 0.25
FAST_BEATS, FAST_BEAT_S = 10, 0.05
"""The first beats are frequent, since they measure the clocks before the first round."""
COORDINATOR_TIMEOUT_S = 60.0
LOADING, COMPUTING, SAVING, WAITING = "loading", "computing", "saving", "waiting"
SILENCE_S = 10.0
"""Longest silence of a device that loads or saves, and of all devices at once."""
SILENCE = SilenceRule(activities=(COMPUTING, WAITING), gaps=3.0, floor_s=0.8, ceiling_s=5.0, mute_s=60.0)
"""Longest silence of any other device. Confirmed within 2 s where beats come in time."""
PROBE_S, MAX_PROBE_S = 0.8, 5.0
"""A device has so long to answer when it is asked, or as long as its longest gap between beats, within these."""
DOWN_S = 20.0
"""A connection comes back within these seconds, or is given up."""
PARTED_S, MAX_PARTED_S = 2.5, 5.0
"""The same between two devices that both are heard, where it is as long as SILENCE.gaps of their longest gaps between
beats, within these. A device's loss and return take about the first: waiting as long costs at most twice what it would
if one knew whether the connection comes back, and leaves a lost SYN its second."""
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
    link: tuple[str, str] | None = None
    """(Source, target) of a message that was lost, or does not get through, while both live."""


class _LinkReport(NamedTuple):
    """Faults of links as the device at one end sees them."""

    device: str
    lost: Mapping[str, int]
    """Sender -> messages that were lost."""
    down: Mapping[str, float]
    """Peer -> seconds without a connection."""


@dataclass(frozen=True, slots=True)
class _Probe:
    """A question to a silent device for a sign of life."""

    began_s: float
    limit_s: float


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
        self._detector = FailureDetector((), SILENCE_S, clock, limits_s, SILENCE)
        self._probes: dict[str, _Probe] = {}
        self._up: set[str] = set()
        """Devices that this process was connected to when it looked last."""
        self._coordinator = coordinator
        self._beats: dict[str, _BeatState] = {}
        self._names: set[str] = set()
        """All devices that were ever monitored."""
        self._back_s: dict[str, float] = {}
        """Device -> when it came back; nobody could be connected to it before."""
        self._forgiven: dict[tuple[str, str], int] = {}
        """(Sender, receiver) -> messages whose loss has had its consequences."""

    def now_s(self) -> float:
        """Return the clock's time without the periods in which this process itself was suspended."""
        return self._detector.now_s()

    def add_device(self, device: str) -> None:
        """Monitor a device from now on."""
        self._detector.add(device)
        if device in self._names:
            self._back_s[device] = self.now_s()
        self._names.add(device)
        self._forgiven = {link: count for link, count in self._forgiven.items() if link[1] != device}

    def remove_device(self, device: str) -> None:
        """Listen to a device no more; what others say of their links to it counts for nothing."""
        self._detector.remove(device)
        self._beats.pop(device, None)
        self._probes.pop(device, None)
        self._up.discard(device)

    def forgive(self, receiver: str, lost: Mapping[str, Any]) -> None:
        """Count these losses no more: what they belonged to is run again. lost: as in a beat of the receiver.

        Refused if it cannot be read.
        """
        try:
            self._forgiven |= {(str(sender), receiver): int(count) for sender, count in lost.items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise Refused(f"device {receiver} counts lost messages in words that cannot be read ({error})") from None

    def record_beat(self, device: str, header: Mapping[str, Any], at_s: float) -> float:
        """Record a beat that arrived at `at_s`; return its send time by the sender's clock. Refused if malformed."""
        try:
            beat = _parse_beat(header)
            strangers = {beat.waits_for, *beat.lost, *beat.down} - {"", self._coordinator, *self._names}
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

    def silent(self, down_here: Mapping[str, float]) -> tuple[str, ...]:
        """Return devices to be asked for a sign of life, which are not yet. down_here: of the coordinator's links."""
        up = {device for device in self._detector.devices if device not in down_here}
        for device in self._up - up:
            if device in self._detector.devices:
                self._detector.suspect(device)
        self._up = up
        return tuple(device for device in self._silences_s() if device not in self._probes)

    def begin_probe(self, device: str) -> None:
        """Count from now how long a device takes to give a sign of life."""
        limit_s = min(MAX_PROBE_S, max(PROBE_S, self._detector.longest_gap_s(device)))
        self._probes[device] = _Probe(self.now_s(), limit_s)

    def record_answer(self, device: str) -> None:
        """Record a sign of life that a device gave when it was asked."""
        if device in self._probes:
            self._detector.sign_of_life(device)

    def heard_again(self) -> tuple[str, ...]:
        """Return devices that were asked and have given a sign of life since; they are told once."""
        silent = self._silences_s()
        found = tuple(device for device in self._probes if device not in silent)
        for device in found:
            del self._probes[device]
        return found

    def find_fault(self, lost_here: Mapping[str, int], down_here: Mapping[str, float]) -> Fault | None:
        """Return the current fault, judged by the beats and the coordinator's own links; None if there is none."""
        suspicions = self._detector.suspicions()
        fault = self._confirmed({each.device: each.since_s for each in suspicions if each.kind == SILENT})
        if fault is not None:
            return fault
        reports = [_LinkReport(self._coordinator, lost_here, down_here)]
        reports += [_LinkReport(device, beat.lost, beat.down) for device, beat in self._beats.items()]
        members = {self._coordinator, *self._detector.devices}
        for report in reports:
            for sender, whole in report.lost.items():
                count = whole - self._forgiven.get((sender, report.device), 0)
                if count > 0 and sender in members:
                    why = f"{count} message{' was' if count == 1 else 's were'} lost when the connection broke"
                    self._forgiven[sender, report.device] = whole  # it is told once
                    said = f"link {sender}>{report.device}: {why}{self._own_stall()}"
                    return Fault("", said, (sender, report.device))
        silent = {each.device for each in suspicions if each.kind == SILENT}
        heard = set(self._detector.devices) - silent - self._probes.keys()
        for report in reports:
            for peer, seconds in report.down.items():
                since_s = self.now_s() - self._back_s.get(peer, -math.inf)
                limit_s = self._parted_s(report.device, peer) if {report.device, peer} <= heard else DOWN_S
                if min(seconds, since_s) > limit_s and peer in members:
                    why = f"link {report.device}>{peer}: there is no connection for {seconds:.0f} s"
                    return Fault("", why, (report.device, peer))
        for suspicion in suspicions:
            if suspicion.kind == STUCK:
                doing, since_s = suspicion.doing, suspicion.since_s
                return Fault(suspicion.device, f"is stuck: it has made no progress in {doing} for {since_s:.0f} s")
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

    def _silences_s(self) -> dict[str, float]:
        """Return silent devices -> seconds since their last beat."""
        return {each.device: each.since_s for each in self._detector.suspicions() if each.kind == SILENT}

    def _parted_s(self, *devices: str) -> float:
        """Return how long two devices that are heard may have no connection."""
        longest_s = max(self._detector.longest_gap_s(device) for device in devices)
        return min(MAX_PARTED_S, max(PARTED_S, SILENCE.gaps * longest_s))

    def _confirmed(self, silent: Mapping[str, float]) -> Fault | None:
        """Return the fault that is certain now. silent: devices -> seconds since their last beat."""
        now_s = self.now_s()
        for device, since_s in silent.items():
            probe = self._probes.get(device)
            if probe is None or now_s - probe.began_s <= probe.limit_s:
                continue
            others = [each for each in self._detector.devices if each != device]
            if any(self._detector.last_sign_s(each) > probe.began_s for each in others):
                more = [each for each in silent if each != device]
                also = f"; so is {', '.join(more)}" if more else ""
                return Fault(device, f"is silent for {since_s:.1f} s and gave no sign of life when asked{also}")
            if min(silent.values()) > SILENCE_S and len(silent) == len(self._detector.devices):
                if not others:
                    return Fault(device, f"is silent for {since_s:.1f} s and gave no sign of life when asked")
                names, none_s = ", ".join(silent), min(silent.values())
                said = f"none of the devices {names} was heard for {none_s:.0f} s; check this machine's network"
                return Fault("", said)
        return None

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


MIN_PATIENCE_S, PATIENCE_ROUNDS = 120.0, 50.0
"""Longest wait for a device's part of a round: so many seconds, or forecast rounds."""
PATIENCE_AVERAGES = 5.0
"""Forecast averages over lanes that are waited for beside that, where one comes before the answer."""


class Patience:
    """Measures how long a phase lasts."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._waits_for: tuple[Any, ...] = ()
        self._since_s = 0.0

    def overdue(self, state: State, round_s: float, average_s: float = 0.0) -> p.Overdue | None:
        """Return what the conductor is told once answers take too long.

        round_s: the forecast duration of a round. average_s: that of the average which follows the newest commit.
        """
        waits_for = (state.phase, state.attempt, state.history.rounds)
        if waits_for != self._waits_for:
            self._waits_for, self._since_s = waits_for, self._now_s()
        patience_s = _patience_s(state, round_s, average_s)
        if state.phase not in OWED or self._now_s() - self._since_s <= patience_s:
            return None
        self._waits_for = ()
        return p.Overdue(attempt=state.attempt, phase=state.phase, round=state.history.rounds, patience_s=patience_s)


def _patience_s(state: State, round_s: float, average_s: float) -> float:
    if state.phase == phases.FINISHING:
        return SAVING_AT_STOP_S if state.stop else SAVING_S + PATIENCE_AVERAGES * average_s
    patience_s = max(MIN_PATIENCE_S, PATIENCE_ROUNDS * round_s) + PATIENCE_AVERAGES * average_s
    if state.phase == phases.COLLECTING or state.saving is not None:
        patience_s += SAVING_S  # a device that writes a checkpoint ends that before anything else
    return max(LOADING_S, patience_s) if state.phase == phases.MOVING else patience_s
