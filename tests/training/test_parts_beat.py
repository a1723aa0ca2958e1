"""A worker's signs of life, over real links and by a hand-driven clock."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message
from fleetune.training.beat import ABANDONED_S, FIRST_BEATS, Beat, Every
from fleetune.training.exchange import HEARD, HERE, Exchange, Key
from tests.links.ends import until
from tests.training.test_parts_exchange import COORDINATOR, PATIENCE_S, connected

VALUES = {"revision": 0, "round": 0, "segment": 1, "step": 0, "tensors": [], "sent_s": 0.0}


class Desk:
    """A worker's exchange and beat, its coordinator's and its peer's bare links; the clock is the beat's."""

    def __init__(self, ends: dict[str, Endpoint]) -> None:
        self.now_s = time.monotonic()
        self.coordinator, self.peer, self.mine = ends[COORDINATOR], ends["a"], ends["b"]
        self.exchange = Exchange(self.mine, COORDINATOR, torch.device("cpu"), 0)
        self.abandoned: list[str] = []
        self.beat = Beat(self.exchange, self.mine, COORDINATOR, self.abandoned.append, lambda: self.now_s)

    def said(self) -> Message:
        """The next thing that the coordinator hears."""
        received = self.coordinator.receive(PATIENCE_S)
        assert received is not None
        return received.message

    def hear(self, kind: str) -> None:
        """Let the coordinator say something, and wait until it has come."""
        before = self.mine.heard_s(COORDINATOR)
        self.coordinator.send("b", Message(kind, {}))
        until(lambda: self.mine.heard_s(COORDINATOR) != before)


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Worker b, with peer a."""
    with connected((COORDINATOR, "a", "b")) as ends:
        yield Desk(ends)


def test_a_beat_says_what_the_worker_does_and_whom_it_waits_for(desk: Desk) -> None:
    """Once a beat said only whether a worker waits, and the first in the list was blamed for the one it waited for."""
    desk.mine.wait_connected("a", PATIENCE_S)
    desk.mine.wait_connected(COORDINATOR, PATIENCE_S)
    desk.beat.beat()
    first = desk.said()
    assert first.kind == "beat"
    plain = {"progress": 0, "doing": "loading", "waits_for": "", "lost": {}, "down": {}, "sent_s": desk.now_s}
    assert first.header == plain
    desk.beat.doing = "computing"
    desk.exchange.beaten()
    desk.beat.beat()
    assert desk.said().header == {**plain, "progress": 1, "doing": "computing"}
    with ThreadPoolExecutor(1) as pool:
        for key, message in (
            (Key("values", 0, 1, 0, "a"), lambda: desk.peer.send("b", Message("values", VALUES))),
            (None, lambda: desk.coordinator.send("b", Message("commit", {}))),
        ):
            waiting = pool.submit(desk.exchange.receive, key) if key else pool.submit(desk.exchange.hear, "commit")
            whom = key.sender if key else COORDINATOR
            header: dict[str, Any] = {}
            while header.get("waits_for") != whom:
                desk.beat.beat()
                header = desk.said().header
            assert header == {**plain, "progress": 1, "doing": "waiting", "waits_for": whom}
            message()
            waiting.result(PATIENCE_S)
    desk.beat.beat()
    assert desk.said().header == {**plain, "progress": 1, "doing": "computing"}


def test_a_beat_says_what_links_have_lost(desk: Desk) -> None:
    """A message that vanished on its way from a is told with the next beat, although b computes and reads nothing."""
    desk.mine.wait_connected(COORDINATOR, PATIENCE_S)
    desk.peer.send("b", Message("values", VALUES))
    desk.peer._peers["b"]._sequence += 1
    desk.peer.send("b", Message("values", VALUES))
    until(lambda: desk.mine.lost)
    desk.beat.beat()
    assert desk.said().header["lost"] == {"a": 1}


def test_a_worker_that_nobody_asks_for_ends(desk: Desk) -> None:
    """Once workers in containers outlived a coordinator that was killed, until somebody ended them by hand.

    Any word of the coordinator counts, whether or not the compute thread has time to read it.
    """
    for _ in range(3):
        for _ in range(int(ABANDONED_S)):
            desk.now_s += 1.0
            desk.beat.beat()
        assert desk.abandoned == []
        desk.hear(HERE)
        desk.now_s = max(desk.now_s, time.monotonic())
        desk.beat._watch.beat(COORDINATOR, 0)  # as if it had come at this moment of the hand-driven clock
    for _ in range(int(ABANDONED_S) + 1):
        desk.now_s += 1.0
        desk.beat.beat()
    assert len(desk.abandoned) == 1
    assert desk.abandoned[0].startswith("nothing was heard from the coordinator for 61 s")


def test_a_worker_that_stood_still_itself_goes_on(desk: Desk) -> None:
    """A frozen worker that is let go reads what has come meanwhile before it gives its coordinator up."""
    desk.now_s += 50 * ABANDONED_S
    desk.beat.beat()
    assert desk.abandoned == []


def test_beats_come_quickly_at_first_and_end_with_the_block(desk: Desk) -> None:
    """The first ones measure clocks; none comes after the end, even where the thread never began."""
    with desk.beat.running() as running:
        for _ in range(FIRST_BEATS):
            assert desk.said().kind == "beat"
    assert not running._thread.is_alive()
    Every(desk.beat.beat, lambda: 0.0).__exit__()


def test_answers_set_the_clock_of_the_next_round(desk: Desk) -> None:
    """Within a round the offset stays, so that rows keep their order; the next one takes the newest measurement."""
    now_s = time.monotonic()
    for ahead_s, at_s in ((500.0, now_s - 3600), (500.25, now_s)):
        times = {"sent_s": at_s, "came_s": at_s + ahead_s, "answered_s": at_s + ahead_s}
        desk.coordinator.send("b", Message(HEARD, times))
    desk.coordinator.send("b", Message("commit", {}))
    desk.exchange.hear("commit")
    assert desk.exchange.offset_s == 0.0
    desk.exchange.start_round(0)
    assert 500.2 < desk.exchange.offset_s <= 500.25
