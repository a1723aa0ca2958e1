"""Silence of agents and peers: what works is waited for, however slowly; what is silent is named within the limit."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetune.contracts import json_io
from fleetune.discovery import agent_pool
from fleetune.discovery.agent import FOLLOW_S, Agent
from fleetune.discovery.agent_pool import BEAT, BEAT_S, STAGE, AgentPool, AgentTask, DiscoveryTimeLimits
from fleetune.discovery.link_probe import ProbeRequest, ProbeResult
from fleetune.errors import TryAgain
from fleetune.launching import Job, ListenSettings
from fleetune.links.endpoint import Endpoint
from fleetune.links.message import Message, Received

LIMIT_S = 60.0


class Wire:
    """Endpoint in a world whose time passes only while somebody waits: `at` puts a message on its way."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sent: list[tuple[str, Message]] = []
        self.on_send: Callable[[str, Message], None] = lambda receiver, message: None
        self._due: list[tuple[float, str, Message]] = []

    def clock_s(self) -> float:
        """The time."""
        return self.now_s

    def at(self, at_s: float, sender: str, kind: str, header: Mapping[str, Any] | None = None) -> None:
        """Have a message arrive at a time."""
        self._due.append((at_s, sender, Message(kind, dict(header or {}))))
        self._due.sort(key=lambda each: each[0])

    def send(self, receiver: str, message: Message) -> None:
        """Record a message."""
        self.sent.append((receiver, message))
        self.on_send(receiver, message)

    def receive(self, timeout_s: float) -> Received | None:
        """The next message that is due within `timeout_s`."""
        if not self._due or self._due[0][0] > self.now_s + timeout_s:
            self.now_s += timeout_s
            return None
        at_s, sender, message = self._due.pop(0)
        self.now_s = max(self.now_s, at_s)
        return Received(sender=sender, message=message, at_s=self.now_s)

    def beats(self) -> list[str]:
        """What the beats to the stage said."""
        return [str(message.header["doing"]) for to, message in self.sent if (to, message.kind) == (STAGE, BEAT)]


@pytest.fixture
def wire() -> Wire:
    """An empty wire at time 0."""
    return Wire()


def pool_of(wire: Wire, *devices: str) -> AgentPool:
    """A stage with agents that run and say what `wire` lets arrive."""
    pool = AgentPool(cast(Endpoint, wire), "r", DiscoveryTimeLimits(answer_s=LIMIT_S), lambda _: None, wire.clock_s)
    for device in devices:
        pool.add(device, cast(Job, SimpleNamespace(poll=lambda: None, tail=lambda lines: "", out_of_memory=False)))
    return pool


def test_an_agent_that_beats_is_waited_for_far_beyond_the_limit(wire: Wire) -> None:
    """A busy machine may take ten minutes for a probe; nobody gives it up while it works."""
    pool = pool_of(wire, "desk")
    pool.send("desk", "probe", {})
    for beat in range(1, 12):
        wire.at(beat * (LIMIT_S - 1), "desk", BEAT, {"doing": "probing its link to nano"})
    wire.at(11.5 * LIMIT_S, "desk", "probed")
    assert pool.receive("probed", {"desk"}).at_s == 11.5 * LIMIT_S


def test_an_agent_that_freezes_is_named_within_the_limit_of_its_last_beat(wire: Wire) -> None:
    """Frozen in the middle of its work; what it did last is in the sentence, and beats of others save nobody."""
    pool = pool_of(wire, "desk", "nano")
    pool.send("nano", "probe", {})
    wire.at(30.0, "nano", BEAT, {"doing": "probing its link to desk"})
    for beat in range(200):
        wire.at(beat, "desk", BEAT, {"doing": "something else"})
    with pytest.raises(
        TryAgain, match="device nano: .* fell silent while probing its link to desk: it did not say 'pr"
    ):
        pool.receive("probed", {"nano"})
    assert wire.now_s <= 30.0 + LIMIT_S + 2 * agent_pool.POLL_S


def test_each_agent_has_a_limit_of_its_own(wire: Wire) -> None:
    """Agents that answer one after the other do not prolong the limit of one that is dead."""
    pool = pool_of(wire, "a", "b", "c")
    wire.at(50.0, "a", "here")
    wire.at(55.0, "b", "here")
    waiting = {"a", "b", "c"}
    with pytest.raises(TryAgain, match="device c: its discovery agent fell silent: it did not say 'here' within 60 s"):
        while waiting:
            waiting.remove(pool.receive("here", waiting).sender)
    assert wire.now_s <= LIMIT_S + 2 * agent_pool.POLL_S


def test_what_arrived_while_the_stage_itself_was_suspended_counts(wire: Wire) -> None:
    """A stage that gets no processor for longer than the limit reads first, and blames nobody."""
    pool = pool_of(wire, "desk")
    wire.at(1.0, "desk", BEAT, {"doing": "inspecting its machine"})
    wire.at(2.0, "desk", "here")
    wire.now_s = 10 * LIMIT_S
    assert pool.receive("here", {"desk"}).sender == "desk"


def probing_agent(wire: Wire) -> Agent:
    """The agent of the desk."""
    task = AgentTask(
        run="r",
        device="desk",
        accelerator="cpu",
        public=b"",
        secret=b"",
        allowed={},
        stage_address="",
        door=ListenSettings(),
        idle_s=1e9,
        answer_s=LIMIT_S,
    )
    return Agent(task, cast(Endpoint, wire), wire.clock_s)


def probe(wire: Wire) -> ProbeResult:
    """What the agent of the desk tells the stage after one probe of its link to nano."""
    asked = ProbeRequest(peer="nano", budget_s=1.0, most_bytes=1 << 16)
    probing_agent(wire).probe(asked)
    told = [message.header for receiver, message in wire.sent if (receiver, message.kind) == (STAGE, "probed")]
    assert len(told) == 1
    return json_io.load(ProbeResult, told[0], "what the agent told")


def answers_after(wire: Wire, delay_s: float, lost: Callable[[int], bool] = lambda number: False) -> None:
    """Have nano answer every ping after `delay_s`, except the lost ones."""

    def answer(receiver: str, message: Message) -> None:
        if receiver == "nano" and not lost(message.header["ping"]):
            wire.at(wire.now_s + delay_s, "nano", "pong", {**message.header, "cpu_s": 0.0, "at_s": wire.now_s})

    wire.on_send = answer


def test_an_agent_beats_while_it_probes(wire: Wire) -> None:
    """Messages of 4.5 s each: the stage hears of the probe the whole time, not more than once a second."""
    answers_after(wire, 4.5)
    found = probe(wire)
    assert {trip for row in found.round_trips_s for trip in row} == {4.5}
    assert wire.now_s > LIMIT_S, "the whole takes longer than the limit of a silence"
    assert wire.now_s / BEAT_S >= len(wire.beats()) >= 0.8 * wire.now_s / BEAT_S


def test_quick_probes_are_not_disturbed_by_beats(wire: Wire) -> None:
    """A beat costs processor time, which a probe measures."""
    answers_after(wire, 0.001)
    probe(wire)
    assert wire.beats() == []


def test_a_lost_message_is_sent_again_and_none_of_its_times_counts(wire: Wire) -> None:
    """The connection breaks under a message: a later one's answer tells, and the probe ends as if nothing had been."""
    answers_after(wire, 0.25, lost=lambda number: number == 9)
    found = probe(wire)
    assert {trip for row in found.round_trips_s for trip in row} == {0.25}
    assert any("lost a message" in doing for doing in wire.beats())


def test_an_agent_that_was_suspended_itself_blames_no_peer(wire: Wire) -> None:
    """Frozen for longer than the limit, with the answer in its inbox: it reads first."""
    answers_after(wire, 0.25)
    answer = wire.on_send

    def suspended(receiver: str, message: Message) -> None:
        answer(receiver, message)
        wire.now_s += 2 * LIMIT_S if message.header.get("ping") == 9 else 0.0

    wire.on_send = suspended
    found = probe(wire)
    assert sorted({trip for row in found.round_trips_s for trip in row}) == [0.25, 2 * LIMIT_S]


def test_a_slow_link_gets_no_message_twice(wire: Wire) -> None:
    """A message that takes longer than FOLLOW_S is on its way, not lost: sent once more, it would take the link."""
    answers_after(wire, 3 * FOLLOW_S)
    payloads: list[int] = []
    answer = wire.on_send

    def counted(receiver: str, message: Message) -> None:
        if message.kind == "ping" and message.parts:
            payloads.append(len(memoryview(message.parts[0])))
        answer(receiver, message)

    wire.on_send = counted
    found = probe(wire)
    timed = [size for size, row in zip(found.sizes_bytes, found.round_trips_s, strict=True) for _ in row if size]
    assert sorted(filter(None, payloads)) == sorted(timed)


def test_a_peer_that_does_not_answer_is_named_within_the_limit(wire: Wire) -> None:
    """The agent that waits for it lives, and is not blamed."""
    with pytest.raises(TryAgain, match="nano did not answer a probe of desk within 60 s"):
        probe(wire)
    assert wire.now_s <= LIMIT_S + 2 * BEAT_S
    assert wire.beats()[-1] == "waiting for an answer of nano"
