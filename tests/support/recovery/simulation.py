"""A world of simulated workers, links and a disk around the conductor, in which every order of events can be walked.

The content of an item is the list of attempts that committed the rounds applied to it, so that two contents are equal
exactly if the same rounds were applied in the same attempts. A round is prepared once a worker has had a message from
every other one, and each of these carries its sender's content: a mixture of versions shows at once.

Links between two ends keep their order and are otherwise arbitrarily slow. A death takes along what is on the way to
the dead, and all or nothing of what is on the way from it. What is written to the disk is there at the earliest when it
is reported; a coordinator's death meanwhile leaves it there or not.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fleetune.errors import FleetuneError
from fleetune.program.in_force import averages_after
from fleetune.recovery import protocol as p
from fleetune.recovery.conductor import Conductor
from fleetune.recovery.holdings import (
    BACKUP,
    INITIAL,
    LIVE,
    MOVED,
    PREPARED,
    SNAPSHOT,
    Attempt,
    History,
    Holding,
    Need,
    Restoration,
    Version,
)
from fleetune.recovery.membership import DUE, HERE, LOADED
from fleetune.recovery.state import State
from fleetune.recovery.transfers import DISK, Item

COORDINATOR = "coordinator"
Content = tuple[Attempt, ...]
"""The attempt that committed each round applied."""


class Wrong(AssertionError):
    """Raised where the simulated world breaks a rule."""


class Copy(NamedTuple):
    """Items in a worker's memory."""

    form: str
    items: frozenset[Item]
    content: Content


class Data(NamedTuple):
    """What a worker sends to every other one in a round."""

    attempt: Attempt
    round: int
    sender: str
    content: Content


class Parcel(NamedTuple):
    """Items on the way between two workers, moved or backed up."""

    attempt: Attempt
    form: str
    items: frozenset[Item]
    content: Content


@dataclass(frozen=True, slots=True)
class Worker:
    """One device's process."""

    name: str
    attempt: Attempt = Attempt(0, 0)
    copies: frozenset[Copy] = frozenset()
    prepared: tuple[int, Attempt] | None = None
    running: int | None = None
    layout: p.Layout | None = None
    data: frozenset[Data] = frozenset()
    early: tuple[Parcel, ...] = ()
    """Parcels of an attempt that this worker has not been told of."""
    moving: Version | None = None
    settled: bool = False
    """True once what was moved in this attempt is live."""
    backing: Version | None = None

    @property
    def live(self) -> Copy | None:
        """What is trained, if anything."""
        return next((copy for copy in self.copies if copy.form == LIVE), None)


Action = tuple[Any, ...]
"""Something that may happen: its kind, and what it happens to."""
MOST_EVENTS = 4000
Sent = tuple[str, str, object]
"""(Source, target, message)."""


def version_of(content: Content) -> Version:
    """The version that a content is, by its rounds and the last of its attempts."""
    return Version(len(content), content[-1]) if content else INITIAL


def run_round(worker: Worker, round: int) -> tuple[Worker, list[Sent]]:
    """Begin a round: send to all others, and wait for them."""
    assert worker.layout is not None and worker.live is not None
    content = worker.live.content
    if len(content) != round:
        raise Wrong(f"{worker.name} holds {len(content)} rounds and is to run round {round}")
    kept = frozenset(each for each in worker.data if each.round >= round)
    worker = replace(worker, running=round, data=kept, prepared=None)
    message = Data(worker.attempt, round, worker.name, content)
    sent: list[Sent] = [(worker.name, other, message) for other in worker.layout.devices if other != worker.name]
    worker, more = prepare(worker)
    return worker, sent + more


def prepare(worker: Worker) -> tuple[Worker, list[Sent]]:
    """Complete the round's gradients once a message of every other worker is there."""
    if worker.running is None or worker.layout is None or worker.live is None:
        return worker, []
    mine = [each for each in worker.data if (each.attempt, each.round) == (worker.attempt, worker.running)]
    if {each.sender for each in mine} != set(worker.layout.devices) - {worker.name}:
        return worker, []
    for each in mine:
        if each.content != worker.live.content:
            raise Wrong(f"{worker.name} at {worker.live.content} has data of {each.content}: two versions are mixed")
    said = p.Prepared(device=worker.name, attempt=worker.attempt, round=worker.running)
    worker = replace(worker, prepared=(worker.running, worker.attempt), running=None)
    return worker, [(worker.name, COORDINATOR, said)]


def apply(worker: Worker, round: int, attempt: Attempt) -> Worker:
    """Apply a prepared round, once."""
    if worker.prepared != (round, attempt) or worker.live is None or len(worker.live.content) != round:
        return worker
    live = Copy(worker.live.form, worker.live.items, (*worker.live.content, attempt))
    return replace(worker, copies=worker.copies - {worker.live} | {live}, prepared=None)


def holdings(worker: Worker) -> tuple[Holding, ...]:
    """Everything in a worker's memory."""
    found = [(copy.form, copy.items, copy.content) for copy in sorted(worker.copies)]
    if worker.prepared is not None and worker.live is not None:
        found.append((PREPARED, worker.live.items, (*worker.live.content, worker.prepared[1])))
    return tuple(
        Holding(device=worker.name, version=version_of(content), form=form, items=items)
        for form, items, content in found
    )


def adopt(worker: Worker, attempt: Attempt) -> Worker:
    """Enter a later attempt: the round ends, messages of older attempts are dropped, what came early is taken."""
    data = frozenset(each for each in worker.data if each.attempt >= attempt)
    taken = frozenset(Copy(MOVED, e.items, e.content) for e in worker.early if e.attempt == attempt and e.form == MOVED)
    early = tuple(each for each in worker.early if each.attempt > attempt)
    copies = worker.copies | taken
    return replace(
        worker,
        attempt=attempt,
        running=None,
        data=data,
        early=early,
        copies=copies,
        moving=None,
        settled=False,
        backing=None,
    )


def items_at(worker: Worker, version: Version) -> dict[Item, Content]:
    """Contents of everything that a worker has at a version."""
    found: dict[Item, Content] = {}
    for copy in worker.copies:
        if version_of(copy.content) == version:
            for item in copy.items:
                if found.setdefault(item, copy.content) != copy.content:
                    raise Wrong(f"{worker.name} has two contents of {item} at {version}")
    return found


def needed(layout: p.Layout, device: str) -> dict[str, frozenset[Item]]:
    """Form -> items that a layout wants on a device."""
    return {need.form: need.items for need in layout.needs if need.device == device}


def end_move(worker: Worker) -> tuple[Worker, list[Sent]]:
    """Report once everything that the new plan wants is there."""
    if worker.moving is None or worker.layout is None or worker.name not in worker.layout.holders:
        return worker, []
    wanted = frozenset().union(*needed(worker.layout, worker.name).values())
    if not wanted <= items_at(worker, worker.moving).keys():
        return worker, []
    said = p.Moved(device=worker.name, attempt=worker.attempt)
    return worker, [(worker.name, COORDINATOR, said)]


def end_backup(worker: Worker) -> tuple[Worker, list[Sent]]:
    """Report once the snapshot and all backups held for others are there."""
    if worker.backing is None or worker.layout is None:
        return worker, []
    wanted = needed(worker.layout, worker.name).get(BACKUP, frozenset())
    got = {i for c in worker.copies if c.form == BACKUP and version_of(c.content) == worker.backing for i in c.items}
    if not wanted <= got:
        return worker, []
    said = p.BackedUp(device=worker.name, version=worker.backing)
    return replace(worker, backing=None), [(worker.name, COORDINATOR, said)]


def obey(worker: Worker, command: object) -> tuple[Worker, list[Sent]]:
    """Carry out what the coordinator says, unless a message before it was lost; then a gap is found some day."""
    attempt = getattr(command, "attempt", worker.attempt)
    if attempt < worker.attempt:
        return worker, []
    if isinstance(command, p.Abort):
        if attempt == worker.attempt:
            return worker, []
        worker = adopt(worker, attempt)
        said = p.Held(device=worker.name, attempt=attempt, holdings=holdings(worker))
        return worker, [(worker.name, COORDINATOR, said)]
    if attempt != worker.attempt:
        return worker, []  # it was not told to abort
    if isinstance(command, p.Move):
        return move(worker, command)
    if isinstance(command, p.DropOld):
        return (drop_old(worker, command.version), []) if worker.moving == command.version else (worker, [])
    if not worker.settled:
        return worker, []
    if isinstance(command, p.StartRound):
        return run_round(worker, command.round)
    if isinstance(command, p.SendCommit):
        return commit(worker, command)
    if isinstance(command, p.Save):
        is_it = worker.live is not None and version_of(worker.live.content) == command.version
        return worker, [save(worker)] if is_it else []
    if isinstance(command, p.ReleaseBackups):
        freed = {c for c in worker.copies if c.form in (SNAPSHOT, BACKUP) and version_of(c.content) != command.version}
        return replace(worker, copies=worker.copies - freed), []
    raise Wrong(f"{worker.name} does not know {command}")


class Shard(NamedTuple):
    """A shard on the disk, and the message that it is there."""

    device: str
    version: Version
    items: frozenset[Item]
    content: Content


def save(worker: Worker) -> Sent:
    assert worker.live is not None
    shard = Shard(worker.name, version_of(worker.live.content), worker.live.items, worker.live.content)
    return (worker.name, COORDINATOR, shard)


def move(worker: Worker, command: p.Move) -> tuple[Worker, list[Sent]]:
    """Send and gather what the new plan wants elsewhere, beside all that is held."""
    target, found = command.restoration.version, command.restoration
    worker = replace(worker, layout=command.layout, moving=target)
    if worker.name in found.rolls_forward and worker.prepared is not None:
        worker = apply(worker, *worker.prepared)
    sent: list[Sent] = []
    for each in found.transfers:
        if each.source == worker.name:
            own = items_at(worker, target)
            items = frozenset(Item(each.lane, name) for name in each.names)
            if not items <= own.keys():
                raise Wrong(f"{worker.name} is to send {items} of {target} and has {own}")
            parcel = Parcel(worker.attempt, MOVED, items, own[next(iter(items))])
            sent.append((worker.name, each.target, parcel))
    worker, more = end_move(worker) if not on_disk(worker, found) else (worker, [])
    return worker, sent + more


def on_disk(worker: Worker, found: Restoration) -> frozenset[Item]:
    """What a worker reads: the initial weights, or what no device can send it of a checkpoint."""
    if found.version == INITIAL and worker.layout is not None:
        return frozenset().union(*needed(worker.layout, worker.name).values())
    mine = [each for each in found.transfers if (each.source, each.target) == (DISK, worker.name)]
    return frozenset(Item(each.lane, name) for each in mine for name in each.names)


def drop_old(worker: Worker, version: Version) -> Worker:
    """Make what was moved live, and free all else."""
    if worker.layout is None:
        raise Wrong(f"{worker.name} is to free all but {version}, and was not told what to keep")
    own, wanted = items_at(worker, version), needed(worker.layout, worker.name)
    if not frozenset().union(*wanted.values()) <= own.keys():
        raise Wrong(f"{worker.name} is to free all but {version}, of which it lacks some")
    content = next(iter(own.values()), ())
    copies = {Copy(form, items, content) for form, items in wanted.items()}
    if worker.layout.has_backups:
        copies |= {Copy(SNAPSHOT, items, content) for form, items in wanted.items() if form == LIVE}
    return replace(worker, copies=frozenset(copies), prepared=None, moving=None, settled=True)


def commit(worker: Worker, command: p.SendCommit) -> tuple[Worker, list[Sent]]:
    """Apply a round; save and back up the new version where that is due; go on."""
    before = worker
    worker = apply(worker, command.round, command.attempt)
    if worker is before or worker.live is None or worker.layout is None:
        raise Wrong(f"{worker.name} is to commit round {command.round}, which it has not prepared")
    sent: list[Sent] = []
    if command.checkpoint:
        sent.append(save(worker))
    if command.backup:
        live = worker.live
        worker = replace(worker, copies=worker.copies | {Copy(SNAPSHOT, live.items, live.content)})
        worker = replace(worker, backing=version_of(live.content))
        for need in worker.layout.needs:
            if need.form == BACKUP and need.items & live.items:
                sent.append(
                    (worker.name, need.device, Parcel(worker.attempt, BACKUP, need.items & live.items, live.content))
                )
        worker, more = end_backup(worker)
        sent += more
    if command.starts_next:
        worker, more = run_round(worker, command.round + 1)
        sent += more
    return worker, sent


def receive(worker: Worker, message: Data | Parcel) -> tuple[Worker, list[Sent]]:
    """Take what another worker sends: of older attempts nothing, of later ones once they have begun here."""
    if message.attempt < worker.attempt:
        return worker, []
    if isinstance(message, Data):
        return prepare(replace(worker, data=worker.data | {message}))
    if message.attempt > worker.attempt:
        return replace(worker, early=(*worker.early, message)), []
    worker = replace(worker, copies=worker.copies | {Copy(message.form, message.items, message.content)})
    return end_move(worker) if message.form == MOVED else end_backup(worker)


@dataclass(frozen=True, slots=True)
class World:
    """The conductor, the workers, and everything on its way."""

    state: State | None
    workers: frozenset[Worker]
    channels: frozenset[tuple[str, str, tuple[object, ...]]] = frozenset()
    tasks: frozenset[object] = frozenset()
    """What reaches the conductor some day: events, and commands that are being carried out."""
    log: Content = ()
    checkpoints: frozenset[tuple[Version, Content]] = frozenset({(INITIAL, ())})
    shards: frozenset[Shard] = frozenset()
    faults: tuple[str, ...] = ()
    """Kinds of faults that may still happen."""
    starts: int = 0
    scored: frozenset[int] = frozenset()
    """Rounds of the versions that were scored."""
    end: p.End | None = None


@dataclass(frozen=True)
class Simulation:
    """What does not change in a world."""

    conductor: Conductor
    items: tuple[Item, ...]
    capacity: int = 9
    """Most items that a device can train."""
    backups: bool = True
    checkpoint_every: int = 2
    enough_after: int = 99
    """Rounds after which scores end the training."""
    newcomers: tuple[str, ...] = ()
    backup_every: int = 0
    """Rounds between two backups."""
    average_every: int = 0
    """Rounds between two averages of the lanes."""

    def begin(self, devices: Iterable[str], faults: Iterable[str]) -> World:
        """A world whose workers have just started."""
        workers = frozenset(Worker(name) for name in devices)
        return self._start(World(state=None, workers=workers, faults=tuple(sorted(faults))))

    def actions(self, world: World) -> Iterator[Action]:
        """Everything that may happen next."""
        if world.end is not None:
            return
        for source, target, _ in sorted(world.channels, key=lambda channel: channel[:2]):
            if target != COORDINATOR or world.state is not None:
                yield ("deliver", source, target)
        for task in sorted(world.tasks, key=repr):
            yield ("task", task)
        if world.state is None:
            yield ("restart",)
        for fault in dict.fromkeys(world.faults):
            yield from self._faults(world, fault)

    def _faults(self, world: World, fault: str) -> Iterator[Action]:
        names = sorted(worker.name for worker in world.workers)
        if fault == "kill":
            for name in names:
                yield ("kill", name, True)
                if any(channel[0] == name for channel in world.channels):
                    yield ("kill", name, False)
        if fault == "accuse" and world.state is not None:
            yield from (("accuse", name) for name in names if name in world.state.of(*HERE))
        if fault == "lose" and world.state is not None:
            ends = [channel[:2] for channel in world.channels if not channel[0].startswith("life")]
            yield from (("lose", *pair) for pair in sorted(ends))
        if fault == "crash" and world.state is not None:
            written = any(isinstance(task, p.LogCommit | p.RewindLog | p.CompleteCheckpoint) for task in world.tasks)
            yield from (("crash", durable) for durable in ((False, True) if written else (False,)))
        if fault == "join":
            untold = {channel[0] for channel in world.channels}  # a device is started again once its loss is known
            absent = [name for name in self.newcomers if name not in names and f"life of {name}" not in untold]
            yield from (("join", name) for name in absent)
        if fault == "stop" and world.state is not None:
            yield ("stop",)
        if fault == "late" and world.state is not None and world.state.owing:
            yield ("late",)
        if fault == "fail":
            yield from (("fail", task) for task in sorted(world.tasks, key=repr) if isinstance(task, p.StartAgain))

    def after(self, world: World, action: Action) -> World:
        """The world after something has happened."""
        kind = action[0]
        if kind in FAULTS:
            left = list(world.faults)
            left.remove(str(kind))
            world = replace(world, faults=tuple(left))
        return getattr(self, f"_{kind}")(world, *action[1:])  # type: ignore[no-any-return]

    def _deliver(self, world: World, source: str, target: str) -> World:
        world, message = _take(world, source, target)
        if target == COORDINATOR:
            if isinstance(message, Shard):
                world = replace(world, shards=world.shards | {message})
                message = p.Saved(device=message.device, version=message.version)
            assert isinstance(message, p.Event)
            if isinstance(message, p.Hello):  # what it loads takes a while
                world = _send(world, [(message.device, COORDINATOR, p.Loaded(device=message.device))])
            return self._tell(world, message)
        worker = next((each for each in world.workers if each.name == target), None)
        if worker is None:
            return world
        if source == COORDINATOR:
            changed, sent = obey(worker, message)
            if isinstance(message, p.Move) and on_disk(changed, message.restoration):
                changed, more = self._read_checkpoint(world, changed, message)
                sent += more
        else:
            assert isinstance(message, Data | Parcel)
            changed, sent = receive(worker, message)
        return _send(replace(world, workers=world.workers - {worker} | {changed}), sent)

    def _read_checkpoint(self, world: World, worker: Worker, command: p.Move) -> tuple[Worker, list[Sent]]:
        """Read what a device needs from a checkpoint."""
        version = command.restoration.version
        if command.attempt != worker.attempt or worker.name not in command.layout.holders:
            return worker, []
        content = next((content for kept, content in world.checkpoints if kept == version), None)
        if content is None:
            raise Wrong(f"{version} is to be read from disk, where there is {sorted(world.checkpoints)}")
        read = on_disk(worker, command.restoration)
        worker = replace(worker, copies=worker.copies | {Copy(MOVED, read, content)})
        return end_move(worker)

    def _task(self, world: World, task: object) -> World:
        """Let something end that the coordinator's process does."""
        world = replace(world, tasks=world.tasks - {task})
        if isinstance(task, p.Event):
            return self._tell(world, task)
        if isinstance(task, p.Revise):
            return self._tell(world, self._revise(task))
        if isinstance(task, p.Wait):
            return self._tell(world, p.Waited(attempt=task.attempt))
        if isinstance(task, p.Blame):
            return self._accuse(world, task.device)
        if isinstance(task, p.Dismiss):
            return _without(world, task.device, keeps=True)
        if isinstance(task, p.StartAgain):
            alive = any(worker.name == task.device for worker in world.workers)  # it was given up out of reach
            return self._tell(world, p.NotBack(device=task.device)) if alive else self._join(world, task.device)
        if isinstance(task, p.Score):
            world = replace(world, scored=world.scored | {task.version.rounds})
            enough = task.version.rounds >= self.enough_after
            return self._tell(world, p.Scored(version=task.version, enough=enough))
        world, event = self._write(world, task)
        return self._tell(world, event)

    def _write(self, world: World, task: object) -> tuple[World, p.Event]:
        """Do what is done on the coordinator's disk."""
        if isinstance(task, p.LogCommit):
            if len(world.log) != task.round:
                raise Wrong(f"round {task.round} is committed after {len(world.log)} rounds")
            due = (task.round + 1) % self.checkpoint_every == 0
            done = p.CommitLogged(attempt=task.attempt, round=task.round, checkpoint=due)
            return replace(world, log=(*world.log, task.attempt)), done
        if isinstance(task, p.RewindLog):
            log = world.log[: task.rounds]
            kept = frozenset(each for each in world.checkpoints if each[1] == log[: len(each[1])])
            if max(kept) != max(world.checkpoints):
                raise Wrong("the log is cut back beyond the newest checkpoint")
            return replace(world, log=log), p.LogRewound(rounds=task.rounds)
        assert isinstance(task, p.CompleteCheckpoint)
        shards = [shard for shard in world.shards if shard.version == task.version and shard.device in task.devices]
        contents = {shard.content for shard in shards}
        if len(contents) != 1 or frozenset().union(*[shard.items for shard in shards]) != frozenset(self.items):
            raise Wrong(f"the checkpoint of {task.version} is made of {shards}")
        marked = world.checkpoints | {(task.version, contents.pop())}
        return replace(world, checkpoints=marked), p.CheckpointComplete(version=task.version)

    def _revise(self, task: p.Revise) -> p.Event:
        layout = self.layout(task.devices)
        if layout is None:
            return p.NoPlan(attempt=task.attempt, reason=f"{task.devices} have no memory for the model")
        return p.Revised(attempt=task.attempt, layout=layout)

    def layout(self, devices: tuple[str, ...]) -> p.Layout | None:
        """Deal the items to devices, as evenly as they can be; each is backed up on the next one."""
        used = devices[: len(self.items)]
        if len(used) * self.capacity < len(self.items):
            return None
        dealt = [frozenset(self.items[len(self.items) * at // len(used) : len(self.items) * (at + 1) // len(used)])
                 for at in range(len(used))]  # fmt: skip
        needs = [Need(device=device, items=items) for device, items in zip(used, dealt, strict=True)]
        if self.backups and len(used) > 1:
            needs += [
                Need(device=used[(at + 1) % len(used)], items=items, form=BACKUP) for at, items in enumerate(dealt)
            ]
        return p.Layout(
            revision=0, devices=used, needs=tuple(needs), savers=used, backup_every_rounds=self.backup_every,
            average_every_rounds=self.average_every,
        )  # fmt: skip

    def _kill(self, world: World, name: str, keeps: bool) -> World:
        """A worker dies; what it has sent arrives, or does not."""
        return self._tell_later(_without(world, name, keeps), name, p.Ended(device=name, reason="killed"))

    def _tell_later(self, world: World, name: str, event: p.Event) -> World:
        """Let the coordinator find out some day that a device ended or came, in the order in which that happened."""
        return _send(world, [(f"life of {name}", COORDINATOR, event)])

    def _accuse(self, world: World, name: str) -> World:
        """A worker that lives is taken for dead, and goes on as if nothing had happened."""
        return self._tell_later(world, name, p.Ended(device=name, reason="silent"))

    def _lose(self, world: World, source: str, target: str) -> World:
        """A message is lost between two that live, which is found out some day."""
        assert world.state is not None
        world, message = _take(world, source, target)
        attempt = getattr(message, "attempt", world.state.attempt)
        gap = p.Gap(attempt=attempt, source=source, target=target, reason="a message was lost")
        return replace(world, tasks=world.tasks | {gap})

    def _crash(self, world: World, durable: bool) -> World:
        """The coordinator dies; what it was writing is on disk, or not."""
        for task in sorted(world.tasks, key=repr):
            if durable and isinstance(task, p.LogCommit | p.RewindLog | p.CompleteCheckpoint):
                world, _ = self._write(world, task)
        kept = frozenset(channel for channel in world.channels if COORDINATOR not in channel[:2])
        return replace(world, state=None, tasks=frozenset(), channels=kept)

    def _restart(self, world: World) -> World:
        return self._start(world)

    def _start(self, world: World) -> World:
        """Start a coordinator from what is on its disk, with the workers that live."""
        history = History()
        for round, attempt in enumerate(world.log):
            history = history.committed(round, attempt)
        members = sorted(worker.name for worker in world.workers)
        on_disk = [version for version, _ in world.checkpoints]
        state, commands = self.conductor.start(world.starts + 1, members, history, on_disk)
        return self._carry_out(replace(world, state=state, starts=world.starts + 1), commands)

    def _join(self, world: World, name: str) -> World:
        """A device says hello; its process is new."""
        world = replace(world, workers=world.workers | {Worker(name)})
        return self._tell_later(world, name, p.Hello(device=name))

    def _late(self, world: World) -> World:
        """Answers take longer than is to be expected."""
        state = world.state
        assert state is not None
        late = p.Overdue(attempt=state.attempt, phase=state.phase, round=state.history.rounds, patience_s=1.0)
        return self._tell(world, late)

    def _fail(self, world: World, task: p.StartAgain) -> World:
        """A process that is to be started does not come."""
        return self._tell(replace(world, tasks=world.tasks - {task}), p.NotBack(device=task.device))

    def _stop(self, world: World) -> World:
        return self._tell(world, p.StopAsked())

    def _tell(self, world: World, event: p.Event) -> World:
        assert world.state is not None
        state, commands = self.conductor.step(world.state, event)
        return self._carry_out(replace(world, state=state), commands)

    def _carry_out(self, world: World, commands: tuple[p.Command, ...]) -> World:
        for command in commands:
            self._judge(world, command)
            if isinstance(command, p.Dismiss) and all(worker.name != command.device for worker in world.workers):
                continue
            if isinstance(command, _DONE_LATER):
                world = replace(world, tasks=world.tasks | {command})
            elif isinstance(command, p.End):
                world = replace(world, end=command)
            elif isinstance(
                command, p.Abort | p.Move | p.DropOld | p.StartRound | p.SendCommit | p.Save | p.ReleaseBackups
            ):
                world = _send(world, [(COORDINATOR, device, command) for device in command.devices])
        return world

    def _judge(self, world: World, command: p.Command) -> None:
        """Raise Wrong for a command that breaks a rule, whatever workers make of it."""
        if isinstance(command, p.SendCommit) and world.log[command.round :] != (command.attempt,):
            raise Wrong(f"the commit of round {command.round} is sent, and the log on disk is {world.log}")
        if isinstance(command, p.Score) and (command.version, world.log) not in world.checkpoints:
            raise Wrong(f"{command.version} is to be scored, and on disk are {sorted(world.checkpoints)}")
        if isinstance(command, p.StartAgain):
            device = world.state.device(command.device) if world.state is not None else None
            twice = any(isinstance(task, p.StartAgain) and task.device == command.device for task in world.tasks)
            if twice or device is None or device.status != DUE:
                raise Wrong(f"{command.device} is to be started, and is {'to be already' if twice else device}")
        if isinstance(command, p.SendCommit) and command.starts_next and world.state and world.state.waiting:
            raise Wrong(f"round {command.round + 1} begins, and {set(world.state.waiting)} wait for its border")
        averages, loaded = self.average_every, world.state.of(LOADED) if world.state else ()
        is_alike = (
            isinstance(command, p.LogCommit) and command.round and averages_after(averages, command.round - 1, 99)
        )
        if is_alike and loaded:
            raise Wrong(f"{command} comes, and {set(loaded)} waited for the average before it")
        every = self.conductor.scores_every_rounds
        begun = (
            command.round + isinstance(command, p.SendCommit)
            if isinstance(command, p.StartRound) or (isinstance(command, p.SendCommit) and command.starts_next)
            else 0
        )
        if every and begun and begun % every == 0 and begun not in world.scored:
            raise Wrong(f"round {begun} begins, and the version before it was not scored")
        if isinstance(command, p.StartRound) and len(world.log) != command.round:
            raise Wrong(f"round {command.round} starts, and the log on disk is {world.log}")
        if isinstance(command, p.DropOld):
            assert world.state is not None and world.state.layout is not None
            for worker in world.workers:
                if worker.name in world.state.layout.holders and worker.attempt == command.attempt:
                    drop_old(worker, command.version)


def _without(world: World, name: str, keeps: bool) -> World:
    """The world in which a worker is dead. keeps: what it has sent arrives."""
    return replace(
        world,
        workers=frozenset(worker for worker in world.workers if worker.name != name),
        channels=frozenset(
            channel for channel in world.channels if channel[1] != name and (keeps or channel[0] != name)
        ),
    )


def _send(world: World, sent: Iterable[Sent]) -> World:
    """Put messages at the end of their channels; what goes to the dead is lost."""
    channels = {channel[:2]: channel[2] for channel in world.channels}
    living = {worker.name for worker in world.workers} | ({COORDINATOR} if world.state is not None else set())
    for source, target, message in sent:
        if target in living:
            channels[source, target] = (*channels.get((source, target), ()), message)
    return replace(world, channels=frozenset((*ends, messages) for ends, messages in channels.items()))


def _take(world: World, source: str, target: str) -> tuple[World, object]:
    """Take the first message out of a channel."""
    channel = next(each for each in world.channels if each[:2] == (source, target))
    first, *rest = channel[2]
    left = world.channels - {channel} | ({(source, target, tuple(rest))} if rest else frozenset())
    return replace(world, channels=left), first


def check_end(simulation: Simulation, world: World, allowed: tuple[str, ...] = ()) -> None:
    """Raise Wrong for a world that came to rest without a reason, or with other weights than its log says."""
    if world.end is None:
        raise Wrong(f"nothing can happen any more, and the run has not ended: {world.state}")
    if world.end.exit_code:
        if not any(text in world.end.reason for text in allowed):
            raise Wrong(f"it gave up: {world.end.reason}")
        return
    rounds, every = min(simulation.conductor.rounds, simulation.enough_after), simulation.conductor.scores_every_rounds
    if every and world.scored != {*range(every, rounds + 1, every), rounds}:
        raise Wrong(f"it ends after {rounds} rounds, and scored are {sorted(world.scored)}")
    if len(world.log) != rounds or (version_of(world.log), world.log) not in world.checkpoints:
        raise Wrong(f"it says done with the log {world.log} and the checkpoints {sorted(world.checkpoints)}")


FAULTS = ("kill", "accuse", "lose", "crash", "join", "stop", "late", "fail")
_DONE_LATER = (
    *(p.LogCommit, p.RewindLog, p.CompleteCheckpoint, p.Revise, p.Score),
    *(p.StartAgain, p.Wait, p.Blame, p.Dismiss),
)
"""Commands whose answers come some day."""


def simulation(
    conductor: type[Conductor] = Conductor, items: int = 2, rounds: int = 2, backup_every: int = 1, **settings: Any
) -> Simulation:
    """A training of so many items; settings: of `Simulation`, and `scores_every`."""
    named = tuple(Item("main", letter) for letter in "tuvwxyz"[:items])
    devices = "abcdn"
    made = conductor(
        rounds=rounds,
        sizes_bytes=dict.fromkeys(named, 1),
        links={(source, target): 1.0 for source in devices for target in devices if source != target},
        scores_every_rounds=settings.pop("scores_every", 0),
        returns=settings.pop("returns", False),
        waits=settings.pop("waits", False),
    )
    return Simulation(made, named, backup_every=backup_every, **settings)


def explore(simulation: Simulation, world: World, allowed: tuple[str, ...] = ()) -> int:
    """Walk every order of events from a world; return the number of worlds. Wrong, with its events, for a bad one.

    No world may lead back to itself, since the run would then never have to end.
    """
    seen, on_path = {world}, {world}
    path: list[tuple[World, Iterator[Action], Action]] = [(world, simulation.actions(world), ())]
    while path:
        at, actions, _ = path[-1]
        action = next(actions, None)
        if action is None:
            path.pop()
            on_path.remove(at)
            continue
        events = [*[taken for *_, taken in path[1:]], action]
        after = _after(simulation, at, action, events)
        if after in on_path:
            raise Wrong(_told("the run goes round in a circle", events))
        if after in seen:
            continue
        seen.add(after)
        on_path.add(after)
        path.append((after, simulation.actions(after), action))
        if not any(True for _ in simulation.actions(after)):
            _at_rest(simulation, after, allowed, events)
    return len(seen)


def walk(simulation: Simulation, world: World, choices: Iterable[int], allowed: tuple[str, ...] = ()) -> World:
    """Take one of the possible actions for each choice, then the first that is no fault, until the world is at rest."""
    given, events = iter(choices), list[Action]()
    while actions := list(simulation.actions(world)):
        faults = [action for action in actions if action[0] in FAULTS]
        others = actions[: len(actions) - len(faults)] or faults
        choice = next(given, 1)
        taken = faults if faults and choice % 16 == 0 else others
        action = taken[choice // 16 % len(taken)]
        events.append(action)
        world = _after(simulation, world, action, events)
        if len(events) > MOST_EVENTS:
            raise Wrong(_told("the run does not end", events))
    _at_rest(simulation, world, allowed, events)
    return world


def _after(simulation: Simulation, world: World, action: Action, events: list[Action]) -> World:
    try:
        return simulation.after(world, action)
    except (Wrong, AssertionError, FleetuneError, LookupError) as error:
        raise Wrong(_told(f"{type(error).__name__}: {error}", events)) from error


def _at_rest(simulation: Simulation, world: World, allowed: tuple[str, ...], events: list[Action]) -> None:
    try:
        check_end(simulation, world, allowed)
    except Wrong as error:
        raise Wrong(_told(str(error), events)) from None


def _told(wrong: str, events: list[Action]) -> str:
    return "\n    ".join([f"{wrong}\nafter", *(str(event)[:160] for event in events)])
