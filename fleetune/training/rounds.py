"""One worker's work of a round: forwards and backwards in the plan's order, then the sums inside its group.

    F  inputs (data, or values from the segment before) -> run -> values to the segment after, or the loss
    B  gradients of what was sent (or of the loss) -> autograd -> gradients to the segment before
    R  ring all-reduce of gradients and batch statistics; then weights shared with other segments

None of these changes a parameter or a statistic that is kept: `commit` does, and only that.
"""

from dataclasses import dataclass, field

import torch

from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import BACKWARD, FORWARD, REDUCE, Action, Plan, actions_of
from fleetune.launching.limits import CpuThrottle
from fleetune.models.loss import loss_sum
from fleetune.models.randomness import Draws
from fleetune.models.segment import Segment, Values
from fleetune.training.batch_statistics import BatchStatistics
from fleetune.training.batches import Batches
from fleetune.training.bucket import Bucket
from fleetune.training.exchange import Arrival, Exchange, Key
from fleetune.training.place import Place
from fleetune.training.reduction import ring_all_reduce, sum_tied
from fleetune.training.updates import Updates


@dataclass(slots=True)
class RoundWork:
    """What a round leaves behind on one device."""

    loss: float = 0.0
    """This device's part of the mean over the batch's targets."""
    rows: list[TimelineRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a device works with."""

    segment: Segment
    exchange: Exchange
    batches: Batches
    updates: Updates
    pace: CpuThrottle
    tied: dict[str, tuple[int, ...]]
    """Parameters shared with other segments -> those segments."""


@dataclass(slots=True)
class _Held:
    """A micro-batch between its forward and its backward."""

    inputs: Values
    outputs: Values
    loss: torch.Tensor | None


class Rounds:
    """Runs the rounds of one device."""

    def __init__(self, plan: Plan, place: Place, tools: Tools, seed: int) -> None:
        self._plan, self._place, self._tools, self._seed = plan, place, tools, seed
        self._actions = actions_of(plan, place.device)
        self._held: dict[int, _Held] = {}
        self._work = RoundWork()
        graph = tools.segment.graph
        carry = [n for n in tools.segment.gives if graph.value(n).gradient]
        self._gradient_values = () if place.is_last else tuple(carry)
        alone = len(place.segment.devices) == 1
        self._statistics = BatchStatistics(tools.segment)
        self._bucket = None if alone else Bucket(tools.segment.parameters, self._statistics.means)

    def run(self, round: int) -> RoundWork:
        """Gradients of one round, whole and summed, in the parameters' `grad`."""
        self._work = RoundWork()
        self._held.clear()
        self._tools.updates.start()
        self._statistics.start()
        if self._bucket is not None:
            self._bucket.start()
        self._tools.exchange.start_round(round)
        self._tools.batches.start_round(round, with_targets=self._place.is_last)
        for action in self._actions:
            if action.letter == FORWARD:
                self._forward(action)
            elif action.letter == BACKWARD:
                self._backward(action)
            self._tools.exchange.beaten()
        self._reduce()
        return self._work

    def commit(self, round: int, scale: float) -> None:
        """Parameters take their step, with gradients times `scale`, and batch norms keep the round's statistics."""
        self._tools.updates.apply(round, scale)
        self._statistics.commit()

    def _forward(self, action: Action) -> None:
        tools, place, micro_batch = self._tools, self._place, action.micro_batch
        values = self._inputs(micro_batch)
        first, _ = place.span
        draws = Draws(self._seed, tools.exchange.round, micro_batch, first, self._plan.micro_batch_samples)
        start_s = tools.exchange.now_s()
        with tools.pace.throttled():
            outputs = tools.segment.run(values, place.samples, draws)
            loss = self._loss(outputs, micro_batch) if place.is_last else None
        self._row(action, start_s, self._settled_s())
        self._held[micro_batch] = _Held(values, outputs, loss)
        for overlap in place.outflow:
            part = {
                number: value[overlap.first - first : overlap.end - first] if self._batched(number) else value
                for number, value in outputs.items()
                if self._batched(number) or overlap.carries_shared
            }
            key = Key("values", tools.exchange.round, place.index + 1, micro_batch, place.device)
            tools.exchange.send(overlap.target, key, part)

    def _backward(self, action: Action) -> None:
        tools, micro_batch = self._tools, action.micro_batch
        held = self._held.pop(micro_batch)
        gradients = {} if self._place.is_last else self._output_gradients(micro_batch)
        start_s = tools.exchange.now_s()
        with tools.pace.throttled():
            if held.loss is not None:
                if held.loss.requires_grad:
                    held.loss.backward()
            else:
                reached = [n for n in gradients if held.outputs[n].requires_grad]
                if reached:
                    torch.autograd.backward([held.outputs[n] for n in reached], [gradients[n] for n in reached])
        self._row(action, start_s, self._settled_s())
        first, _ = self._place.span
        for overlap in self._place.inflow:
            part: Values = {}
            for number, value in held.inputs.items():
                if value.grad is not None and (self._batched(number) or overlap.carries_shared):
                    whole = value.grad
                    part[number] = (
                        whole[overlap.first - first : overlap.end - first] if self._batched(number) else whole
                    )
            key = Key("gradients", tools.exchange.round, self._place.index - 1, micro_batch, self._place.device)
            tools.exchange.send(overlap.source, key, part)

    def _inputs(self, micro_batch: int) -> Values:
        """What comes in, detached; values that carry a gradient become leaves."""
        tools, place, graph = self._tools, self._place, self._tools.segment.graph
        if place.is_first:
            given = tools.batches.inputs(micro_batch, place.span)
            return {number: given[name] for name, number in graph.inputs.items() if name in given}
        arrivals = [self._arrival("values", o.source, micro_batch) for o in place.inflow]
        values: Values = {}
        for number in tools.segment.needs:
            parts = [a.tensors[number] for a in arrivals if number in a.tensors]
            joined = torch.cat(parts) if self._batched(number) and len(parts) > 1 else parts[0]
            values[number] = joined.requires_grad_(True) if graph.value(number).gradient else joined
        return values

    def _output_gradients(self, micro_batch: int) -> Values:
        """Gradients of what was sent: rows joined, shared values added up."""
        arrivals = [self._arrival("gradients", o.target, micro_batch) for o in self._place.outflow]
        found: Values = {}
        for number in self._gradient_values:
            parts = [a.tensors[number] for a in arrivals if number in a.tensors]
            if not parts:
                continue
            if self._batched(number):
                found[number] = torch.cat(parts) if len(parts) > 1 else parts[0]
            else:
                found[number] = torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]
        return found

    def _arrival(self, kind: str, sender: str, micro_batch: int) -> Arrival:
        exchange, place = self._tools.exchange, self._place
        arrival = exchange.receive(Key(kind, exchange.round, place.index, micro_batch, sender))
        source = place.index - 1 if kind == "values" else place.index + 1
        letter = FORWARD if kind == "values" else BACKWARD
        action = Action(lane=place.lane.name, segment=source, letter=letter, micro_batch=micro_batch)
        end_s = max(arrival.sent_s, arrival.arrived_s)
        self._add(f"{sender}>{place.device}", action, arrival.sent_s, end_s, arrival.size_bytes)
        return arrival

    def _loss(self, outputs: Values, micro_batch: int) -> torch.Tensor:
        """This device's share of the mean loss: its targets' sum over the targets of the whole batch."""
        tools = self._tools
        labels = tools.batches.labels(micro_batch, self._place.span)
        summed = loss_sum(outputs[tools.segment.graph.output], labels, tools.batches.task)
        loss = summed / max(1, tools.batches.targets)
        self._work.loss += float(loss.detach())
        return loss

    def _reduce(self) -> None:
        tools, place = self._tools, self._place
        group = place.segment.devices
        start_s = tools.exchange.now_s()
        if self._bucket is not None:
            with tools.pace.throttled():
                self._bucket.put(place.samples / self._plan.micro_batch_samples)
            began_s = ring_all_reduce(tools.exchange, group, place.device, place.index, self._bucket.flat)
            self._bucket.take()
            start_s = max(start_s, began_s)
        shares = any(place.index in segments for segments in tools.tied.values())
        if shares:
            grads = tools.updates.gradients()
            sum_tied(tools.exchange, place.lane, place.device, tools.tied, grads)
            tools.updates.replace(grads)
        if len(group) > 1 or shares:
            action = Action(lane=place.lane.name, segment=place.index, letter=REDUCE, micro_batch=0)
            self._row(action, start_s, tools.exchange.now_s())

    def _settled_s(self) -> float:
        """Now, once the device's kernels have ended (they run on after the call that started them)."""
        if self._tools.segment.device.type == "cuda":
            torch.cuda.synchronize(self._tools.segment.device)
        return self._tools.exchange.now_s()

    def _batched(self, number: int) -> bool:
        return bool(self._tools.segment.graph.batched(number))

    def _row(self, action: Action, start_s: float, end_s: float) -> None:
        """A start that another device has told may lie in this one's future by what their clocks differ."""
        self._add(self._place.device, action, start_s, max(start_s, end_s), 0)

    def _add(self, device: str, action: Action, start_s: float, end_s: float, size_bytes: int) -> None:
        short = f"{action.segment}{action.letter}{action.micro_batch}"
        spelled = f"{action.lane}/{short}"
        self._work.rows.append(
            TimelineRow(device=device, lane=action.lane, action=spelled, start_s=start_s, end_s=end_s, bytes=size_bytes)
        )
