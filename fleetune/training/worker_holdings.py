"""What a worker holds, live and as copies, and how it comes to another version or plan: its half of a recovery."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from fleetune.contracts.metrics import TimelineRow
from fleetune.errors import FleetuneError, TryAgain
from fleetune.recovery.holdings import BACKUP, INITIAL, LIVE, PREPARED, SNAPSHOT, Attempt, Version
from fleetune.recovery.transfers import Item
from fleetune.training.checkpoints import Tensors
from fleetune.training.exchange import BACKUP_ITEMS, attempt_of
from fleetune.training.liveness import COMPUTING, LOADING
from fleetune.training.migration import (
    Migration,
    describe_holding,
    describe_version,
    items_of,
    send_backups,
)
from fleetune.training.parcels import Received, StoredItems, receive_parcels, send_parcels
from fleetune.training.running_plan import PlanLoader, RunningPlan, items_held
from fleetune.training.task import WorkerTask
from fleetune.training.worker_links import WorkerLinks


@dataclass(frozen=True, slots=True)
class Copy:
    """Items of one version in one form."""

    form: str
    version: Version
    items: dict[Item, Tensors]


class Copies:
    """Snapshots and backups of one device; nothing is freed but by `keep_only` and `clear`."""

    def __init__(self) -> None:
        self._held: list[Copy] = []

    def __iter__(self) -> Iterator[Copy]:
        return iter(self._held)

    def snapshot(self, version: Version, items: Mapping[Item, Tensors]) -> Mapping[Item, Tensors]:
        """Keep a copy of live state; return it, whose memory never changes."""
        copied = dict[Item, Tensors]()
        for item, tensors in items.items():
            copied[item] = {key: tensor.detach().clone() for key, tensor in tensors.items()}
        self._held.append(Copy(SNAPSHOT, version, copied))
        return copied

    def add_backup(self, version: Version, items: Mapping[Item, Tensors]) -> None:
        """Keep what another device has sent."""
        for copy in self._held:
            if (copy.form, copy.version) == (BACKUP, version):
                copy.items.update(items)
                return
        self._held.append(Copy(BACKUP, version, dict(items)))

    def at(self, version: Version) -> dict[Item, Tensors]:
        """Return everything that is held of a version."""
        return {item: tensors for copy in self._held if copy.version == version for item, tensors in copy.items.items()}

    def keep_only(self, version: Version) -> None:
        """Free all other versions."""
        self._held = [copy for copy in self._held if copy.version == version]

    def clear(self) -> None:
        """Free everything."""
        self._held = []


@dataclass(slots=True)
class _Arriving:
    """A plan and a version that this worker comes to."""

    order: Migration
    received: Received
    stored: StoredItems
    """What it reads besides."""
    built: bool = False
    """True if nothing had to be freed for it."""


class WorkerHoldings:
    """The state of one device, under the plan that runs; nothing is freed but by `drop_old` and `release`."""

    def __init__(self, task: WorkerTask, links: WorkerLinks, loader: PlanLoader | None = None) -> None:
        """loader: of plans; None: one of this worker."""
        self._task, self._links = task, links
        self._exchange = links.exchange
        self._loader = loader or PlanLoader(task, links.exchange)
        self._copies = Copies()
        self._arriving: _Arriving | None = None
        self._frozen: dict[str, torch.Tensor] = {}
        """Frozen weights that were loaded before a plan was there."""
        self._backing: Version | None = None
        """The version whose backups are on their way."""
        self.running: RunningPlan | None = None
        """None while the device is in no plan."""
        self.prepared: tuple[int, Attempt] | None = None
        """Round and attempt of the gradients that are complete."""
        self.settled = False
        """True once what was moved in this attempt is live."""
        self._settling = threading.Condition()
        self.averaged: list[TimelineRow] = []
        """Rows of the average that followed the newest commit."""

    def describe_program(self) -> None:
        """Read the model's description, which takes a while, before it is needed."""
        if self._task.device in self._task.plan.devices:
            self._loader.described.program(self._task.plan, self._task.device)

    def load_ahead(self) -> None:
        """Load what no training changes of this device's part of the first plan, so that others need not wait for it.

        What fails here fails again when it is needed, and is told then.
        """
        with suppress(FleetuneError, OSError):
            self.describe_program()
            self._frozen = self._loader.load_frozen()

    def enter(self, attempt: Attempt) -> None:
        """End the running round and say what is held; what is prepared stays so.

        A state that lanes were just being averaged into is no version. A prepared round that an average follows cannot
        be applied alone, so it is run again.
        """
        held = list[dict[str, Any]]()
        self._settle(False)
        self._exchange.start_attempt(attempt)
        if self.running is not None and self.running.state.is_whole:
            state = self.running.state
            self.running.rounds.abandon()
            items = tuple(self.running.items())
            alike = [lane.name for lane in self._task.plan.lanes] if self.running.is_averaged else []
            held.append(describe_holding(state.version, LIVE, items, alike))
            if self.prepared is not None and not self.running.averages_after(self.prepared[0]):
                held.append(describe_holding(Version(state.done + 1, self.prepared[1]), PREPARED, items))
        held += [describe_holding(copy.version, copy.form, copy.items) for copy in self._copies]
        self._arriving, self.averaged, self._backing = None, [], None
        self._links.bytes_sent()  # those of the broken round
        said = {"attempt": attempt, "holdings": held, "lost": dict(self._links.endpoint.lost_from)}
        self._exchange.send_control("aborted", said)

    def move(self, order: Migration) -> None:
        """Send and receive what the new plan wants elsewhere, beside all that is held; what is stored is read later."""
        self._links.beat.doing = LOADING
        if order.commit is not None and due(order.commit) == self.prepared:
            self.apply(order.commit)
        self._links.follow(order.addresses, order.gone)
        self._links.connect(each.target for each in order.parcels if each.source == self._task.device)
        send_parcels(self._exchange, order, self._items_at(order.version))
        arriving = self._arriving = _Arriving(order, receive_parcels(self._exchange, order), self._loader.stored(order))
        if self.running is None and self._task.device in order.plan.devices:
            self._build(arriving)
        self._exchange.send_control("moved", {"attempt": self._exchange.attempt})
        self._links.beat.doing = COMPUTING

    def drop_old(self, version: Version) -> None:
        """Make live what was moved, and free all else."""
        arriving = self._arriving
        if arriving is None or arriving.order.version != version:
            return
        held = self._kept_for_others(arriving)
        same = self.running is not None and self.running.is_after(arriving.order)
        if self._task.device not in arriving.order.plan.devices:
            self.running = None
        elif not (arriving.built or same):
            self._links.beat.doing = LOADING
            self._build(arriving)
            self._links.beat.doing = COMPUTING
        if self.running is not None:
            self._links.connect(self.running.program.peers)  # one may have come back
        self._keep_copies(arriving, held)
        self.prepared, self._arriving = None, None
        self._settle(True)

    def await_settled(self) -> RunningPlan | None:
        """Wait, in another thread, until what was moved is live; return what runs."""
        with self._settling:
            self._settling.wait_for(lambda: self.settled)
            return self.running

    def _settle(self, settled: bool) -> None:
        with self._settling:
            self.settled = settled
            self._settling.notify_all()

    def apply(self, commit: Mapping[str, Any]) -> RunningPlan:
        """Apply the prepared round; return what runs."""
        assert self.running is not None, "what is prepared is running"
        self.prepared = None
        self.averaged = self.running.apply(commit)
        self._links.bytes_sent()  # an average's bytes are in its rows, not in the next round's
        return self.running

    def back_up(self, running: RunningPlan) -> None:
        """Take a snapshot, and send others the backups that they hold for this device."""
        taken = self._copies.snapshot(running.version, running.items())
        others = [each for each in running.backups if each.source == self._task.device]
        self._links.connect(each.holder for each in others)
        send_backups(self._exchange, running.order, running.version, taken, others)
        self._backing = running.version

    def end_backup(self, running: RunningPlan) -> None:
        """Take in backups that have arrived; report once all are here.

        Those of other versions are let go: devices begin with the next one when all have this one.
        """
        if self._backing is None:
            return
        for key, arrival in self._exchange.take(BACKUP_ITEMS):
            if key.round == self._backing.rounds:
                held = items_held(self._task.device, running.backups, key.sender)
                sent = items_of(
                    key.lane, arrival.tensors
                )  # whatever is not held for its sender would stand for another's
                self._copies.add_backup(self._backing, {item: sent[item] for item in sent.keys() & held})
        if running.backups_here <= self._copies.at(self._backing).keys():
            version, self._backing = self._backing, None
            self._exchange.send_control("backed_up", describe_version(version))

    def release(self, version: Version) -> None:
        """Free copies of all versions but this one, which is whole."""
        self._copies.keep_only(version)

    def _build(self, arriving: _Arriving) -> None:
        """Load what this device does under another plan; of what was there before, each tensor goes as its copy comes,
        and only what this device keeps for others stays.
        """
        order, before = arriving.order, self.running
        own = {} if order.version == INITIAL else {**self._items_at(order.version), **arriving.received.items}
        arriving.received = Received(self._kept_for_others(arriving), arriving.received.residuals)
        frozen, self._frozen = before.held.frozen() if before is not None else self._frozen, {}
        live = before if before is not None and before.holds(order.version) else None
        if live is not None:
            lost = live.context.feedback.state()  # those of rounds that are run again count no more
        else:
            lost = {**arriving.received.residuals, **arriving.stored.residuals()}
        alike = live is not None and live.is_averaged
        self.running = before = live = None
        self.running = self._loader.load(order, own, arriving.stored.read, lost, frozen)
        self.running.is_averaged = alike  # plans may differ in how often they average, so the round does not tell
        self._exchange.unpace()
        for peer, bytes_per_s in order.paced_bytes_per_s.items():
            self._exchange.pace(peer, bytes_per_s)
        arriving.built = True

    def _items_at(self, version: Version) -> dict[Item, Tensors]:
        """Return everything that is held of a version, live or as a copy; after an average, for all lanes."""
        running, copied = self.running, self._copies.at(version)
        if running is None or not running.holds(version):
            return copied
        live = running.items()
        alike = self._task.plan.lanes if running.is_averaged else ()
        others = {Item(lane.name, item.name): tensors for lane in alike for item, tensors in live.items()}
        return {**copied, **others, **live}

    def _kept_for_others(self, arriving: _Arriving) -> dict[Item, Tensors]:
        """Return what this device has, and is to keep as backups: also of what moves away from it."""
        order = arriving.order
        if self._task.device not in {each.holder for each in order.plan.backups}:
            return {}
        found = {**self._items_at(order.version), **arriving.received.items}
        return {item: found[item] for item in self._loader.backups_here(order.plan) & found.keys()}

    def _keep_copies(self, arriving: _Arriving, held: dict[Item, Tensors]) -> None:
        """Keep the snapshot and the backups that the plan wants of its version, and nothing else."""
        order, running = arriving.order, self.running
        if running is None or not order.plan.backup_every_rounds:
            self._copies.clear()
            return
        held.update(arriving.stored.read(running.backups_here - held.keys()))
        if lacking := running.backups_here - held.keys():
            raise TryAgain(f"nothing was received of the backup of {min(lacking)}; run again")
        self._copies.clear()
        self._copies.snapshot(order.version, running.items())
        self._copies.add_backup(order.version, held)


def due(commit: Mapping[str, Any]) -> tuple[int, Attempt]:
    """Return the round and the attempt of a commit."""
    return commit["round"], attempt_of(commit)
