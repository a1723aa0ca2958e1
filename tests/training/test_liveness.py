"""Heartbeats over real links and by a hand-driven clock, and the device or link that is named for a fault."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fleetune.errors import Refused
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message
from fleetune.links.peer import HEARTBEAT_TIMEOUT_MS
from fleetune.training.checkpoints import SAVING_S
from fleetune.training.exchange import BEAT_ACK, COORDINATOR_ALIVE, Exchange, TransferKey
from fleetune.training.liveness import (
    COORDINATOR_TIMEOUT_S,
    DOWN_S,
    FAST_BEATS,
    LOADING_S,
    MAX_PARTED_S,
    PARTED_S,
    SILENCE_S,
    Fault,
    Heartbeat,
    Liveness,
    PeriodicThread,
)
from tests.support.links.ends import until
from tests.support.monitoring.hand_clock import HandClock
from tests.support.training.endpoints import COORDINATOR, PATIENCE_S, connected

VALUES = {
    "round": 0,
    "lane": "main",
    "segment": 1,
    "step": 0,
    "tensors": [],
    "sent_s": 0.0,
    "attempt": [0, 0],
}


class TimedByHand:
    """An endpoint whose newest message arrives, by a hand-driven clock, at the moment when it is asked for it."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float]) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._seen_s: tuple[float, float] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)

    def last_arrival_s(self, sender: str) -> float | None:
        """Return the arrival of the newest message of the only sender."""
        arrived_s = self._endpoint.last_arrival_s(sender)
        if arrived_s is not None and (self._seen_s is None or self._seen_s[0] != arrived_s):
            self._seen_s = arrived_s, self._clock()
        return None if self._seen_s is None else self._seen_s[1]


class ConnectedWorker:
    """A worker's exchange and heartbeat, and bare links of its coordinator and its peer; the clock is hand-driven."""

    def __init__(self, ends: dict[str, Endpoint]) -> None:
        self.now_s = time.monotonic()
        self.coordinator, self.peer, self.endpoint = ends[COORDINATOR], ends["a"], ends["b"]
        self.exchange = Exchange(self.endpoint, COORDINATOR, torch.device("cpu"))
        self.abandoned: list[str] = []
        self.arrivals: Any = TimedByHand(self.endpoint, lambda: self.now_s)
        self.beat = Heartbeat(self.exchange, self.arrivals, COORDINATOR, self.abandoned.append, lambda: self.now_s)

    def next_message(self) -> Message:
        """Return the next message that the coordinator receives."""
        received = self.coordinator.receive(PATIENCE_S)
        assert received is not None
        return received.message

    def receive_from_coordinator(self, kind: str) -> None:
        """Send a message from the coordinator and wait until it has arrived."""
        before = self.endpoint.last_arrival_s(COORDINATOR)
        self.coordinator.send("b", Message(kind, {}))
        until(lambda: self.endpoint.last_arrival_s(COORDINATOR) != before)
        self.arrivals.last_arrival_s(COORDINATOR)


@pytest.fixture
def worker() -> Iterator[ConnectedWorker]:
    """Worker b, with peer a."""
    with connected((COORDINATOR, "a", "b")) as ends:
        yield ConnectedWorker(ends)


def test_a_beat_carries_the_workers_activity_and_the_peer_it_waits_for(worker: ConnectedWorker) -> None:
    """Bug: a beat said only whether a worker waits, and the first in the list was blamed for the one it waited for."""
    worker.endpoint.wait_connected("a", PATIENCE_S)
    worker.endpoint.wait_connected(COORDINATOR, PATIENCE_S)
    worker.beat.beat()
    first = worker.next_message()
    assert first.kind == "beat"
    plain = {"progress": 0, "doing": "loading", "waits_for": "", "lost": {}, "down": {}, "sent_s": worker.now_s}
    assert first.header == plain
    worker.beat.doing = "computing"
    worker.exchange.on_progress()
    worker.beat.beat()
    assert worker.next_message().header == {**plain, "progress": 1, "doing": "computing"}
    with ThreadPoolExecutor(1) as pool:
        for key, message in (
            (TransferKey("values", 0, "main", 1, 0, "a"), lambda: worker.peer.send("b", Message("values", VALUES))),
            (None, lambda: worker.coordinator.send("b", Message("commit", {}))),
        ):
            waiting = (
                pool.submit(worker.exchange.receive, key)
                if key
                else pool.submit(worker.exchange.recv_control, "commit")
            )
            whom = key.sender if key else COORDINATOR
            header: dict[str, Any] = {}
            while header.get("waits_for") != whom:
                worker.beat.beat()
                header = worker.next_message().header
            assert header == {**plain, "progress": 1, "doing": "waiting", "waits_for": whom}
            message()
            waiting.result(PATIENCE_S)
    worker.beat.beat()
    assert worker.next_message().header == {**plain, "progress": 1, "doing": "computing"}


def test_a_beat_carries_the_losses_of_links(worker: ConnectedWorker) -> None:
    """The next beat reports a message that was lost on its way from a, although b computes and reads nothing."""
    worker.endpoint.wait_connected(COORDINATOR, PATIENCE_S)
    worker.peer.send("b", Message("values", VALUES))
    worker.peer._peers["b"]._sequence += 1  # private: links lose messages at no moment that one can choose
    worker.peer.send("b", Message("values", VALUES))
    until(lambda: worker.endpoint.lost)
    worker.beat.beat()
    assert worker.next_message().header["lost"] == {"a": 1}


def test_a_worker_without_a_coordinator_ends(worker: ConnectedWorker) -> None:
    """Bug: workers in containers outlived a coordinator that was killed, until somebody ended them by hand.

    Any message of the coordinator counts, whether or not the compute thread has time to read it.
    """
    for _ in range(3):
        for _ in range(int(COORDINATOR_TIMEOUT_S)):
            worker.now_s += 1.0
            worker.beat.beat()
        assert worker.abandoned == []
        worker.receive_from_coordinator(COORDINATOR_ALIVE)
    for _ in range(int(COORDINATOR_TIMEOUT_S) + 1):
        worker.now_s += 1.0
        worker.beat.beat()
    assert len(worker.abandoned) == 1
    assert worker.abandoned[0].startswith("nothing was heard from the coordinator for 61 s")


def test_a_worker_that_was_suspended_goes_on(worker: ConnectedWorker) -> None:
    """A frozen worker that continues reads the messages that came meanwhile before it gives up its coordinator."""
    worker.now_s += 50 * COORDINATOR_TIMEOUT_S
    worker.beat.beat()
    assert worker.abandoned == []


def test_beats_come_quickly_at_first_and_end_with_the_block(worker: ConnectedWorker) -> None:
    """The first beats measure clocks; none comes after the block, even if the thread never started."""
    before = threading.enumerate()
    with worker.beat.running():
        for _ in range(FAST_BEATS):
            assert worker.next_message().kind == "beat"
        assert [each.name for each in threading.enumerate() if each not in before] == ["beat"]
    assert not [each for each in threading.enumerate() if each not in before]
    PeriodicThread(worker.beat.beat, lambda: 0.0).__exit__()


def test_answers_to_beats_set_the_clock_offset_of_the_next_round(worker: ConnectedWorker) -> None:
    """Within a round the offset stays, so that rows keep their order; the next round uses the newest measurement."""
    now_s = time.monotonic()
    for ahead_s, at_s in ((500.0, now_s - 3600), (500.25, now_s)):
        times = {"sent_s": at_s, "came_s": at_s + ahead_s, "answered_s": at_s + ahead_s}
        worker.coordinator.send("b", Message(BEAT_ACK, times))
    worker.coordinator.send("b", Message("commit", {}))
    worker.exchange.recv_control("commit")
    assert worker.exchange.offset_s == 0.0
    worker.exchange.start_round(0)
    elapsed_s = time.monotonic() - now_s
    assert 500.25 - elapsed_s / 2 <= worker.exchange.offset_s <= 500.25


DEVICES = ("d0", "d1", "d2")


def beat(waits_for: str = "", doing: str = "computing", **changes: Any) -> dict[str, Any]:
    """Return the content of a worker's beat."""
    state = {"progress": 0, "doing": "waiting" if waits_for else doing, "waits_for": waits_for, "sent_s": 1.0}
    return {**state, "lost": {}, "down": {}, **changes}


STEP_S = 0.125
"""Interval of the coordinator's looks: it counts as much of any gap between two."""


class MonitoredDevices:
    """A coordinator's liveness of three devices, with a hand-driven clock."""

    def __init__(self, round_s: float = 1.0) -> None:
        self.clock = HandClock()
        self.asked: list[str] = []
        self.heard: list[str] = []
        self.liveness = Liveness("coordinator", round_s, self.clock)
        for device in DEVICES:
            self.liveness.add_device(device)

    def receive_beats(self, **beats: Mapping[str, Any]) -> Fault | None:
        """Record beats by device now, and return the current fault."""
        for device, state in beats.items():
            self.liveness.record_beat(device, state, self.clock())
        return self.find_fault()

    def find_fault(
        self, lost: Mapping[str, int] | None = None, down: Mapping[str, float] | None = None
    ) -> Fault | None:
        """Return the current fault, given the losses of the coordinator's own links."""
        return self.liveness.find_fault(lost or {}, down or {})

    def run(
        self, seconds: float, every: int = 2, answering: Collection[str] = (), **beats: Mapping[str, Any]
    ) -> Fault | None:
        """Repeat the same beats every so many steps, up to the first fault; ask silent devices: some answer."""
        for step in range(round(seconds / STEP_S)):
            self.clock.sleep(STEP_S)
            for device, state in beats.items() if step % every == 0 else ():
                self.liveness.record_beat(device, state, self.clock())
            for device in answering:
                self.liveness.record_answer(device)
            self.heard += self.liveness.heard_again()
            for device in self.liveness.silent({}):
                self.asked.append(device)
                self.liveness.begin_probe(device)
            fault = self.find_fault()
            if fault is not None:
                return fault
        return None


def test_a_frozen_device_is_named_and_those_that_wait_for_it_are_not() -> None:
    """Bug: d0 was blamed for a frozen d1, since it was the first in the list of silent devices."""
    devices = MonitoredDevices()
    assert devices.receive_beats(**{device: beat() for device in DEVICES}) is None
    assert devices.run(5, d0=beat("d1"), d1=beat(), d2=beat("d1")) is None
    began_s = devices.clock()
    fault = devices.run(12, d0=beat("d1"), d2=beat("d1"))
    assert fault is not None and fault.device == "d1"
    assert fault.why == "is silent for 1.8 s and gave no sign of life when asked"
    assert devices.asked == ["d1"] and devices.clock() - began_s <= 2.0, "confirmed within 2 s"


@pytest.mark.parametrize("doing", ["loading", "saving"])
def test_a_device_that_loads_or_saves_is_given_more_time(doing: str) -> None:
    """Reading a checkpoint or making an optimizer may hold a device's interpreter, and its memory, for seconds."""
    devices = MonitoredDevices()
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None
    assert devices.run(1, d1=beat(doing=doing), d0=beat(), d2=beat()) is None
    assert devices.run(SILENCE_S - 1, d0=beat(), d2=beat()) is None and devices.asked == []
    fault = devices.run(4, d0=beat(), d2=beat())
    assert fault is not None and fault.device == "d1"


def test_a_device_that_answers_when_it_is_asked_is_not_lost() -> None:
    """Bug to avoid: a long garbage collection, or a forward that holds the interpreter, looks like a frozen device."""
    devices = MonitoredDevices()
    others = {"d0": beat(), "d2": beat()}
    assert devices.run(5, d1=beat(), **others) is None
    assert devices.run(30, answering=["d1"], **others) is None
    assert set(devices.asked) == {"d1"} and set(devices.heard) == {"d1"}
    assert devices.run(5, d1=beat(), **others) is None


def test_a_device_that_only_answers_is_stuck_in_the_end() -> None:
    """A liar on the network that answers for a dead device puts off its loss by a minute, and no longer."""
    devices = MonitoredDevices()
    others = {"d0": beat("d1"), "d2": beat("d1")}
    assert devices.run(5, d1=beat("d0"), **others) is None
    fault = devices.run(65, answering=["d1"], **others)
    assert fault is not None and (fault.device, fault.why[:9]) == ("d1", "is stuck:")


def test_longer_gaps_between_beats_raise_the_limit() -> None:
    """On a busy machine beats come late: a device that let 1.5 s pass before is asked after three times as long."""
    devices = MonitoredDevices()
    others = {"d0": beat(), "d2": beat()}
    assert devices.run(5, d1=beat(), **others) is None
    stalled = devices.run(12, every=12, answering=DEVICES, d1=beat(), **others)
    assert stalled is None, "the whole machine is slow, and all of its processes answer"
    devices.asked.clear()
    assert devices.run(3, **others) is None and devices.asked == []
    assert devices.run(1, **others) is None and devices.asked == ["d1"]
    fault = devices.run(2, **others)
    assert fault is not None and fault.device == "d1"


def test_half_a_second_of_standstill_is_nothing() -> None:
    """Of a process that is stopped, a container whose share of the processor is used up, a machine that swaps."""
    devices = MonitoredDevices()
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None
    assert devices.run(0.5, d0=beat(), d2=beat()) is None
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None
    assert devices.asked == []


def test_a_device_is_asked_as_soon_as_its_connection_has_ended() -> None:
    """The kernel of its machine has closed it; if the device lives, it answers, and nothing follows from that."""
    devices = MonitoredDevices()
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None
    assert devices.liveness.silent({"d1": 0.01}) == ("d1",)
    devices.liveness.begin_probe("d1")
    assert devices.liveness.silent({"d1": 0.02}) == ()
    devices.liveness.record_answer("d1")
    assert devices.liveness.heard_again() == ("d1",)
    assert devices.liveness.silent({"d1": 0.03}) == (), "once"
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None


def test_a_connection_that_was_never_there_has_not_ended() -> None:
    """While devices connect, nobody is asked."""
    assert MonitoredDevices().liveness.silent({device: 1.0 for device in DEVICES}) == ()


def test_connections_outlive_the_tolerated_silence() -> None:
    """Bug: links gave up after 5 s while silence was allowed for 10 s.

    In between a device came back to a broken connection with lost messages, and all devices waited for each other.
    """
    assert HEARTBEAT_TIMEOUT_MS / 1000 > 1.5 * SILENCE_S


def test_a_lost_message_is_attributed_to_its_link() -> None:
    """No device is named, since both ends of a broken connection may be healthy."""
    devices = MonitoredDevices()
    fault = devices.receive_beats(d0=beat("d1"), d1=beat("d2", lost={"d2": 3}), d2=beat("d1"))
    assert fault == Fault("", "link d2>d1: 3 messages were lost when the connection broke", ("d2", "d1"))
    assert devices.receive_beats(d1=beat("d2", lost={"d2": 3})) is None, "a loss is told once"
    again = devices.receive_beats(d1=beat("d2", lost={"d2": 4}))
    assert again is not None and again.why.startswith("link d2>d1: 1 message was lost")
    devices = MonitoredDevices()
    assert devices.find_fault(lost={"d2": 1}) == Fault(
        "", "link d2>coordinator: 1 message was lost when the connection broke", ("d2", "coordinator")
    )


def test_what_was_lost_before_a_new_attempt_counts_for_nothing() -> None:
    """A device that reports an old loss late, after its round was broken off, does not break the next one off too."""
    devices = MonitoredDevices()
    devices.liveness.forgive("d1", {"d2": 3})
    assert devices.receive_beats(d0=beat(), d1=beat(lost={"d2": 3}), d2=beat()) is None
    with pytest.raises(Refused, match="device d1 counts lost messages in words that cannot be read"):
        devices.liveness.forgive("d1", {"d2": "many"})


def test_links_to_a_device_that_was_given_up_are_no_faults() -> None:
    """Bug: devices that were left went on to count seconds without a connection to the dead one, and ended too."""
    devices = MonitoredDevices()
    devices.liveness.remove_device("d2")
    whole = beat("d1", lost={"d2": 1}, down={"d2": 2 * DOWN_S})
    assert devices.receive_beats(d0=whole, d1=beat()) is None
    assert devices.run(5, d0=whole, d1=beat(down={"d2": 2 * DOWN_S})) is None, "nor is its silence"


def test_a_device_that_came_back_answers_for_nothing_that_was_before() -> None:
    """Others have had no connection to it all the while, and its own count of lost messages begins anew."""
    devices = MonitoredDevices()
    devices.liveness.forgive("d1", {"d0": 3})
    devices.liveness.remove_device("d1")
    devices.liveness.add_device("d1")
    assert devices.receive_beats(d0=beat(down={"d1": 5 * DOWN_S})) is None
    lost = devices.receive_beats(d1=beat(lost={"d0": 2}))
    assert lost is not None and lost.link == ("d0", "d1") and lost.why.startswith("link d0>d1: 2 messages were lost")


def test_a_stall_of_the_coordinator_is_reported() -> None:
    """If the coordinator was suspended so long that connections broke, the error says so."""
    devices = MonitoredDevices()
    devices.clock.sleep(34.0)
    fault = devices.receive_beats(d0=beat(lost={"coordinator": 1}), d1=beat(), d2=beat())
    assert fault is not None and fault.device == ""
    assert fault.why.startswith("link coordinator>d0: 1 message was lost when the connection broke")
    assert fault.why.endswith("; the coordinator itself stood still for 34 s")


def test_a_suspended_coordinator_blames_no_device() -> None:
    """The beats that came meanwhile are read first, and a suspended coordinator counts no silence."""
    devices = MonitoredDevices()
    devices.clock.sleep(500.0)
    assert devices.find_fault() is None
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None


def test_silence_of_all_devices_is_attributed_to_the_network() -> None:
    """If all devices are silent, none is named, and the network is given more time; if some are, these are named."""
    devices = MonitoredDevices()
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None
    assert devices.run(SILENCE_S - 1) is None and set(devices.asked) == set(DEVICES)
    fault = devices.run(2)
    assert fault == Fault("", "none of the devices d0, d1, d2 was heard for 10 s; check this machine's network")
    devices = MonitoredDevices()
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None
    fault = devices.run(12, d1=beat())
    assert fault is not None and fault.device == "d0" and fault.why.endswith("when asked; so is d2")


def test_the_only_device_that_is_left_is_given_more_time() -> None:
    """Nothing is won by haste where no other device could go on."""
    devices = MonitoredDevices()
    assert devices.run(5, **{device: beat() for device in DEVICES}) is None
    for device in ("d0", "d2"):
        devices.liveness.remove_device(device)
    assert devices.run(SILENCE_S - 1) is None
    fault = devices.run(2)
    assert fault is not None and fault.device == "d1"


def test_a_connection_that_does_not_come_back_is_named() -> None:
    """Two devices cannot reach each other, while the coordinator reaches both."""
    devices = MonitoredDevices()
    assert devices.receive_beats(d0=beat(down={"d1": PARTED_S})) is None
    assert devices.receive_beats(d0=beat(down={"d1": PARTED_S + 1})) == Fault(
        "", "link d0>d1: there is no connection for 4 s", ("d0", "d1")
    )
    assert MonitoredDevices().find_fault(down={"d2": 30.0}) == Fault(
        "", "link coordinator>d2: there is no connection for 30 s", ("coordinator", "d2")
    )


@pytest.mark.parametrize(("steps", "limit_s"), [(2, PARTED_S), (10, 3 * 10 * STEP_S), (32, MAX_PARTED_S)])
def test_devices_whose_beats_come_late_are_given_longer_to_connect_again(steps: int, limit_s: float) -> None:
    """A machine under load, or a network that loses packets, is slow to connect as it is to beat."""
    devices = MonitoredDevices()
    assert devices.run(12 * steps * STEP_S, steps, **{device: beat() for device in DEVICES}) is None
    assert devices.receive_beats(d0=beat(down={"d1": limit_s - 0.01})) is None
    fault = devices.receive_beats(d0=beat(down={"d1": limit_s + 0.01}))
    assert fault is not None and fault.link == ("d0", "d1")


def test_a_connection_to_a_device_that_is_asked_for_a_sign_of_life_is_waited_for() -> None:
    """It may be frozen, or its engine out of reach: then it is lost by its silence, and no link is named for it."""
    devices = MonitoredDevices()
    devices.liveness.begin_probe("d1")
    assert devices.receive_beats(d0=beat(down={"d1": DOWN_S})) is None
    found = devices.receive_beats(d0=beat(down={"d1": DOWN_S + 1}))
    assert found is not None and found.link == ("d0", "d1")


@pytest.mark.parametrize(("doing", "limit_s"), [("loading", LOADING_S), ("saving", SAVING_S), ("computing", 60.0)])
def test_each_activity_has_its_own_limit(doing: str, limit_s: float) -> None:
    """Bug: a device that loaded for longer than 60 s was called stuck, though 900 s were allowed."""
    devices = MonitoredDevices()
    others = {"d1": beat("d0"), "d2": beat("d0")}
    assert devices.run(limit_s, d0=beat(doing=doing), **others) is None
    fault = devices.run(2, d0=beat(doing=doing), **others)
    assert fault == Fault("d0", f"is stuck: it has made no progress in {doing} for {limit_s:.0f} s")


def test_long_rounds_raise_the_limit() -> None:
    """A plan whose rounds take minutes is not stuck after one."""
    devices = MonitoredDevices(round_s=4.0)
    assert devices.run(199, **{device: beat() for device in DEVICES}) is None
    fault = devices.run(2, **{device: beat() for device in DEVICES})
    assert fault is not None and fault.why.startswith("is stuck")


def test_on_a_timeout_the_last_device_of_a_waiting_chain_is_named() -> None:
    """All wait for d2, which computes: d2 is named, with the chain of devices that wait."""
    devices = MonitoredDevices()
    devices.receive_beats(d0=beat("d1"), d1=beat("d2"), d2=beat())
    fault = devices.liveness.explain_timeout("d0", "ready", 120.0)
    assert fault.device == "d2"
    assert fault.why == (
        "keeps the others waiting (computing): d0 did not say 'ready' within 120 s: "
        "d0, which waits for d1, which waits for d2"
    )
    assert devices.liveness.explain_timeout("d2", "ready", 120.0) == Fault(
        "d2", "did not say 'ready' within 120 s (it is computing)"
    )


@pytest.mark.parametrize(("first", "second"), [("d1", "d0"), ("d1", "coordinator")])
def test_devices_that_wait_for_each_other_are_not_named(first: str, second: str) -> None:
    """A cycle of waiting devices, or one with the coordinator, means that a message between them was lost."""
    devices = MonitoredDevices()
    devices.receive_beats(d0=beat(first), d1=beat(second))
    fault = devices.liveness.explain_timeout("d0", "ready", 120.0)
    assert fault.device == "" and fault.why == (
        f"nobody said 'ready' within 120 s: d0, which waits for {first}, which waits for {second}; "
        "a message between them was lost"
    )


def test_a_device_that_never_beat_is_named() -> None:
    """Before its first beat nothing is known of a device."""
    assert MonitoredDevices().liveness.explain_timeout("d1", "hello", 120.0) == Fault(
        "d1", "did not say 'hello' within 120 s"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"progress": "x"},
        {"progress": float("inf")},
        {"doing": "sleeping"},
        {"sent_s": float("nan")},
        {"sent_s": "soon"},
        {"lost": 5},
        {"lost": {"d1": "many"}},
        {"down": None},
        {"down": {"d1": []}},
        {"lost": {"d7": 1}},
        {"waits_for": "\x1b[2J"},
    ],
    ids=str,
)
def test_a_beat_that_cannot_be_read_names_its_sender(changes: dict[str, Any]) -> None:
    """Bug: a malformed beat ended the coordinator with an error of its own. The refusal names the sender."""
    devices = MonitoredDevices()
    with pytest.raises(Refused, match="^device d1 sent a beat that cannot be read"):
        devices.receive_beats(d1=beat(**changes))
    with pytest.raises(Refused, match="^device d1 sent a beat that cannot be read .KeyError"):
        devices.receive_beats(d1={})
    assert devices.find_fault() is None
