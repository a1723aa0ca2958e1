"""What a worker holds: backups are of the version that they were sent for, and residuals of the one that is live."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fleetune.launching.process_limits import CpuThrottle
from fleetune.recovery.holdings import Attempt, SentBackup, Version
from fleetune.recovery.transfers import Item
from fleetune.training.exchange import BACKUP_ITEMS, Arrival, TransferKey
from fleetune.training.migration import Migration
from fleetune.training.running_plan import PlanLoader, RunningPlan
from fleetune.training.task import WorkerTask
from fleetune.training.worker_holdings import WorkerHoldings
from fleetune.training.worker_links import WorkerLinks
from fleetune.training.worker_state import CommittedState
from tests.support.clock import fleets

FIRST = Attempt(1, 1)
W, X = Item("main", "w"), Item("main", "x")


class FakeExchange:
    """Delivers what a test lets arrive, and notes what is said."""

    name, attempt = "b", FIRST

    def __init__(self) -> None:
        self.arrived: list[tuple[TransferKey, Arrival]] = []
        self.said: list[tuple[str, int]] = []

    def arrives(self, sender: str, version: int, item: Item) -> None:
        """Let an item of a version come, whose content is its version."""
        key = TransferKey(BACKUP_ITEMS, version, item.lane, 0, 0, sender)
        self.arrived.append((key, Arrival({f"model|{item.name}": torch.tensor(float(version))}, 0.0, 0.0, 4, {})))

    def take(self, kind: str) -> list[tuple[TransferKey, Arrival]]:
        """Hand over what has arrived."""
        assert kind == BACKUP_ITEMS
        found, self.arrived = self.arrived, []
        return found

    def unpace(self) -> None:
        """Nothing is paced."""

    def send_control(self, kind: str, header: dict[str, Any]) -> None:
        """Note a message to the coordinator."""
        self.said.append((kind, header.get("rounds", 0)))


def test_what_comes_late_is_no_part_of_the_next_version() -> None:
    """b holds w and x for a. A second copy of x of version 1 arrives while w of version 2 does: version 2 is not whole
    until its own x is here, and from a: an x of c would stand for a's after a loss."""
    exchange = FakeExchange()
    links = cast(WorkerLinks, SimpleNamespace(exchange=exchange, connect=lambda peers: list(peers)))
    holdings = WorkerHoldings(cast(WorkerTask, SimpleNamespace(device="b")), links)
    versions: list[float] = []
    for number in (1, 2):
        running = running_plan(number)
        holdings.back_up(running)
        exchange.arrives("a", number, W)
        if number == 2:
            exchange.arrives("a", 1, X)
            exchange.arrives("c", 2, X)
        holdings.end_backup(running)
        assert len(exchange.said) == number - 1, "x of this version is still missing"
        exchange.arrives("a", number, X)
        holdings.end_backup(running)
        held = holdings._copies.at(running.version)  # private: the values of copies are sent in a recovery alone
        versions += [float(tensor) for item in (W, X) for tensor in held[item].values()]
    assert exchange.said == [("backed_up", 1), ("backed_up", 2)] and versions == [1.0, 1.0, 2.0, 2.0]


def running_plan(rounds: int) -> RunningPlan:
    """A plan at a version, in which b trains nothing and holds w and x for a."""
    backups = (SentBackup(source="a", holder="b", items=frozenset({W, X})),)
    return cast(
        RunningPlan,
        SimpleNamespace(
            version=Version(rounds, FIRST), items=dict, backups=backups, backups_here=backups[0].items, order=None
        ),
    )


@pytest.mark.parametrize(("version", "carried"), [(3, {"k": 1.0}), (2, {})], ids=["live", "older"])
def test_what_messages_lost_is_carried_to_another_plan_at_its_own_version_alone(
    version: int, carried: dict[str, float]
) -> None:
    """Bug: going back to copies of round 2, a device would add what its messages had lost in round 3, which is run
    again, and so count it twice."""
    exchange = FakeExchange()
    links = SimpleNamespace(
        exchange=exchange, connect=list, follow=lambda addresses, gone: None, beat=SimpleNamespace(doing="")
    )
    task = SimpleNamespace(device="b", plan=fleets.PLAN)
    live = Version(3, FIRST)
    feedback = SimpleNamespace(state=lambda: {"k": 1.0})
    running = SimpleNamespace(
        holds=lambda asked: asked == live,
        is_after=lambda order: False,
        is_averaged=False,
        items=dict,
        held=SimpleNamespace(frozen=dict),
        context=SimpleNamespace(feedback=feedback),
        program=SimpleNamespace(peers=()),
    )
    nothing, given = SimpleNamespace(read=None, residuals=dict), list[Any]()

    def load(order: Migration, own: Any, stored: Any, residuals: Any, frozen: Any) -> Any:
        given.append(residuals)
        return running

    loader = cast(PlanLoader, SimpleNamespace(load=load, backups_here=lambda plan: (), stored=lambda order: nothing))
    holdings = WorkerHoldings(cast(WorkerTask, task), cast(WorkerLinks, links), loader)
    holdings.running = cast(RunningPlan, running)
    holdings.move(Migration(plan=fleets.PLAN, version=Version(version, FIRST)))
    holdings.drop_old(Version(version, FIRST))
    assert given == [carried]


def test_whether_lanes_are_alike_is_known_by_the_average_itself() -> None:
    """Bug: by the number of the round. A training that averaged every 3 rounds and went on from round 4 by a plan that
    averages every 2 took one client's state for another's."""
    plan = replace(fleets.PLAN, average_every_rounds=2)
    running = RunningPlan(
        task=cast(Any, SimpleNamespace(training=SimpleNamespace(rounds=9), accelerator="cpu")),
        described=cast(Any, None),
        order=Migration(plan=plan, version=Version(4, FIRST)),
        held=cast(Any, None),
        state=CommittedState({}, Version(4, FIRST)),
        context=cast(Any, SimpleNamespace(plan=plan, throttle=CpuThrottle(None))),
        program=cast(Any, None),
        rounds=cast(Any, SimpleNamespace(commit=lambda round, scales: None, average=list)),
    )
    found = [running.is_averaged]
    for round in (4, 5, 6):
        running.apply({"round": round, "attempt": FIRST, "scales": {}})
        found.append(running.is_averaged)
    assert found == [False, False, True, False]
