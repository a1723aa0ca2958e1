"""Events that the conductor is told of, and commands that it answers with.

What workers owe it, for its decisions to hold:

- An attempt that is greater than its own makes a worker adopt it and drop every message of older attempts, from the
  coordinator and from other workers; messages of greater ones are kept until it is told of them.
- `Abort` ends the running round at once. Live is then the whole version before the round, with its batch statistics,
  random draws and error feedback; a round that is prepared stays prepared. The answer is `Held`.
- `SendCommit` is applied once, if this very round was prepared in this very attempt, and as a whole.
- Nothing is freed but on `DropOld` and `ReleaseBackups`. What arrives for `Move` is kept beside everything else.
- `DropOld` makes the moved state live (where the plan has backups: also the snapshot), and frees everything else.
- Messages between the coordinator and a worker arrive in order or not at all; one that is lost is reported as a `Gap`.

What the coordinator's process owes: a commit and a rewind are on disk (fsync) before they are reported, and so is a
complete checkpoint. `Held` and the like of devices that were dismissed may be passed on: they are dropped.
"""

from fleetune.contracts.record import record
from fleetune.errors import TryAgain
from fleetune.recovery.holdings import LIVE, Attempt, Holding, Need, Restoration, Version


@record
class Layout:
    """What the conductor must know of a plan."""

    revision: int
    devices: tuple[str, ...]
    """Devices that run rounds."""
    needs: tuple[Need, ...]
    savers: tuple[str, ...]
    """Devices that write shards of checkpoints."""
    backup_every_rounds: int = 0
    """Rounds between two backups, where there are holders of backups; 0: only when devices move."""
    average_every_rounds: int = 0
    """Rounds between two averages of the lanes; 0: there are none."""

    @property
    def holders(self) -> frozenset[str]:
        """Devices that run rounds or hold backups."""
        return frozenset(self.devices) | {need.device for need in self.needs}

    @property
    def has_backups(self) -> bool:
        """True if a device holds a backup for another one."""
        return any(need.form != LIVE for need in self.needs)


@record
class Event:
    """Something that has happened."""


@record
class Hello(Event):
    """The process of a device has said hello: it is new, or comes back, and loads."""

    device: str


@record
class Loaded(Event):
    """A device that has said hello has loaded its part of the first plan, and may take part."""

    device: str


@record
class NotBack(Event):
    """A device's process was to be started, and did not come."""

    device: str


@record
class Ended(Event):
    """A device is gone: its process or connection ended, or its silence was confirmed after a probe."""

    device: str
    reason: str
    returns: bool = True
    """False if its next process would end like this one."""


@record
class Silent(Event):
    """A device was not heard within its limit."""

    device: str


@record
class Heard(Event):
    """A silent device was heard again."""

    device: str


@record
class Slow(Event):
    """A device is much slower than its profile."""

    device: str
    reason: str


@record
class Gap(Event):
    """All devices live, but a message of this attempt was lost."""

    attempt: Attempt
    source: str
    target: str
    reason: str


@record
class Waited(Event):
    """The time of `Wait` is over."""

    attempt: Attempt


@record
class Overdue(Event):
    """The devices of a phase owe their answers for longer than is to be expected."""

    attempt: Attempt
    phase: str
    round: int
    """Rounds that were committed when the wait began."""
    patience_s: float


@record
class Held(Event):
    """What a device has in memory; the answer to `Abort`."""

    device: str
    attempt: Attempt
    holdings: tuple[Holding, ...]


@record
class Revised(Event):
    """The plan for the devices of `Revise`."""

    attempt: Attempt
    layout: Layout


@record
class NoPlan(Event):
    """The devices of `Revise` cannot hold or run the model."""

    attempt: Attempt
    reason: str


@record
class Moved(Event):
    """A device has everything that `Move` wants on it, beside what it held before."""

    device: str
    attempt: Attempt


@record
class Prepared(Event):
    """A device's gradients of a round are complete (`ready` on the wire); it has applied all rounds before."""

    device: str
    attempt: Attempt
    round: int


@record
class CommitLogged(Event):
    """A commit is on disk."""

    attempt: Attempt
    round: int
    checkpoint: bool = False
    """True if the state after this round is due to be saved."""


@record
class LogRewound(Event):
    """The commit log on disk ends after so many rounds."""

    rounds: int


@record
class Saved(Event):
    """A device has written its shards of a version."""

    device: str
    version: Version


@record
class CheckpointComplete(Event):
    """All shards of a version are in place and marked on disk."""

    version: Version


@record
class CheckpointFailed(Event):
    """A checkpoint could not be completed; those before it are unharmed."""

    version: Version
    reason: str


@record
class BackedUp(Event):
    """A device has its snapshot of a version, and all backups of it that it holds for others."""

    device: str
    version: Version


@record
class Scored(Event):
    """What `Score` asked for is done, as far as the next round depends on it."""

    version: Version
    enough: bool = False
    """True if the training ends with this version, although rounds are left."""


@record
class StopAsked(Event):
    """The run is to end early, with a checkpoint."""


@record
class Command:
    """Something that the coordinator's process carries out."""


@record
class Abort(Command):
    """Tell devices to end their round, and to answer `Held`."""

    attempt: Attempt
    devices: tuple[str, ...]


@record
class Dismiss(Command):
    """End a device's process, if it lives, and close its links."""

    device: str


@record
class StartAgain(Command):
    """Start a device's process after a pause; answered by `Hello` or `NotBack`."""

    device: str
    pause_s: float


@record
class Wait(Command):
    """Wait for lost devices; answered by `Waited`, unless one is back before."""

    attempt: Attempt
    longest_s: float


@record
class Blame(Command):
    """Find out for whom a device waits, which owes a message for too long; answered by `Ended` of one of them."""

    device: str
    message: str
    patience_s: float


@record
class Probe(Command):
    """Ask a silent device at once; answered by `Heard` or `Ended`."""

    device: str


@record
class Report(Command):
    """Write a sentence to the event log and the run's notes."""

    sentence: str


@record
class Revise(Command):
    """Find a plan for these devices; answered by `Revised` or `NoPlan`."""

    attempt: Attempt
    devices: tuple[str, ...]
    cut: tuple[tuple[str, str], ...]
    """Directed links that have lost messages again and again; the plan must not use them."""


@record
class Move(Command):
    """Tell devices to bring the plan's items together, beside what they hold; answered by `Moved` of each."""

    attempt: Attempt
    layout: Layout
    restoration: Restoration
    devices: tuple[str, ...]
    """All members: those that the plan does not use may have something to send."""


@record
class RewindLog(Command):
    """Cut the commit log back to so many rounds; answered by `LogRewound`."""

    rounds: int


@record
class DropOld(Command):
    """Tell devices to make the moved state live and to free all else."""

    attempt: Attempt
    version: Version
    devices: tuple[str, ...]


@record
class StartRound(Command):
    """Tell devices to run a round."""

    attempt: Attempt
    round: int
    devices: tuple[str, ...]


@record
class LogCommit(Command):
    """Write a commit to disk; answered by `CommitLogged`."""

    attempt: Attempt
    round: int


@record
class SendCommit(Command):
    """Tell devices to apply the round that they prepared in this attempt."""

    attempt: Attempt
    round: int
    devices: tuple[str, ...]
    starts_next: bool
    """True if they go on with the next round at once."""
    checkpoint: bool
    """True if the savers write the new version; answered by `Saved`."""
    backup: bool
    """True if every device takes a snapshot of the new version and sends backups; answered by `BackedUp`."""


@record
class Save(Command):
    """Tell devices to write their shards of their live version; answered by `Saved`."""

    version: Version
    devices: tuple[str, ...]


@record
class CompleteCheckpoint(Command):
    """Collect and mark a checkpoint; answered by `CheckpointComplete` or `CheckpointFailed`."""

    version: Version
    devices: tuple[str, ...]


@record
class Score(Command):
    """Score a checkpoint that is on disk; answered by `Scored`."""

    version: Version


@record
class ReleaseBackups(Command):
    """Tell devices to free snapshots and backups of all versions but this one, which is whole."""

    version: Version
    devices: tuple[str, ...]


@record
class End(Command):
    """End all devices and the run."""

    reason: str
    exit_code: int = TryAgain.exit_code
    """0 done, 64 malformed, 65 infeasible, 75 try again."""
