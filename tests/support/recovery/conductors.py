"""A conductor of a training on two devices, and the states that it goes through."""

from dataclasses import replace
from typing import Any

from fleetune.recovery import holdings as h
from fleetune.recovery import protocol as p
from fleetune.recovery.conductor import Conductor
from fleetune.recovery.state import RUNNING, State
from fleetune.recovery.transfers import Item

W, X = Item("main", "w"), Item("main", "x")
ON = {"a": frozenset({W}), "b": frozenset({X})}
LINKS = {(source, target): 1.0 for source in "abc" for target in "abc" if source != target}


def conductor(**settings: Any) -> Conductor:
    """The conductor of ten rounds of a training whose state is w and x."""
    return Conductor(rounds=10, sizes_bytes={W: 5, X: 7}, links=LINKS, **settings)


def layout(*devices: str, backups: bool = False) -> p.Layout:
    """Device a holds w and b holds x; one alone holds both; each backs up the other."""
    on = ON if len(devices) == 2 else {devices[0]: ON["a"] | ON["b"]}
    needs = [h.Need(device=device, items=items) for device, items in on.items()]
    if backups:
        needs += [h.Need(device="b", items=ON["a"], form=h.BACKUP), h.Need(device="a", items=ON["b"], form=h.BACKUP)]
    return p.Layout(revision=0, devices=devices, needs=tuple(needs), savers=devices, backup_every_rounds=2 * backups)


def running(rules: Conductor, made: p.Layout | None = None, rounds: int = 4, spare: str = "") -> State:
    """The state of a training that runs round `rounds` on a and b."""
    attempt, history = h.Attempt(1, 1), h.History()
    for round in range(rounds):
        history = history.committed(round, attempt)
    state, _ = rules.start(1, ("a", "b", *spare), history, ())
    return replace(state, phase=RUNNING, layout=made or layout("a", "b"), replan=False)


def tell(rules: Conductor, state: State, *events: p.Event) -> tuple[State, list[p.Command]]:
    """The state after events, and all commands."""
    told: list[p.Command] = []
    for event in events:
        state, commands = rules.step(state, event)
        told += commands
    return state, told


def prepared(state: State, *devices: str) -> list[p.Event]:
    """Each of these devices has prepared the round that runs."""
    return [p.Prepared(device=device, attempt=state.attempt, round=state.history.rounds) for device in devices]
