"""Steps of a device, spelled as lines of text.

    receive main/0F2 from a 0:3 shared    values of segment 0's forward, samples 0 to 2, with what all samples share
    run main/1F2                          a forward or backward of one micro-batch
    send main/1B2 to a 0:3                gradients of the values that came from a
    reduce main/1R0 with a,b              ring all-reduce of the round's gradients in the group
    send main/0R2 to c                    gradients of weights that segments 0 and 2 share, to segment 2
    tie main/0R0 with 0,2                 these gradients are added up
    hand block-0/0U0 to a                 the collector sends the newest parameters; `pull` is the other end
    push block-0/0U0 to s                 gradients to the collector; `collect` is the other end
    hand x/1A0 to h                       the same four with letter A: parameters to the device that averages, and back

The action of a transfer is that of its sender, at both ends, so that both name it alike. An average over lanes goes in
parts of a few megabytes, so that no device ever holds another's whole state.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from fleetune.contracts.plan import Action, parse_action
from fleetune.errors import Refused

RECEIVE, RUN, SEND, REDUCE, TIE = "receive", "run", "send", "reduce", "tie"
HAND, PULL, PUSH, COLLECT = "hand", "pull", "push", "collect"
OTHER_END = {RECEIVE: SEND, SEND: RECEIVE, HAND: PULL, PULL: HAND, PUSH: COLLECT, COLLECT: PUSH}
"""Kind of a transfer's step -> kind of the step at its other end."""
PREPOSITION = {
    RECEIVE: "from", PULL: "from", COLLECT: "from", SEND: "to", HAND: "to", PUSH: "to", REDUCE: "with", TIE: "with",
}  # fmt: skip
OUTGOING = (SEND, HAND, PUSH)
KINDS = (RUN, *PREPOSITION)
_AVERAGE = "average: "
SPELLING = re.compile(r"(\w+) (\S+)(?: (from|to|with) (\S+))?(?: (\d+):(\d+))?( shared)?")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a device."""

    kind: str
    action: Action
    """What is run; of a transfer, the sender's action."""
    peers: tuple[str, ...] = ()
    """The other end; the group of `reduce`; the numbers of the segments of `tie`."""
    first: int = 0
    end: int = 0
    """Samples [first, end) of the micro-batch that a `receive` or `send` carries."""
    shared: bool = False
    """True if values that are the same for all samples travel too."""

    @property
    def peer(self) -> str:
        """The other end of a transfer."""
        return self.peers[0]

    def __str__(self) -> str:
        words = [self.kind, str(self.action)]
        if self.peers:
            words += [PREPOSITION[self.kind], ",".join(self.peers)]
        if self.end:
            words.append(f"{self.first}:{self.end}")
        return " ".join(words) + " shared" * self.shared


def parse_step(line: str) -> Step:
    """Parse a line as `str` of a step spells it. Refused: any other text; the error gives an example."""
    found = SPELLING.fullmatch(line)
    if not found or found[1] not in KINDS or found[3] != PREPOSITION.get(found[1]):
        raise Refused(
            f"step {line!r}: write KIND ACTION [from|to|with PEER] [FIRST:END], such as send main/0F2 to b 0:3"
        )
    kind, action, _, peers, first, end, shared = found.groups()
    return Step(
        kind,
        parse_action(action),
        tuple(peers.split(",")) if peers else (),
        int(first or 0),
        int(end or 0),
        bool(shared),
    )


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """The steps of one device."""

    device: str
    round: tuple[Step, ...]
    """Steps from the round's start to its gradients; they change no parameter."""
    average: tuple[Step, ...] = ()
    """Steps after the optimizer's, in rounds that average parameters over lanes."""

    def __str__(self) -> str:
        lines = [f"{self.device}:", *(f"  {step}" for step in self.round)]
        return "\n".join([*lines, *(f"  {_AVERAGE}{step}" for step in self.average)])

    @property
    def peers(self) -> tuple[str, ...]:
        """Devices that this one exchanges tensors with, in order of appearance."""
        named = (peer for step in (*self.round, *self.average) if step.kind not in (RUN, TIE) for peer in step.peers)
        return tuple(dict.fromkeys(peer for peer in named if peer != self.device))


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of all devices of a plan, in the order of `plan.devices`."""

    devices: tuple[DeviceProgram, ...]

    def of(self, device: str) -> DeviceProgram:
        """Return one device's steps; Refused for a device without a part in the plan."""
        for found in self.devices:
            if found.device == device:
                return found
        names = ", ".join(found.device for found in self.devices)
        raise Refused(f"plan: device {device!r} has no part in it; devices with a part are {names}")

    def __iter__(self) -> Iterator[DeviceProgram]:
        return iter(self.devices)

    def __str__(self) -> str:
        return "\n".join(map(str, self.devices))


def parse_program(text: str) -> Program:
    """Parse the steps of all devices as `str` of a program spells them. Refused: any other text; the error names the
    line."""
    made: list[DeviceProgram] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if not line.startswith("  "):
                if not line.endswith(":") or line == ":":
                    raise Refused(f"{line!r} is no device; write its name and a colon")
                made.append(DeviceProgram(line[:-1], ()))
                continue
            if not made:
                raise Refused(f"{line!r} stands before any device; write a device's name and a colon first")
            own, averages = made[-1], line.startswith(f"  {_AVERAGE}")
            step = parse_step(line[2:].removeprefix(_AVERAGE))
        except Refused as error:
            raise Refused(f"program, line {number}: {error}") from None
        if averages:
            made[-1] = replace(own, average=(*own.average, step))
        else:
            made[-1] = replace(own, round=(*own.round, step))
    return Program(tuple(made))


PART_BYTES = 1 << 21
"""Most bytes of parameters in a part; the optimizer's moments of these parameters travel with them."""
PARTS_ON_THE_WAY = 2
"""Most parts that a seat has pushed and not pulled."""


class PartStep(NamedTuple):
    """A step of an average, for one part."""

    part: int
    step: Step


def average_steps(steps: tuple[Step, ...], parts: int) -> Iterator[PartStep]:
    """Yield a device's steps of one average of so many parts, in order."""
    for number in range(parts + 1):
        for step in steps:
            part = number - (step.kind == PULL)
            if 0 <= part < parts:
                yield PartStep(part, step)
