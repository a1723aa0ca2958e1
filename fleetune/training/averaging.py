"""FedAvg in parts: the lanes' parameters, statistics and optimizer state become their weighted means.

Averages include the optimizer's moments, so that a lane alone goes on as if nothing had happened, and one state by name
remains: training resumes from it under any plan. Counts of steps and batches become the largest; they travel in the
messages' headers. Of lanes that took unequal numbers of steps, AdamW's moments are averaged as a step reads them,
without the bias of their own counts (Kingma and Ba, arXiv:1412.6980, section 3), and have that of the largest.

A part is some elements of some tensors, at most PART_BYTES. Every device works out the same parts from the model alone
and holds no more than a few of them beside its own state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from fleetune.contracts.plan import Plan
from fleetune.errors import Refused
from fleetune.program import Step, steps
from fleetune.program.steps import PART_BYTES
from fleetune.training.checkpoints import MODEL, OPTIMIZER, name_of
from fleetune.training.collector import LaneShares, NamesByUnit
from fleetune.training.exchange import Arrival
from fleetune.training.optimizer import COUNT, is_statistic
from fleetune.training.seat import TrainingSeat

STEP = "step"
"""Kind of optimizer state that counts a parameter's steps."""
MOST_STEPS = 1e12
"""Above any count of steps or batches; a larger one in a message is an error of its sender."""


class Span(NamedTuple):
    """Elements [first, end) of a tensor that is read as one row."""

    first: int
    end: int


Part = Mapping[str, Span]
"""Name of a parameter or running statistic -> its elements in the part."""


@dataclass(slots=True)
class State:
    """Some elements of a state, and counts, by the keys of a checkpoint."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)


KINDS = ("exp_avg", "exp_avg_sq", "momentum_buffer", STEP)
"""Kinds of optimizer state."""


def parts_of(names: NamesByUnit, tensors: Mapping[str, torch.Tensor], part_bytes: int = PART_BYTES) -> Sequence[Part]:
    """Return the parts of a model's state, in the order of its units.

    tensors: trainable parameters and buffers by name, on any device; buffers that are no statistics are left out.
    """
    parts: list[dict[str, Span]] = []
    room = 0
    for name in dict.fromkeys(name for unit in names.values() for name in unit if name in tensors):
        tensor = tensors[name]
        if not isinstance(tensor, torch.nn.Parameter) and not is_statistic(name):
            continue
        at, size = 0, tensor.element_size()
        while at < tensor.numel():
            if room < size:
                parts.append({})
                room = max(part_bytes, size)
            end = min(tensor.numel(), at + room // size)
            parts[-1][name] = Span(at, end)
            room -= (end - at) * size
            at = end
    return parts


class Averages:
    """The parts of a plan's averages, and which steps carry something of a part."""

    def __init__(self, plan: Plan, names: NamesByUnit, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self._held = {
            (lane.name, index, own): {name for unit in units for name in names[unit]}
            for lane in plan.lanes
            for index, segment in enumerate(lane.segments)
            for own, units in ((True, segment.trained), (False, segment.units))
        }

    def concerns(self, number: int, step: Step) -> bool:
        """Return whether a step has something to do for a part; both ends of a transfer agree."""
        gives = step.kind in (steps.PUSH, steps.COLLECT)
        return not self._held[step.action.lane, step.action.segment, gives].isdisjoint(self.parts[number])

    def pushed(self, seat: TrainingSeat, number: int) -> State:
        """Return a seat's elements of a part: views of its state, to be sent before anything changes.

        Of a weight that several segments of the lane share, the first one gives.
        """
        own, found = seat.seat, State()
        given = self._held[own.lane.name, own.index, True]
        statistics = seat.statistics.committed(seat.runner.buffers)
        for name, span in self.parts[number].items():
            if name not in given or seat.tied.get(name, (own.index,))[0] != own.index:
                continue
            if name in statistics:
                _add(found, MODEL + name, statistics[name], span, counts=name.endswith(COUNT))
            elif name in seat.runner.parameters and seat.runner.parameters[name].requires_grad:
                _add(found, MODEL + name, seat.runner.parameters[name], span)
                for kind, tensor in seat.optimizer.state_of(name).items():
                    _add(found, f"{OPTIMIZER}{kind}:{name}", tensor, span, counts=kind == STEP)
        return found

    def state_of(self, step: Step, arrival: Arrival) -> State:
        """Return what a message carries of a part. Refused: it is not of this part, or not finite, since it would be in
        every lane from then on."""
        sender, part = step.peer, self.parts[step.action.micro_batch]
        tensors = {str(key): tensor for key, tensor in arrival.tensors.items()}
        for key, tensor in tensors.items():
            span = part.get(name_of(key))
            if span is None or not _is_known(key) or tensor.shape != (span.end - span.first,):
                raise Refused(f"{sender} sent {key[:80]!r} {list(tensor.shape)} for an average, which has no such part")
            if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
                raise Refused(f"{sender} sent {key[:80]!r} for an average, with values that are not finite")
        counts = {str(key): count for key, count in arrival.described.items()}
        for key, count in counts.items():
            if name_of(key) not in part or type(count) not in (int, float) or not 0 <= count <= MOST_STEPS:
                raise Refused(f"{sender} sent {str(count)[:80]} as the count {key[:80]!r} for an average")
        return State(dict(arrival.tensors), {key: float(count) for key, count in counts.items()})

    def pull(self, seat: TrainingSeat, step: Step, arrival: Arrival) -> None:
        """Put a part of the means into a seat. Refused: as by `state_of`."""
        number, means = step.action.micro_batch, self.state_of(step, arrival)
        with torch.no_grad():
            for key, tensor in means.tensors.items():
                name = name_of(key)
                held = self._target(seat, key)
                if held is not None:
                    first, end = self.parts[number][name]
                    held.detach().view(-1)[first:end].copy_(tensor)
            for key, count in means.counts.items():
                held, tensor = self._target(seat, key), self._target(seat, MODEL + name_of(key))
                whole = tensor is None or self.parts[number][name_of(key)].end == tensor.numel()
                if held is not None and whole:  # later parts are still to be pushed with this lane's own count
                    held.fill_(count)
        seat.statistics.start()

    @staticmethod
    def _target(seat: TrainingSeat, key: str) -> torch.Tensor | None:
        """Return the tensor of a seat that a key is about; None if it has none."""
        name = name_of(key)
        if key.startswith(OPTIMIZER):
            return seat.optimizer.slot(_kind_of(key), name)
        found = seat.runner.parameters.get(name)
        return found if found is not None else seat.runner.buffers.get(name)


class Averager:
    """Sums the weighted states of all lanes, part by part."""

    def __init__(
        self, plan: Plan, weights: Mapping[str, float], names: NamesByUnit, decays: Mapping[str, float]
    ) -> None:
        """weights: lane -> share of all samples. decays: kind of moment -> its decay, of those with a bias."""
        self._shares, self._decays = LaneShares(plan, weights, names), decays
        self._sums: dict[int, State] = {}

    def collect(self, lane: str, number: int, given: State) -> None:
        """Add one lane's elements of a part."""
        if number not in self._sums:
            self._sums = {number: State()}  # the means of the part before have been handed out
        sums = self._sums[number]
        for key, tensor in given.tensors.items():
            term = tensor * self._shares.factor(lane, name_of(key))
            found = sums.tensors.get(key)
            if found is not None:
                self._equalise(key, (found, sums.counts), (term, given.counts))
            sums.tensors[key] = term if found is None else found.add_(term)
        for key, count in given.counts.items():
            sums.counts[key] = max(count, sums.counts.get(key, count))

    def _equalise(self, key: str, *moments: tuple[torch.Tensor, Mapping[str, float]]) -> None:
        """Give moments, of each of which the counts are given, the bias of the largest of their counts of steps."""
        decay, steps = self._decays.get(_kind_of(key)), f"{OPTIMIZER}{STEP}:{name_of(key)}"
        if decay is None:
            return
        most = max(counts.get(steps, 0.0) for _, counts in moments)
        for tensor, counts in moments:
            few = counts.get(steps, 0.0)
            if 0 < few < most:
                tensor.mul_((1 - decay**most) / (1 - decay**few))

    def means_of(self, lane: str, segment: int, number: int) -> State:
        """Return the means of what a segment holds of a part."""
        sums, wanted = self._sums.get(number, State()), self._shares.names_of(lane, segment)
        return State(
            {key: tensor for key, tensor in sums.tensors.items() if name_of(key) in wanted},
            {key: count for key, count in sums.counts.items() if name_of(key) in wanted},
        )

    def end(self) -> None:
        """Drop the last part."""
        self._sums = {}


def _is_known(key: str) -> bool:
    return key.startswith(MODEL) or (key.startswith(OPTIMIZER) and _kind_of(key) in KINDS)


def _kind_of(key: str) -> str:
    """Return the kind of optimizer state that a key is about; of others, what means none."""
    return key.removeprefix(OPTIMIZER).split(":", 1)[0]


def _add(found: State, key: str, tensor: torch.Tensor, span: Span, *, counts: bool = False) -> None:
    if counts:
        found.counts[key] = float(tensor)
    else:
        found.tensors[key] = tensor.detach().view(-1)[span.first : span.end]
