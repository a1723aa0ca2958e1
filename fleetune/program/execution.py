"""A program carried out without times or tensors: who waits for ever, and what nobody receives.

Sends never block, as in training. A receive waits until the other end has sent, a `reduce` until every member of its
group has come to it. That finds every deadlock: no step makes another impossible, so the order in which devices are
taken changes nothing.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from fleetune.contracts.plan import Action
from fleetune.program import steps
from fleetune.program.steps import DeviceProgram, Program, Step, average_steps

AVERAGED_PARTS = 3
"""Parts of the average that is carried out: enough for a seat that pulls behind what it pushes."""


class Waiting(NamedTuple):
    """A step that a device never gets past."""

    device: str
    step: Step

    def __str__(self) -> str:
        return f"{self.device} at `{self.step}`"


class Outcome(NamedTuple):
    """What carrying out a program has shown; nothing if it ends as it should."""

    waiting: tuple[Waiting, ...]
    unreceived: tuple[Waiting, ...]
    """Sends without a receive, with their devices."""
    deadlocked: Mapping[str, int]
    """Device -> how many of its forwards and backwards it has done before it waits for ever for the next one."""


class _Message(NamedTuple):
    """Identity of a transfer, the same at both ends."""

    kind: str
    action: Action
    sender: str
    receiver: str
    first: int
    end: int
    shared: bool
    part: int


class _PlacedStep(NamedTuple):
    part: int
    step: Step


def carry_out(program: Program) -> Outcome:
    """Carry out a round and an average."""
    lines = {own.device: _lines(own) for own in program}
    reached = dict.fromkeys(lines, 0)
    sent: Counter[_Message] = Counter()
    moved = True
    while moved:
        moved = False
        for device, own in lines.items():
            while reached[device] < len(own) and _passes(device, own[reached[device]], sent):
                reached[device] += 1
                moved = True
        moved = _pass_reduces(lines, reached) or moved
    waiting = tuple(
        Waiting(device, own[at].step) for device, own in lines.items() if (at := reached[device]) < len(own)
    )
    left = tuple(
        Waiting(m.sender, Step(m.kind, m.action, (m.receiver,), m.first, m.end, m.shared)) for m in sent.elements()
    )
    passes = {device: [line.step.kind == steps.RUN for line in own] for device, own in lines.items()}
    deadlocked = {d: sum(own[: reached[d]]) for d, own in passes.items() if any(own[reached[d] :])}
    return Outcome(waiting, () if waiting else left, deadlocked)


def _lines(own: DeviceProgram) -> list[_PlacedStep]:
    average = (_PlacedStep(part, step) for part, step in average_steps(own.average, AVERAGED_PARTS))
    return [*(_PlacedStep(0, step) for step in own.round), *average]


def _message(device: str, part: int, step: Step) -> _Message:
    outgoing = step.kind in steps.OUTGOING
    kind = step.kind if outgoing else steps.OTHER_END[step.kind]
    ends = (device, step.peer) if outgoing else (step.peer, device)
    return _Message(kind, step.action, *ends, step.first, step.end, step.shared, part)


def _passes(device: str, line: _PlacedStep, sent: Counter[_Message]) -> bool:
    """Carry out one step unless it has to wait."""
    step = line.step
    if step.kind in (steps.RUN, steps.TIE):
        return True
    if step.kind == steps.REDUCE:
        return False
    message = _message(device, line.part, step)
    if step.kind in steps.OUTGOING:
        sent[message] += 1
        return True
    if not sent[message]:
        return False
    sent[message] -= 1
    return True


def _pass_reduces(lines: dict[str, list[_PlacedStep]], reached: dict[str, int]) -> bool:
    """Move the members of every group past a `reduce` that all of them have come to."""
    moved = False
    for device, own in lines.items():
        if reached[device] == len(own) or own[reached[device]].step.kind != steps.REDUCE:
            continue
        step = own[reached[device]].step
        here = [
            d for d in step.peers if d in lines and reached[d] < len(lines[d]) and lines[d][reached[d]].step == step
        ]
        if len(here) == len(step.peers):
            for member in here:
                reached[member] += 1
            moved = True
    return moved
