"""A worker's seat: its units with gradients, optimizer and running statistics, and its micro-batches in flight."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import PretrainedConfig

from fleetune.contracts.plan import FORWARD, Plan
from fleetune.errors import Refused
from fleetune.models.batch_norms import sees_whole_batch
from fleetune.models.gates import Regate, gate_segment
from fleetune.models.segment import SegmentRunner, Values
from fleetune.program import Seat, Step
from fleetune.training.batches import Batches
from fleetune.training.exchange import DTYPES, Arrival, check_tensor
from fleetune.training.gradients import GradientBucket
from fleetune.training.optimizer import BatchNormStatistics, NamedOptimizer


@dataclass(slots=True)
class MicroBatchState:
    """State of a micro-batch between its forward and its backward."""

    inputs: Values
    outputs: Values
    loss: torch.Tensor | None


@dataclass(slots=True)
class TrainingSeat:
    """One seat at work.

    `tied`: parameter shared with other segments of the lane -> the segments that hold it. `optimizer` holds the seat's
    trained parameters; it steps them unless a collector does.
    """

    seat: Seat
    runner: SegmentRunner
    batches: Batches | None
    """None for a seat that reads neither inputs nor labels."""
    optimizer: NamedOptimizer
    statistics: BatchNormStatistics
    bucket: GradientBucket | None
    """Sums gradients over the group; None for a group of one, and with a collector."""
    tied: Mapping[str, tuple[int, ...]]
    gradient_values: tuple[int, ...]
    """Values that are sent on and get a gradient back."""
    regate: Regate = lambda gates: None
    """Lets its heads run as other gates say."""
    held: dict[int, MicroBatchState] = field(default_factory=dict)
    arrivals: list[Arrival] = field(default_factory=list)
    """Transfers for the next forward or backward, in the order of samples."""
    terms: dict[int, Arrival] = field(default_factory=dict)
    """Segment -> its gradients of shared weights."""
    loss: float = 0.0
    """Share of the mean loss over the lane's batch, so far in this round."""

    def start_round(self, step: int) -> None:
        """Drop what an earlier round left, and draw the batch of the lane's step with this number (from 0)."""
        self.held.clear()
        self.arrivals.clear()
        self.terms.clear()
        self.loss = 0.0
        self.optimizer.clear_gradients()
        self.statistics.start()
        if self.bucket is not None:
            self.bucket.start()
        if self.batches is not None:
            self.batches.start_step(step, with_targets=self.seat.is_last)

    def is_batched(self, number: int) -> bool:
        """Return whether a value's first dimension is samples."""
        return bool(self.runner.graph.batched(number))

    def sample_shape(self, number: int) -> tuple[int, ...] | None:
        """Return the shape of one sample of a value that a codec may change; None for masks and shared values."""
        value = self.runner.graph.value(number)
        return tuple(map(int, value.shape[1:])) if value.gradient and self.is_batched(number) else None

    def samples_of(self, values: Mapping[int, torch.Tensor], first: int, end: int, shared: bool) -> Values:
        """Return samples [first, end) of values, and with `shared` also those that are the same for all samples."""
        own, _ = self.seat.span
        return {
            number: value[first - own : end - own] if self.is_batched(number) else value
            for number, value in values.items()
            if self.is_batched(number) or shared
        }

    def take_in(self, step: Step, arrival: Arrival) -> None:
        """Keep what has arrived for a forward or backward. Refused: values of other numbers, types or shapes."""
        graph, action, sender, samples = self.runner.graph, step.action, step.peer, step.end - step.first
        known = self.runner.input_values if action.letter == FORWARD else self.gradient_values
        for number, tensor in arrival.tensors.items():
            if number not in known:
                raise Refused(f"{sender} sent {action} with {str(number)[:80]!r}, which is no value of this cut")
            value = graph.value(number)
            shape = (samples, *map(int, value.shape[1:])) if self.is_batched(number) else None
            check_tensor(sender, f"{action}, value {number},", tensor, DTYPES[value.dtype], shape)
        self.arrivals.append(arrival)

    def take_inputs(self, micro_batch: int) -> Values:
        """Return a forward's inputs, detached; values that carry a gradient become autograd leaves."""
        graph = self.runner.graph
        if self.seat.is_first:
            assert self.batches is not None, "a first segment reads inputs"
            given = self.batches.inputs(micro_batch, self.seat.span, graph.inputs)
            return {number: given[name] for name, number in graph.inputs.items() if name in given}
        values: Values = {}
        for number in self.runner.input_values:
            parts = [a.tensors[number] for a in self.arrivals if number in a.tensors]
            if not parts:
                raise Refused(f"value {number} of a forward was sent by none of the devices of the segment before")
            joined = torch.cat(parts) if self.is_batched(number) and len(parts) > 1 else parts[0]
            needs = graph.value(number).gradient and self.runner.differentiates_inputs
            values[number] = joined.requires_grad_(True) if needs else joined
        self.arrivals.clear()
        return values

    def take_output_gradients(self) -> Values:
        """Return the gradients of the sent values: rows are concatenated, gradients of unbatched values are summed."""
        found: Values = {}
        for number in self.gradient_values:
            parts = [a.tensors[number] for a in self.arrivals if number in a.tensors]
            if not parts:
                continue
            if self.is_batched(number):
                found[number] = torch.cat(parts) if len(parts) > 1 else parts[0]
            else:
                found[number] = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        self.arrivals.clear()
        return found


def new_seat(
    seat: Seat,
    runner: SegmentRunner,
    batches: Batches | None,
    optimizer: NamedOptimizer,
    *,
    tied: Mapping[str, tuple[int, ...]],
    collected: bool,
) -> TrainingSeat:
    """Return a seat whose units hold their weights. collected: whether a collector owns the optimizer state. Refused:
    a group shares batch norms; the checks of a plan find that first where its profile says what units need."""
    carry = [n for n in runner.output_values if runner.graph.value(n).gradient]
    group = seat.segment.devices
    whole = next((name for name, module in runner.modules.items() if sees_whole_batch(module)), None)
    if len(group) > 1 and whole is not None:
        raise Refused(
            f"plan: {', '.join(group)} share the samples of {whole}, whose batch norms need the whole micro-batch on "
            "one device; profile and plan the model again"
        )
    return TrainingSeat(
        seat=seat,
        runner=runner,
        batches=batches,
        optimizer=optimizer,
        statistics=BatchNormStatistics(runner),
        bucket=None if len(group) == 1 or collected else GradientBucket(runner.parameters),
        tied=tied,
        gradient_values=() if seat.is_last else tuple(carry),
    )


def gate_heads(runner: SegmentRunner, plan: Plan, whole: nn.Module, config: PretrainedConfig) -> Regate:
    """Let a segment's heads run as the plan's gates say, and return what changes them. whole: on the meta device."""
    changing, gates = bool(plan.refresh_gates_every_rounds), {gate.subnet: gate.operations for gate in plan.gates}
    if all(gate.is_neutral for gate in plan.gates) and not changing:
        return lambda others: None
    return gate_segment(runner, gates, whole, config, changing=changing)
