"""Who is to blame when a training does not get on, and who is not."""

from collections.abc import Mapping
from typing import Any

import pytest

from fleetune.errors import Refused
from fleetune.links.peer import HEARTBEAT_TIMEOUT_MS
from fleetune.training.liveness import DOWN_S, LOADING_S, SILENCE_S, Fault, Liveness
from fleetune.training.saving import SAVING_S
from tests.monitoring.hand_clock import HandClock

DEVICES = ("d0", "d1", "d2")


def beat(waits_for: str = "", doing: str = "computing", **changes: Any) -> dict[str, Any]:
    """What a worker says of itself."""
    state = {"progress": 0, "doing": "waiting" if waits_for else doing, "waits_for": waits_for, "sent_s": 1.0}
    return {**state, "lost": {}, "down": {}, **changes}


class Hall:
    """A coordinator's liveness of three devices, by hand."""

    def __init__(self, round_s: float = 1.0) -> None:
        self.clock = HandClock()
        self.liveness = Liveness("coordinator", round_s, self.clock)
        for device in DEVICES:
            self.liveness.joined(device)

    def hear(self, **beats: Mapping[str, Any]) -> Fault | None:
        """Beats by device, now; then what is wrong."""
        for device, state in beats.items():
            self.liveness.hear(device, state, self.clock())
        return self.fault()

    def fault(self, lost: Mapping[str, int] | None = None, down: Mapping[str, float] | None = None) -> Fault | None:
        """What is wrong now, by what the coordinator's own links tell."""
        return self.liveness.fault(lost or {}, down or {})

    def run(self, seconds: int, **beats: Mapping[str, Any]) -> Fault | None:
        """Seconds with the same beats, up to the first fault."""
        for _ in range(seconds):
            self.clock.sleep(1.0)
            fault = self.hear(**beats)
            if fault is not None:
                return fault
        return None


def test_a_frozen_device_is_named_and_those_that_wait_for_it_are_not() -> None:
    """Once d0 was blamed for a d1 that stood still: it was the first in the list of those who said nothing."""
    hall = Hall()
    assert hall.hear(**{device: beat() for device in DEVICES}) is None
    fault = hall.run(12, d0=beat("d1"), d2=beat("d1"))
    assert fault == Fault("d1", "is silent for 11 s")


def test_what_a_watch_forgives_breaks_no_connection() -> None:
    """Once links gave up after 5 s while silence was forgiven for 10 s: between these, a device came back to a broken
    connection, messages were gone, and everybody waited for everybody."""
    assert HEARTBEAT_TIMEOUT_MS / 1000 > 1.5 * SILENCE_S


def test_a_lost_message_is_put_down_to_its_link() -> None:
    """No device is named: both ends of a broken connection may be well."""
    hall = Hall()
    fault = hall.hear(d0=beat("d1"), d1=beat("d2", lost={"d2": 3}), d2=beat("d1"))
    assert fault == Fault("", "link d2>d1: 3 messages were lost when the connection broke")
    hall = Hall()
    assert hall.fault(lost={"d2": 1}) == Fault("", "link d2>coordinator: 1 message was lost when the connection broke")


def test_the_coordinators_own_standstill_is_said() -> None:
    """Where it stood still for so long that connections broke, that is the likely cause."""
    hall = Hall()
    hall.clock.sleep(34.0)
    fault = hall.hear(d0=beat(lost={"coordinator": 1}), d1=beat(), d2=beat())
    assert fault is not None and fault.device == ""
    assert fault.why.startswith("link coordinator>d0: 1 message was lost when the connection broke")
    assert fault.why.endswith("; the coordinator itself stood still for 34 s")


def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    """However long: the beats that came meanwhile are read first, and time unwatched is nobody's silence."""
    hall = Hall()
    hall.clock.sleep(500.0)
    assert hall.fault() is None
    assert hall.run(5, **{device: beat() for device in DEVICES}) is None


def test_all_silent_at_once_is_the_network() -> None:
    """When nobody is heard any more, no single device is named; of some that are silent all are."""
    hall = Hall()
    fault = hall.run(12)
    assert fault == Fault("", "none of the devices d0, d1, d2 was heard for 11 s; see to this machine's network")
    hall = Hall()
    assert hall.run(12, d1=beat()) == Fault("d0", "is silent for 11 s; so is d2")


def test_a_connection_that_does_not_come_back_is_named() -> None:
    """Two devices that cannot reach each other, while the coordinator reaches both."""
    hall = Hall()
    assert hall.hear(d0=beat(down={"d1": DOWN_S})) is None
    assert hall.hear(d0=beat(down={"d1": DOWN_S + 1})) == Fault("", "link d0>d1: there is no connection for 21 s")
    assert Hall().fault(down={"d2": 30.0}) == Fault("", "link coordinator>d2: there is no connection for 30 s")


@pytest.mark.parametrize(("doing", "limit_s"), [("loading", LOADING_S), ("saving", SAVING_S), ("computing", 60.0)])
def test_each_kind_of_work_has_its_time(doing: str, limit_s: float) -> None:
    """Once a device that loaded for longer than 60 s was called stuck, though 900 s were promised."""
    hall = Hall()
    others = {"d1": beat("d0"), "d2": beat("d0")}
    assert hall.run(int(limit_s), d0=beat(doing=doing), **others) is None
    fault = hall.run(2, d0=beat(doing=doing), **others)
    assert fault == Fault("d0", f"is stuck: it has not got on with {doing} for {limit_s + 1:.0f} s")


def test_long_rounds_give_more_time() -> None:
    """A plan whose rounds take minutes is not stuck after one."""
    hall = Hall(round_s=100.0)
    assert hall.run(4999, **{device: beat() for device in DEVICES}) is None


def test_at_the_end_of_patience_the_last_of_a_chain_is_named() -> None:
    """Everybody waits for d2, which computes: it is named, and who waits for it is said."""
    hall = Hall()
    hall.hear(d0=beat("d1"), d1=beat("d2"), d2=beat())
    fault = hall.liveness.late("d0", "ready", 120.0)
    assert fault.device == "d2"
    assert fault.why == (
        "keeps the others waiting (computing): d0 did not say 'ready' within 120 s: "
        "d0, which waits for d1, which waits for d2"
    )
    assert hall.liveness.late("d2", "ready", 120.0) == Fault("d2", "did not say 'ready' within 120 s (it is computing)")


@pytest.mark.parametrize(("first", "second"), [("d1", "d0"), ("d1", "coordinator")])
def test_those_that_wait_for_each_other_are_not_named(first: str, second: str) -> None:
    """A circle, or one that waits for a coordinator that waits for it: something between them was lost."""
    hall = Hall()
    hall.hear(d0=beat(first), d1=beat(second))
    fault = hall.liveness.late("d0", "ready", 120.0)
    assert fault.device == "" and fault.why == (
        f"nobody said 'ready' within 120 s: d0, which waits for {first}, which waits for {second}; "
        "a message between them was lost"
    )


def test_one_that_was_never_heard_is_named_plainly() -> None:
    """Before its first beat nothing is known of it."""
    assert Hall().liveness.late("d1", "hello", 120.0) == Fault("d1", "did not say 'hello' within 120 s")


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
    """Once a malformed beat ended the coordinator with its own error; whoever sends one harms only itself."""
    hall = Hall()
    with pytest.raises(Refused, match="^device d1 sent a beat that cannot be read"):
        hall.hear(d1=beat(**changes))
    with pytest.raises(Refused, match="^device d1 sent a beat that cannot be read .KeyError"):
        hall.hear(d1={})
    assert hall.fault() is None
