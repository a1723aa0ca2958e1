"""Every order of events leads the conductor to weights that are whole, with every round applied once."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.recovery import protocol as p
from fleetune.recovery.conductor import Conductor, Step
from fleetune.recovery.holdings import History, Version
from fleetune.recovery.membership import LOADING, WAITING
from fleetune.recovery.state import COLLECTING, State
from tests.support.recovery.simulation import Wrong, explore, simulation, walk

NOBODY, STOPPED = "no device is left", "ended "


@pytest.mark.parametrize(
    ("devices", "faults", "made", "allowed"),
    [
        ("ab", ["kill"], {"rounds": 3}, ()),
        ("abc", ["kill"], {"rounds": 1, "items": 3}, ()),
        ("ab", ["kill"], {"backups": False}, ()),
        ("ab", ["kill", "kill"], {"rounds": 1}, (NOBODY,)),
        ("ab", ["accuse"], {}, ()),
        ("ab", ["lose"], {}, ()),
        ("ab", ["crash"], {}, ()),
        ("ab", ["crash", "kill"], {"rounds": 1}, ()),
        ("a", ["join", "kill"], {"newcomers": ("n",)}, (NOBODY,)),
        ("ab", ["stop"], {}, (STOPPED,)),
        ("ab", ["kill"], {"capacity": 1}, ("have no memory",)),
        ("ab", ["kill"], {"scores_every": 1}, ()),
        ("ab", ["crash"], {"scores_every": 1, "rounds": 3, "enough_after": 2}, ()),
        ("ab", ["stop"], {"scores_every": 1}, (STOPPED,)),
        ("a", ["join", "kill"], {"newcomers": ("n",), "scores_every": 1}, (NOBODY,)),
        ("ab", ["kill"], {"returns": True, "backups": False}, ()),
        ("ab", ["kill"], {"returns": True, "rounds": 1}, ()),
        ("ab", ["accuse"], {"returns": True, "rounds": 1, "backups": False, "items": 1}, ()),
        ("ab", ["kill"], {"returns": True, "waits": True, "rounds": 1}, ()),
        ("ab", ["kill"], {"returns": True, "average_every": 1, "backups": False}, ()),
        ("ab", ["kill", "stop"], {"returns": True, "waits": True, "rounds": 1, "backups": False}, (STOPPED, NOBODY)),
        ("ab", ["late"], {}, ()),
        ("ab", ["late"], {"returns": True, "rounds": 1, "backups": False, "items": 1}, ()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_order_of_events(devices: str, faults: list[str], made: dict[str, Any], allowed: tuple[str, ...]) -> None:
    """However messages, writes and a fault follow each other, the run ends with all rounds applied once, in order.

    Faults: a worker killed, or taken for dead while it lives; a message lost; the coordinator killed, with what it was
    writing on disk or not; a device that joins; a stop; an answer that takes too long. Who is lost comes back at any
    time after it, or in vain. No commit is sent that is not on disk, no device works with
    another one's version, nothing is freed before all have what they need, and no order goes on for ever. Versions that
    are due to be scored are on disk and scored before the next round begins, whatever happens.
    """
    world = simulation(**made)
    assert explore(world, world.begin(devices, faults), allowed) > 100


SETTINGS = st.fixed_dictionaries(
    {
        "items": st.integers(1, 4),
        "rounds": st.integers(1, 5),
        "backup_every": st.integers(0, 2),
        "backups": st.booleans(),
        "checkpoint_every": st.integers(1, 3),
        "scores_every": st.integers(0, 3),
        "average_every": st.integers(0, 2),
        "returns": st.booleans(),
        "waits": st.booleans(),
    }
)


@settings(max_examples=500, deadline=None)
@given(
    SETTINGS,
    st.integers(2, 4),
    st.lists(st.sampled_from(("kill", "accuse", "lose", "crash", "join", "late", "fail")), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_random_orders_with_many_faults(made: dict[str, int], devices: int, faults: list[str], seed: int) -> None:
    """Up to four devices, five rounds and six faults of all kinds, in any order: as long as a device is left, it ends.

    Devices that were killed come back under their names, and bring nothing with them. Messages that one link loses
    again and again cost a device too.
    """
    names = "abcd"[:devices]
    world = simulation(newcomers=("n", *names), **made)
    taken = (
        sum(fault in ("kill", "accuse", "late") for fault in faults) + faults.count("lose") // world.conductor.most_gaps
    )
    fatal = taken >= devices
    draw = random.Random(seed)
    choices = iter(lambda: draw.randrange(2**12), None)
    walk(world, world.begin(names, faults), choices, (NOBODY,) if fatal else ())


class SendsBeforeItLogs(Conductor):
    """Sends a commit while it is still being written."""

    def step(self, state: State, event: p.Event) -> Step:
        state, commands = super().step(state, event)
        if isinstance(event, p.CommitLogged):
            commands = tuple(each for each in commands if not isinstance(each, p.SendCommit))
        for each in commands:
            if isinstance(each, p.LogCommit) and state.layout:
                sent = p.SendCommit(
                    attempt=each.attempt, round=each.round, devices=state.layout.devices,
                    starts_next=each.round + 1 < self.rounds, checkpoint=False, backup=False,
                )  # fmt: skip
                return state, (*commands, sent)
        return state, commands


class FreesEarly(Conductor):
    """Has old copies freed once the first device has moved."""

    def step(self, state: State, event: p.Event) -> Step:
        after, commands = super().step(state, event)
        if not (isinstance(event, p.Moved) and len(after.answered) == 1):
            return after, commands
        drop = p.DropOld(attempt=after.attempt, version=after.target, devices=tuple(sorted(after.members)))
        return after, (drop, *commands)


class ForgetsItsStarts(Conductor):
    """Begins with the same attempt each time its process starts."""

    def start(self, coordinator: int, members: Iterable[str], history: History, on_disk: Iterable[Version]) -> Step:
        return super().start(1, members, history, on_disk)


class DoesNotWaitForItsDisk(Conductor):
    """Decides while a commit is being written."""

    def step(self, state: State, event: p.Event) -> Step:
        if state.phase == COLLECTING and isinstance(event, p.Held):
            state = replace(state, writing=frozenset())
        return super().step(state, event)


class CommitsAlone(Conductor):
    """Commits a round that one device has prepared."""

    def step(self, state: State, event: p.Event) -> Step:
        if isinstance(event, p.Prepared) and state.layout is not None:
            state = replace(state, answered=frozenset(state.layout.devices))
        return super().step(state, event)


class KeepsTheLog(Conductor):
    """Runs rounds again that its log has already."""

    def step(self, state: State, event: p.Event) -> Step:
        state, commands = super().step(state, event)
        for each in commands:
            if isinstance(each, p.RewindLog):
                return super().step(state, p.LogRewound(rounds=each.rounds))
        return state, commands


class MarksHalfACheckpoint(Conductor):
    """Marks a checkpoint once the first device has written."""

    def step(self, state: State, event: p.Event) -> Step:
        if isinstance(event, p.Saved) and state.layout is not None:
            state = replace(state, saved=frozenset(state.layout.savers))
        return super().step(state, event)


class ForgetsTheDead(Conductor):
    """Waits for ever for a device that has ended."""

    def step(self, state: State, event: p.Event) -> Step:
        return (state, ()) if isinstance(event, p.Ended) else super().step(state, event)


class ExpectsForEver(Conductor):
    """Waits for a device that does not come."""

    def step(self, state: State, event: p.Event) -> Step:
        return (state, ()) if isinstance(event, p.Waited | p.NotBack) else super().step(state, event)


class StartsTwice(Conductor):
    """Has a lost device started again for each time that it hears of its loss."""

    def step(self, state: State, event: p.Event) -> Step:
        state, commands = super().step(state, event)
        again = [each for each in commands if isinstance(each, p.StartAgain)]
        return state, (*commands, *again)


class LeavesThemWaiting(Conductor):
    """Goes on with the next round, though a device waits for its border."""

    def step(self, state: State, event: p.Event) -> Step:
        if isinstance(event, p.CommitLogged):
            late = [replace(each, status=LOADING) if each.status == WAITING else each for each in state.devices]
            after, commands = super().step(replace(state, devices=tuple(late)), event)
            return replace(after, devices=state.devices), commands
        return super().step(state, event)


class ForgetsTheAverage(Conductor):
    """Goes on after an average without those that waited for it."""

    def step(self, state: State, event: p.Event) -> Step:
        if not isinstance(event, p.Prepared) or state.layout is None:
            return super().step(state, event)
        layout = state.layout
        after, commands = super().step(replace(state, layout=replace(layout, average_every_rounds=0)), event)
        return replace(after, layout=layout), commands


class MixesRounds(Conductor):
    """Takes rounds of the same number for the same version, whoever committed them."""

    def step(self, state: State, event: p.Event) -> Step:
        if isinstance(event, p.Held):
            held = tuple(
                replace(each, version=state.history.rewound(each.version.rounds).version)
                for each in event.holdings
                if each.version.rounds <= state.history.rounds
            )
            event = replace(event, holdings=held)
        return super().step(state, event)


class AbortsNobody(Conductor):
    """Begins a new attempt without telling one of the devices."""

    def step(self, state: State, event: p.Event) -> Step:
        state, commands = super().step(state, event)
        return state, tuple(
            replace(each, devices=each.devices[1:]) if isinstance(each, p.Abort) else each for each in commands
        )


@pytest.mark.parametrize(
    ("conductor", "devices", "faults", "made", "found"),
    [
        (SendsBeforeItLogs, "ab", [], {}, "is sent, and the log on disk is"),
        (FreesEarly, "ab", [], {}, "is to free all but"),
        (ForgetsItsStarts, "ab", ["crash"], {}, "nothing can happen any more"),
        (DoesNotWaitForItsDisk, "ab", ["kill"], {}, "is committed after"),
        (CommitsAlone, "ab", [], {}, "which it has not prepared"),
        (KeepsTheLog, "ab", ["kill"], {"backup_every": 0}, "starts, and the log on disk is"),
        (MarksHalfACheckpoint, "ab", [], {}, "the checkpoint of the state after round 2 is made of"),
        (ForgetsTheDead, "ab", ["kill"], {}, "nothing can happen any more"),
        (ExpectsForEver, "ab", ["kill", "fail"], {"returns": True, "waits": True}, "nothing can happen any more"),
        (StartsTwice, "ab", ["kill"], {"returns": True}, "is to be started, and is to be already"),
        (LeavesThemWaiting, "ab", ["kill"], {"returns": True}, "wait for its border"),
        (
            ForgetsTheAverage,
            "ab",
            ["kill"],
            {"returns": True, "average_every": 1, "rounds": 3},
            "waited for the average",
        ),
        (MixesRounds, "abc", ["accuse", "crash"], {"backups": False}, "nothing can happen any more"),
        (AbortsNobody, "ab", ["kill"], {}, "nothing can happen any more"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_conductor_with_a_mistake_is_found_out(
    conductor: type[Conductor], devices: str, faults: list[str], made: dict[str, Any], found: str
) -> None:
    """Of fourteen conductors with one mistake each, walking through all orders of events finds every one."""
    world = simulation(conductor, **made)
    with pytest.raises(Wrong, match=found):
        explore(world, world.begin(devices, faults), (NOBODY,))
