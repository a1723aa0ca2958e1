"""One worker's rounds: it executes the steps of its program, in order.

    receive  values or gradients of a micro-batch, for the next forward or backward
    run      F: inputs (data, or what was received) -> values or the loss; B: gradients -> autograd
    send     a forward's values, or the gradients of what it has read; with letter R gradients of shared weights
    reduce   ring all-reduce of gradients; `tie` adds what came from segments with shared weights
    pull, push, hand, collect: see `collector`

None of these changes a parameter that counts or a committed statistic; only `commit` does, and what `average` leaves
belongs to the same transaction. With a collector, a worker's parameters are copies, which every round's `pull` renews.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from fleetune.codecs import ErrorFeedback
from fleetune.contracts.head_scores import HeadScores
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import AVERAGE, BACKWARD, FORWARD, REDUCE, Action, Plan, parse_action
from fleetune.launching.process_limits import CpuThrottle
from fleetune.models.attention_heads import AttentionHead
from fleetune.models.loss import loss_sum
from fleetune.models.randomness import RandomContext
from fleetune.program import DeviceProgram, Step, steps
from fleetune.program.steps import average_steps
from fleetune.training.averaging import Averager, Averages
from fleetune.training.batches import lane_seed
from fleetune.training.collector import Collector, pull_state, push_state
from fleetune.training.exchange import Arrival, Exchange, TransferKey
from fleetune.training.gradients import UNSCALED, add_terms, ring_all_reduce, shared_gradients
from fleetune.training.head_scorer import SeatScorer
from fleetune.training.link_coding import LinkCoder, lane_of_residual
from fleetune.training.seat import MicroBatchState, TrainingSeat

VALUES, RING, TIED, SCORED = "values", "ring", "tied", "scored"
"""Kinds of messages: values or gradients across a cut, a step of a ring, gradients of shared weights, a step of a ring
that sums a micro-batch's gradients for scores."""


@dataclass(slots=True)
class RoundResult:
    """Result of a round on one device."""

    losses: dict[str, float] = field(default_factory=dict)
    """Lane -> this device's share of the mean loss over the targets of the lane's batch."""
    rows: list[TimelineRow] = field(default_factory=list)
    scores: list[HeadScores] = field(default_factory=list)
    """Of the heads, or parts of heads, whose gradients this device has; empty but in a round that scores them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundContext:
    """Objects that a device's rounds work on."""

    plan: Plan
    seed: int
    """The run's."""
    seats: Mapping[tuple[str, int], TrainingSeat]
    """(Lane, segment) -> seat."""
    exchange: Exchange
    throttle: CpuThrottle
    collector: Collector | None = None
    averages: Averages | None = None
    averager: Averager | None = None
    dealt: Plan | None = None
    """The plan that dealt the lanes their samples and seeds, which they keep; None: `plan`."""
    heads: tuple[AttentionHead, ...] = ()
    """Of the whole model; empty unless the plan scores them."""
    feedback: ErrorFeedback = field(default_factory=ErrorFeedback)
    """What messages of links with error feedback have lost, which belongs to the device's state."""


class RoundRunner:
    """Runs the rounds of one device."""

    def __init__(self, program: DeviceProgram, context: RoundContext) -> None:
        self._program, self._context = program, context
        self._result = RoundResult()
        self._loss_scale = UNSCALED
        self._frees = _last_uses(program)
        self._scorers: dict[tuple[str, int], SeatScorer] = {}
        self._coder = LinkCoder(context.plan, program.device, context.feedback)

    def run(
        self, round: int, loss_scale: float = UNSCALED, rested: Mapping[str, int] = MappingProxyType({})
    ) -> RoundResult:
        """Run one round; the gradients, summed over all devices, times `loss_scale`, end in the parameters' `grad`.

        rested: lane -> rounds before this one in which it rested.
        """
        self._result, self._loss_scale = RoundResult(), loss_scale
        self._context.exchange.start_round(round)
        self._coder.start_round(loss_scale)
        resting = self._context.plan.resting_in(round)
        refreshes = self._context.plan.refreshes_gates_in(round)
        for seat in self._context.seats.values():
            seat.start_round(round - rested.get(seat.seat.lane.name, 0))
            seat.runner.runs_all_heads = refreshes
        self._scorers = {}
        if refreshes:
            with self._context.throttle.throttled():
                self._scorers = {at: self._scorer(seat) for at, seat in self._context.seats.items()}
        if self._context.collector is not None:
            self._context.collector.start_round()
        for number, step in enumerate(self._program.round):
            if step.action.lane in resting:
                continue
            self._context.exchange.at_step(step)
            _KINDS[step.kind](self, step)
            if number in self._frees:
                self._context.seats[step.action.lane, step.action.segment].held.pop(step.action.micro_batch)
            self._context.exchange.on_progress()
        for seat in self._context.seats.values():
            lane = seat.seat.lane.name
            if seat.seat.is_last and lane not in resting:
                self._result.losses[lane] = self._result.losses.get(lane, 0.0) + seat.loss
        self._result.scores = [scores for scorer in self._scorers.values() for scores in scorer.scores()]
        self._scorers = {}
        return self._result

    def abandon(self) -> None:
        """Free what a round that is broken off holds; its inputs, graphs and messages are needed no more.

        Gradients, working statistics and residuals stay: of a prepared round they may still be committed, and the next
        `run` starts without them.
        """
        for seat in self._context.seats.values():
            seat.held.clear()
            seat.arrivals.clear()
            seat.terms.clear()

    def commit(self, round: int, scales: Mapping[str, float | None]) -> None:
        """Step the parameters with gradients times their lane's scale, and keep the round's batch statistics.

        The parameters of a lane whose scale is None stay as they are, and so does all of a lane without one, which
        rests; with a collector all have the same scale.
        """
        for seat in self._context.seats.values():
            if seat.seat.lane.name not in scales:
                continue
            scale = scales[seat.seat.lane.name]
            if scale is None:
                seat.optimizer.clear_gradients()
            else:
                seat.optimizer.step(round, scale)
                if self._context.plan.collector == "":
                    seat.runner.renew_copies()
            seat.statistics.commit()
        if self._context.collector is not None:
            self._context.collector.commit(round, next(iter(scales.values())))
        still = {lane.name for lane in self._context.plan.lanes if scales.get(lane.name) is None}
        self._context.feedback.commit(lambda key: lane_of_residual(key) in still)

    def average(self) -> list[TimelineRow]:
        """Exchange the parameters of all lanes for their average, part by part; return a row per link and seat."""
        self._result = RoundResult()
        averages = self._context.averages
        assert averages is not None, "a plan that averages has parts of averages"
        for part, step in average_steps(self._program.average, len(averages.parts)):
            if averages.concerns(part, step):
                numbered = replace(step, action=replace(step.action, micro_batch=part))
                _KINDS[step.kind](self, numbered)
                self._context.exchange.on_progress()
        if self._context.averager is not None:
            self._context.averager.end()
        for seat in self._context.seats.values():
            seat.runner.drop_copies()
        return list(_joined(self._result.rows))

    def _receive(self, step: Step) -> None:
        action = step.action
        if action.letter == REDUCE:
            seat = self._context.seats[action.lane, action.micro_batch]
            seat.terms[action.segment] = self._arrival(step, self._key(TIED, step, step.peer))
            return
        on = 1 if action.letter == FORWARD else -1
        seat = self._context.seats[action.lane, action.segment + on]
        arrival = self._arrival(step, self._key(VALUES, step, step.peer))
        with self._context.throttle.throttled():
            samples = step.end - step.first
            seat.take_in(step, self._coder.decode(action, step.peer, arrival, samples, seat.sample_shape))

    def _arrival(self, step: Step, key: TransferKey) -> Arrival:
        """Wait for a transfer from another segment, and record its row."""
        arrival = self._context.exchange.receive(key)
        if step.peer == self._program.device:
            return arrival
        end_s = max(arrival.sent_s, arrival.arrived_s)
        self._add_row(f"{step.peer}>{self._program.device}", step.action, arrival.sent_s, end_s, arrival.size_bytes)
        return arrival

    def _run(self, step: Step) -> None:
        seat = self._context.seats[step.action.lane, step.action.segment]
        (self._forward if step.action.letter == FORWARD else self._backward)(seat, step.action)

    def _forward(self, seat: TrainingSeat, action: Action) -> None:
        context, micro_batch = self._context, action.micro_batch
        first, _ = seat.seat.span
        seed = lane_seed(context.dealt or context.plan, seat.seat.lane, context.seed)
        draws = RandomContext(seed, context.exchange.round, micro_batch, first, context.plan.micro_batch_samples)
        start_s = context.exchange.now_s()
        with context.throttle.throttled():
            values = seat.take_inputs(micro_batch)
            outputs = seat.runner.run(values, seat.seat.samples, draws)
            loss = self._mean_loss_share(seat, outputs, micro_batch) if seat.seat.is_last else None
        self._record_action(action, start_s, self._synchronized_now_s(seat))
        seat.held[micro_batch] = MicroBatchState(values, outputs if loss is None else {}, loss)

    def _backward(self, seat: TrainingSeat, action: Action) -> None:
        held = seat.held[action.micro_batch]
        gradients = {} if seat.seat.is_last else seat.take_output_gradients()
        scorer = self._scorers.get((action.lane, action.segment))
        start_s = self._context.exchange.now_s()
        with self._context.throttle.throttled(), scorer.scoring(action.micro_batch) if scorer else nullcontext():
            if held.loss is not None:
                if held.loss.requires_grad:
                    held.loss.backward()
            else:
                reached = [n for n in gradients if held.outputs[n].requires_grad]
                if reached:
                    torch.autograd.backward([held.outputs[n] for n in reached], [gradients[n] for n in reached])
        held.loss, held.outputs = None, {}  # frees the graph before anything is sent
        self._record_action(action, start_s, self._synchronized_now_s(seat))

    def _scorer(self, seat: TrainingSeat) -> SeatScorer:
        """Return what scores a seat's heads in this round; in a group, micro-batch by micro-batch in a ring."""
        exchange, device, placed = self._context.exchange, self._program.device, seat.seat

        def sum_over_group(micro_batch: int, flat: torch.Tensor) -> None:
            kind = f"{SCORED}-{micro_batch}"
            key = TransferKey(kind, exchange.round, placed.lane.name, placed.index, 0, device)
            ring_all_reduce(exchange, placed.segment.devices, key, flat)

        return SeatScorer(seat, self._context.heads, self._loss_scale, sum_over_group)

    def _send(self, step: Step) -> None:
        seat, action = self._context.seats[step.action.lane, step.action.segment], step.action
        if action.letter == REDUCE:
            ends = (action.segment, action.micro_batch)
            shared = shared_gradients(seat.tied, ends, seat.optimizer.gradients())
            self._context.exchange.send(step.peer, self._key(TIED, step, self._program.device), shared)
            return
        held = seat.held[action.micro_batch]
        if action.letter == FORWARD:
            whole = held.outputs
        else:
            whole = {number: value.grad for number, value in held.inputs.items() if value.grad is not None}
        part = seat.samples_of(whole, step.first, step.end, step.shared)
        with self._context.throttle.throttled():
            coded = self._coder.encode(action, step.peer, part, seat.sample_shape)
        key = self._key(VALUES, step, self._program.device)
        self._context.exchange.send(step.peer, key, coded.tensors, coded.described)

    def _mean_loss_share(
        self, seat: TrainingSeat, outputs: Mapping[int, torch.Tensor], micro_batch: int
    ) -> torch.Tensor:
        """Return the summed loss of the seat's targets divided by the number of targets in the lane's batch."""
        assert seat.batches is not None, "a last segment reads labels"
        labels = seat.batches.labels(micro_batch, seat.seat.span)
        summed = loss_sum(outputs[seat.runner.graph.output], labels, seat.batches.task)
        loss = summed / max(1, seat.batches.targets)
        seat.loss += float(loss.detach())
        return loss if self._loss_scale == UNSCALED else loss * self._loss_scale

    def _reduce(self, step: Step) -> None:
        context, action = self._context, step.action
        seat = context.seats[action.lane, action.segment]
        assert seat.bucket is not None, "a group of several devices has a bucket"
        start_s = context.exchange.now_s()
        with context.throttle.throttled():
            seat.bucket.mark_reached()
        began_s = ring_all_reduce(
            context.exchange, step.peers, self._key(RING, step, self._program.device), seat.bucket.flat
        )
        seat.bucket.drop_unreached()
        self._record_action(action, max(start_s, began_s), context.exchange.now_s())

    def _tie(self, step: Step) -> None:
        seat = self._context.seats[step.action.lane, step.action.segment]
        start_s = self._context.exchange.now_s()
        terms = {segment: arrival.tensors for segment, arrival in seat.terms.items()}
        own = seat.optimizer.gradients()
        seat.optimizer.set_gradients(add_terms(seat.tied, step.action.segment, own, terms))
        if len(seat.seat.segment.devices) == 1:
            self._record_action(step.action, start_s, self._context.exchange.now_s())

    def _hand(self, step: Step) -> None:
        """Send parameters, or a part of the averages, to one seat."""
        action, key = step.action, self._key(steps.HAND, step, self._program.device)
        if action.letter == AVERAGE:
            assert self._context.averager is not None, "only an averaging device hands out averages"
            means = self._context.averager.means_of(action.lane, action.segment, action.micro_batch)
            self._context.exchange.send(step.peer, key, means.tensors, means.counts)
            return
        assert self._context.collector is not None, "only a collector hands out parameters"
        self._context.exchange.send(step.peer, key, self._context.collector.state_of(action.lane, action.segment))

    def _pull(self, step: Step) -> None:
        """Receive the seat's parameters, or a part of its averages."""
        seat = self._context.seats[step.action.lane, step.action.segment]
        arrival = self._exchange_arrival(steps.HAND, step)
        if step.action.letter == AVERAGE:
            assert self._context.averages is not None, "a plan that averages has parts of averages"
            self._context.averages.pull(seat, step, arrival)
        else:
            pull_state(seat, arrival.tensors, step.peer)

    def _push(self, step: Step) -> None:
        """Send the seat's gradients to the collector, or a part of its state to the device that averages."""
        seat = self._context.seats[step.action.lane, step.action.segment]
        key = self._key(steps.PUSH, step, self._program.device)
        if step.action.letter == AVERAGE:
            assert self._context.averages is not None, "a plan that averages has parts of averages"
            pushed = self._context.averages.pushed(seat, step.action.micro_batch)
            self._context.exchange.send(step.peer, key, pushed.tensors, pushed.counts)
        else:
            self._context.exchange.send(step.peer, key, push_state(seat))

    def _collect(self, step: Step) -> None:
        """Receive a seat's gradients, or a part of its state to average."""
        action, arrival = step.action, self._exchange_arrival(steps.PUSH, step)
        if action.letter == AVERAGE:
            averager, averages = self._context.averager, self._context.averages
            assert averager is not None and averages is not None, "only an averaging device collects states"
            with self._context.throttle.throttled():
                averager.collect(action.lane, action.micro_batch, averages.state_of(step, arrival))
        else:
            assert self._context.collector is not None, "only a collector collects gradients"
            self._context.collector.collect(action.lane, arrival.tensors, step.peer)

    def _exchange_arrival(self, kind: str, step: Step) -> Arrival:
        arrival = self._context.exchange.receive(self._key(kind, step, step.peer))
        if step.peer != self._program.device:
            link = f"{step.peer}>{self._program.device}"
            self._add_row(link, step.action, arrival.sent_s, max(arrival.sent_s, arrival.arrived_s), arrival.size_bytes)
        return arrival

    def _key(self, kind: str, step: Step, sender: str) -> TransferKey:
        """Return the key of a transfer, which both ends derive from the same action."""
        action = step.action
        name = kind if kind in (RING, TIED) else f"{kind}-{action.letter}"
        return TransferKey(name, self._context.exchange.round, action.lane, action.segment, action.micro_batch, sender)

    def _synchronized_now_s(self, seat: TrainingSeat) -> float:
        """Return the time after the device's asynchronous kernels have ended."""
        if seat.runner.device.type == "cuda":
            torch.cuda.synchronize(seat.runner.device)
        return self._context.exchange.now_s()

    def _record_action(self, action: Action, start_s: float, end_s: float) -> None:
        """Add a row; clamp negative durations, which clock skew between devices can cause."""
        self._add_row(self._program.device, action, start_s, max(start_s, end_s), 0)

    def _add_row(self, device: str, action: Action, start_s: float, end_s: float, size_bytes: int) -> None:
        self._result.rows.append(
            TimelineRow(
                device=device, lane=action.lane, action=str(action), start_s=start_s, end_s=end_s, bytes=size_bytes
            )
        )


def _last_uses(program: DeviceProgram) -> set[int]:
    """Return the numbers of the steps after which a micro-batch's state on its seat is needed no more."""
    last = {
        step.action: number
        for number, step in enumerate(program.round)
        if step.action.letter == BACKWARD and step.kind in (steps.RUN, steps.SEND)
    }
    return set(last.values())


def _joined(rows: Iterable[TimelineRow]) -> Iterator[TimelineRow]:
    """Yield one row per link, lane and segment for the parts of an average: micro-batch 0, with the bytes of all."""
    found: dict[tuple[str, str], list[TimelineRow]] = {}
    for row in rows:
        whole = str(replace(parse_action(row.action), micro_batch=0))
        found.setdefault((row.device, whole), []).append(row)
    for (_, action), parts in found.items():
        yield replace(
            parts[0], action=action, end_s=max(row.end_s for row in parts), bytes=sum(row.bytes for row in parts)
        )


_KINDS: Mapping[str, Callable[[RoundRunner, Step], None]] = {
    steps.RECEIVE: RoundRunner._receive,
    steps.RUN: RoundRunner._run,
    steps.SEND: RoundRunner._send,
    steps.REDUCE: RoundRunner._reduce,
    steps.TIE: RoundRunner._tie,
    steps.PULL: RoundRunner._pull,
    steps.PUSH: RoundRunner._push,
    steps.HAND: RoundRunner._hand,
    steps.COLLECT: RoundRunner._collect,
}
"""Bound methods would keep a runner, and all memory of its plan, until Python looks for circles."""
