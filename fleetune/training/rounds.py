"""One worker's rounds: forwards and backwards in the plan's order, then the sums inside its group.

    F  inputs (data, or values from the segment before) -> run -> values to the segment after, or the loss
    B  gradients of the sent values (or of the loss) -> autograd -> gradients to the segment before
    R  ring all-reduce of gradients and batch statistics; then gradients of weights shared with other segments

None of these changes a parameter or a committed statistic; only `commit` does.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import BACKWARD, FORWARD, REDUCE, Action, Plan, actions_of
from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.launching.process_limits import CpuThrottle
from fleetune.models.loss import count_targets, loss_sum
from fleetune.models.randomness import DrawContext
from fleetune.models.segment import SegmentRunner, Values
from fleetune.training.assignment import Assignment
from fleetune.training.exchange import Arrival, Exchange, TransferKey
from fleetune.training.gradients import GradientBucket, ring_all_reduce, sum_tied
from fleetune.training.optimizer import BatchNormStatistics, NamedOptimizer


class Batches:
    """Inputs and labels of the training split, by round, micro-batch and span of samples."""

    def __init__(self, folder: Path, plan: Plan, seed: int, device: torch.device) -> None:
        self._data = PreparedData(folder)
        self._plan = plan
        self._seed = seed
        self._device = device
        self._indices = np.empty(0, dtype=np.int64)
        self._targets = 0

    @property
    def task(self) -> str:
        """The task that the data were prepared for."""
        return self._data.task

    def start_round(self, round: int, with_targets: bool) -> None:
        """Draw the round's batch; count its targets if this device computes the loss."""
        size = self._data.size("train")
        self._indices = batch_indices(size, self._plan.batch_samples, self._seed, round)
        if with_targets:
            self._targets = count_targets(self._data.rows("train", self._indices)["labels"], self.task)

    @property
    def targets(self) -> int:
        """The number of targets in the whole batch."""
        return self._targets

    def inputs(self, micro_batch: int, span: tuple[int, int]) -> dict[str, torch.Tensor]:
        """Return model inputs by name, each of shape [samples of the span, ...]."""
        rows = self._data.rows("train", self._span(micro_batch, span))
        return {name: torch.from_numpy(a).to(self._device) for name, a in rows.items() if name != "labels"}

    def labels(self, micro_batch: int, span: tuple[int, int]) -> torch.Tensor:
        """Return the labels of the span."""
        rows = self._data.rows("train", self._span(micro_batch, span))
        return torch.from_numpy(rows["labels"]).to(self._device)

    def _span(self, micro_batch: int, span: tuple[int, int]) -> np.ndarray:
        start = micro_batch * self._plan.micro_batch_samples
        return self._indices[start + span[0] : start + span[1]]


@dataclass(slots=True)
class RoundResult:
    """Result of a round on one device."""

    loss: float = 0.0
    """This device's share of the mean loss over the batch's targets."""
    rows: list[TimelineRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """Objects that a device's rounds work on."""

    segment_runner: SegmentRunner
    exchange: Exchange
    batches: Batches
    optimizer: NamedOptimizer
    throttle: CpuThrottle
    tied: dict[str, tuple[int, ...]]
    """Parameter shared with other segments -> the segments that hold it."""


@dataclass(slots=True)
class _MicroBatchState:
    """State of a micro-batch between its forward and its backward."""

    inputs: Values
    outputs: Values
    loss: torch.Tensor | None


class RoundRunner:
    """Runs the rounds of one device."""

    def __init__(self, plan: Plan, assignment: Assignment, context: RoundContext, seed: int) -> None:
        self._plan, self._assignment, self._context, self._seed = plan, assignment, context, seed
        self._actions = actions_of(plan, assignment.device)
        self._held: dict[int, _MicroBatchState] = {}
        self._result = RoundResult()
        graph = context.segment_runner.graph
        carry = [n for n in context.segment_runner.output_values if graph.value(n).gradient]
        self._gradient_values = () if assignment.is_last else tuple(carry)
        alone = len(assignment.segment.devices) == 1
        self._statistics = BatchNormStatistics(context.segment_runner)
        self._bucket = None if alone else GradientBucket(context.segment_runner.parameters, self._statistics.means)

    def run(self, round: int) -> RoundResult:
        """Run one round; the gradients, summed over all devices, end in the parameters' `grad`."""
        self._result = RoundResult()
        self._held.clear()
        self._context.optimizer.clear_gradients()
        self._statistics.start()
        if self._bucket is not None:
            self._bucket.start()
        self._context.exchange.start_round(round)
        self._context.batches.start_round(round, with_targets=self._assignment.is_last)
        for action in self._actions:
            if action.letter == FORWARD:
                self._forward(action)
            elif action.letter == BACKWARD:
                self._backward(action)
            self._context.exchange.on_progress()
        self._reduce()
        return self._result

    def commit(self, round: int, scale: float) -> None:
        """Step the parameters with gradients times `scale`, and keep the round's batch statistics."""
        self._context.optimizer.step(round, scale)
        self._statistics.commit()

    def _forward(self, action: Action) -> None:
        context, assignment, micro_batch = self._context, self._assignment, action.micro_batch
        values = self._inputs(micro_batch)
        first, _ = assignment.span
        draws = DrawContext(self._seed, context.exchange.round, micro_batch, first, self._plan.micro_batch_samples)
        start_s = context.exchange.now_s()
        with context.throttle.throttled():
            outputs = context.segment_runner.run(values, assignment.samples, draws)
            loss = self._mean_loss_share(outputs, micro_batch) if assignment.is_last else None
        self._record_action(action, start_s, self._synchronized_now_s())
        self._held[micro_batch] = _MicroBatchState(values, outputs, loss)
        for transfer in assignment.outgoing:
            part = {
                number: value[transfer.first - first : transfer.end - first] if self._is_batched(number) else value
                for number, value in outputs.items()
                if self._is_batched(number) or transfer.carries_shared
            }
            key = TransferKey("values", context.exchange.round, assignment.index + 1, micro_batch, assignment.device)
            context.exchange.send(transfer.target, key, part)

    def _backward(self, action: Action) -> None:
        context, micro_batch = self._context, action.micro_batch
        held = self._held.pop(micro_batch)
        gradients = {} if self._assignment.is_last else self._output_gradients(micro_batch)
        start_s = context.exchange.now_s()
        with context.throttle.throttled():
            if held.loss is not None:
                if held.loss.requires_grad:
                    held.loss.backward()
            else:
                reached = [n for n in gradients if held.outputs[n].requires_grad]
                if reached:
                    torch.autograd.backward([held.outputs[n] for n in reached], [gradients[n] for n in reached])
        self._record_action(action, start_s, self._synchronized_now_s())
        first, _ = self._assignment.span
        for transfer in self._assignment.incoming:
            part: Values = {}
            for number, value in held.inputs.items():
                if value.grad is not None and (self._is_batched(number) or transfer.carries_shared):
                    whole = value.grad
                    part[number] = (
                        whole[transfer.first - first : transfer.end - first] if self._is_batched(number) else whole
                    )
            key = TransferKey(
                "gradients", context.exchange.round, self._assignment.index - 1, micro_batch, self._assignment.device
            )
            context.exchange.send(transfer.source, key, part)

    def _inputs(self, micro_batch: int) -> Values:
        """Return the forward's inputs, detached; values that carry a gradient become autograd leaves."""
        context, assignment, graph = self._context, self._assignment, self._context.segment_runner.graph
        if assignment.is_first:
            given = context.batches.inputs(micro_batch, assignment.span)
            return {number: given[name] for name, number in graph.inputs.items() if name in given}
        arrivals = [self._receive("values", t.source, micro_batch) for t in assignment.incoming]
        values: Values = {}
        for number in context.segment_runner.input_values:
            parts = [a.tensors[number] for a in arrivals if number in a.tensors]
            joined = torch.cat(parts) if self._is_batched(number) and len(parts) > 1 else parts[0]
            values[number] = joined.requires_grad_(True) if graph.value(number).gradient else joined
        return values

    def _output_gradients(self, micro_batch: int) -> Values:
        """Return the gradients of the sent values: rows are concatenated, gradients of unbatched values are summed."""
        arrivals = [self._receive("gradients", t.target, micro_batch) for t in self._assignment.outgoing]
        found: Values = {}
        for number in self._gradient_values:
            parts = [a.tensors[number] for a in arrivals if number in a.tensors]
            if not parts:
                continue
            if self._is_batched(number):
                found[number] = torch.cat(parts) if len(parts) > 1 else parts[0]
            else:
                found[number] = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        return found

    def _receive(self, kind: str, sender: str, micro_batch: int) -> Arrival:
        exchange, assignment = self._context.exchange, self._assignment
        arrival = exchange.receive(TransferKey(kind, exchange.round, assignment.index, micro_batch, sender))
        source = assignment.index - 1 if kind == "values" else assignment.index + 1
        letter = FORWARD if kind == "values" else BACKWARD
        action = Action(lane=assignment.lane.name, segment=source, letter=letter, micro_batch=micro_batch)
        end_s = max(arrival.sent_s, arrival.arrived_s)
        self._add_row(f"{sender}>{assignment.device}", action, arrival.sent_s, end_s, arrival.size_bytes)
        return arrival

    def _mean_loss_share(self, outputs: Values, micro_batch: int) -> torch.Tensor:
        """Return the summed loss of this device's targets divided by the number of targets in the whole batch."""
        context = self._context
        labels = context.batches.labels(micro_batch, self._assignment.span)
        summed = loss_sum(outputs[context.segment_runner.graph.output], labels, context.batches.task)
        loss = summed / max(1, context.batches.targets)
        self._result.loss += float(loss.detach())
        return loss

    def _reduce(self) -> None:
        context, assignment = self._context, self._assignment
        group = assignment.segment.devices
        start_s = context.exchange.now_s()
        if self._bucket is not None:
            with context.throttle.throttled():
                self._bucket.add_extras(assignment.samples / self._plan.micro_batch_samples)
            began_s = ring_all_reduce(context.exchange, group, assignment.device, assignment.index, self._bucket.flat)
            self._bucket.unpack()
            start_s = max(start_s, began_s)
        shares = any(assignment.index in segments for segments in context.tied.values())
        if shares:
            grads = context.optimizer.gradients()
            sum_tied(context.exchange, assignment.lane, assignment.device, context.tied, grads)
            context.optimizer.set_gradients(grads)
        if len(group) > 1 or shares:
            action = Action(lane=assignment.lane.name, segment=assignment.index, letter=REDUCE, micro_batch=0)
            self._record_action(action, start_s, context.exchange.now_s())

    def _synchronized_now_s(self) -> float:
        """Return the time after the device's asynchronous kernels have ended."""
        if self._context.segment_runner.device.type == "cuda":
            torch.cuda.synchronize(self._context.segment_runner.device)
        return self._context.exchange.now_s()

    def _is_batched(self, number: int) -> bool:
        return bool(self._context.segment_runner.graph.batched(number))

    def _record_action(self, action: Action, start_s: float, end_s: float) -> None:
        """Add a row; clamp negative durations, which clock skew between devices can cause."""
        self._add_row(self._assignment.device, action, start_s, max(start_s, end_s), 0)

    def _add_row(self, device: str, action: Action, start_s: float, end_s: float, size_bytes: int) -> None:
        short = f"{action.segment}{action.letter}{action.micro_batch}"
        spelled = f"{action.lane}/{short}"
        self._result.rows.append(
            TimelineRow(device=device, lane=action.lane, action=spelled, start_s=start_s, end_s=end_s, bytes=size_bytes)
        )
