"""A round is a transaction: nothing committed changes before its commit, batch-norm statistics included."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from fleetune.contracts.plan import Lane, Plan, Segment, Share
from fleetune.contracts.training_request import TrainingRequest
from fleetune.launching.process_limits import CpuThrottle
from fleetune.models import segment as models
from fleetune.program import lower, seats_of
from fleetune.training.optimizer import BatchNormStatistics, NamedOptimizer
from fleetune.training.rounds import RoundContext, RoundRunner
from fleetune.training.seat import new_seat
from tests.support.models.instances import Recorded, batch, recorded
from tests.support.training.model_families import BY_NAME

TRAINING = TrainingRequest(rounds=5, batch_samples=8, micro_batch_samples=4, optimizer="sgd", learning_rate=0.1)
SCALES = {"main": 1.0}


class Alone:
    """The exchange of a device without peers."""

    def __init__(self) -> None:
        self.round = 0
        self.on_progress = lambda: None

    def start_round(self, round: int) -> None:
        """Set the round."""
        self.round = round

    def at_step(self, step: object) -> None:
        """Do nothing before a step."""

    def now_s(self) -> float:
        """Return 0: time does not matter here."""
        return 0.0


class Pictures:
    """Batches of two micro-batches a round, different in each round; inputs of micro-batch `fails` raise an error."""

    task, targets = "image-classification", 8

    def __init__(self) -> None:
        self.round, self.fails = 0, -1

    def start_step(self, step: int, with_targets: bool) -> None:
        """Set the step, which is the round."""
        self.round = step

    def inputs(self, micro_batch: int, span: tuple[int, int], names: object = None) -> dict[str, torch.Tensor]:
        """Return pixels."""
        if micro_batch == self.fails:
            raise ConnectionError("the device before is gone")
        return {"pixel_values": batch(BY_NAME["resnet"], 4)["pixel_values"] + 0.1 * (2 * self.round + micro_batch)}

    def labels(self, micro_batch: int, span: tuple[int, int]) -> torch.Tensor:
        """Return classes."""
        return torch.tensor([0, 1, 2, 0])


class Worker:
    """One device that runs all of a ResNet."""

    def __init__(self, ready: Recorded, rests: bool = False) -> None:
        """rests: whether its lane takes a step in every other round only, unlike that of another device."""
        segments = (Segment(units=ready.units, shares=(Share(device="d0", samples=4),), warmup=1),)
        lanes = (Lane(name="main", segments=segments),)
        plan = Plan(strategy="test", micro_batch_samples=4, micro_batches=2, lanes=lanes)
        if rests:
            other = (Segment(units=ready.units, shares=(Share(device="d1", samples=4),), warmup=1),)
            lanes = (Lane(name="main", segments=segments, rounds=1), Lane(name="other", segments=other))
            plan = replace(plan, lanes=lanes, average_every_rounds=2)
        self.segment = ready.segment(ready.units)
        self.segment.train()
        self.pictures = Pictures()
        (seat,) = seats_of(plan, "d0")
        made = new_seat(
            seat,
            self.segment,
            cast(Any, self.pictures),
            NamedOptimizer(self.segment.parameters, TRAINING),
            tied={},
            collected=False,
        )
        context = RoundContext(
            plan=plan,
            seed=1,
            seats={("main", 0): made},
            exchange=cast(Any, Alone()),
            throttle=CpuThrottle(None),
        )
        self.rounds = RoundRunner(lower(plan).of("d0"), context)

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the state that a checkpoint would hold."""
        return {n: t.detach().clone() for n, t in (*self.segment.parameters.items(), *self.segment.buffers.items())}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A tiny ResNet, full of batch norms."""
    return recorded(BY_NAME["resnet"], tmp_path_factory.mktemp("resnet"))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Return whether two states agree bit by bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("fails", [-1, 1], ids=["complete", "broken off"])
def test_a_round_that_is_not_committed_changes_no_state(fails: int, ready: Recorded) -> None:
    """Bug: running statistics and counts moved in the forward, so a replayed round moved them twice.

    A round may run, be dropped and run again with the result of a single run.
    """
    worker, control = Worker(ready), Worker(ready)
    for each in (worker, control):
        each.rounds.run(0)
        each.rounds.commit(0, SCALES)
    before = worker.state()
    assert any("num_batches_tracked" in name for name in before) and any("running_var" in name for name in before)
    worker.pictures.fails = fails
    try:
        worker.rounds.run(1)
    except ConnectionError:
        assert fails == 1
    assert same(worker.state(), before)
    worker.pictures.fails = -1
    for each in (worker, control):
        each.rounds.run(1)
        each.rounds.commit(1, SCALES)
        assert not same(each.state(), before)
    assert same(worker.state(), control.state())


def test_a_lane_that_rests_computes_nothing_and_goes_on_with_its_next_batch(ready: Recorded) -> None:
    """In the round without its step it reports no rows and no loss, and its state stays; its second step, in round 2,
    has its second batch."""
    worker, control = Worker(ready, rests=True), Worker(ready)
    for each in (worker, control):
        assert each.rounds.run(0).rows
        each.rounds.commit(0, SCALES)
    before = worker.state()
    rest = worker.rounds.run(1)
    assert not rest.rows and not rest.losses
    worker.rounds.commit(1, {})
    assert same(worker.state(), before)
    worker.rounds.run(2, rested={"main": 1})
    assert worker.pictures.round == 1
    worker.rounds.commit(2, SCALES)
    control.rounds.run(1)
    control.rounds.commit(1, SCALES)
    assert same(worker.state(), control.state())


def test_committed_statistics_are_those_of_the_whole_model(ready: Recorded) -> None:
    """After each commit they are those of plain torch after the same forwards, counts included."""
    worker, whole = Worker(ready), ready.whole().train()
    pictures = Pictures()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, fused=True)
    for round in range(3):
        worker.rounds.run(round)
        worker.rounds.commit(round, SCALES)
        pictures.start_step(round, True)
        for micro_batch in range(2):
            logits = whole(**pictures.inputs(micro_batch, (0, 4))).logits
            loss = nn.functional.cross_entropy(logits, pictures.labels(micro_batch, (0, 4)), reduction="sum") / 8
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert same(worker.state(), dict(whole.state_dict()))
    assert int(worker.segment.buffers[next(n for n in worker.segment.buffers if "num_batches" in n)]) == 6


def test_every_kind_of_running_statistic_is_staged() -> None:
    """Batch norms of any dimension, tracking instance norms, norms inside a leaf and one with two names are staged."""
    inner = nn.Sequential(nn.BatchNorm1d(3), nn.ReLU(), nn.BatchNorm1d(3, momentum=None))
    modules = {
        "block": inner,
        "again": inner,
        "instance": nn.InstanceNorm1d(3, track_running_stats=True),
        "bare": nn.BatchNorm1d(3, track_running_stats=False),
    }
    kept = [b for m in {id(m): m for m in modules.values()}.values() for b in m.buffers()]
    before = [b.clone() for b in kept]
    statistics = BatchNormStatistics(cast(models.SegmentRunner, SimpleNamespace(modules=modules)))
    drawn = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))
    for _ in range(2):  # the first is dropped
        statistics.start()
        for module in modules.values():
            module(drawn)
        assert all(torch.equal(a, b) for a, b in zip(kept, before, strict=True))
    statistics.commit()
    expected = nn.BatchNorm1d(3)
    for _ in range(2):  # it stands under two names
        expected(drawn)
    assert torch.equal(kept[0], expected.running_mean) and int(kept[2]) == 2
    assert sum(not torch.equal(a, b) for a, b in zip(kept, before, strict=True)) == 8  # instance norms do not count
