"""What the conductor knows between two events.

COLLECTING  all members were told to abort; waits for what they hold and for writes that are under way
EXPECTING   waits for a lost device that may be back soon, where nothing but time is lost with it
REVISING    waits for a plan for the members
MOVING      waits until every device has all that the plan wants on it
REWINDING   waits until rounds that are run again are cut from the log
RUNNING     a round runs; waits until all devices have prepared it
LOGGING     waits until its commit is on disk; only then it is sent
FINISHING   no round runs; waits for the checkpoint of the newest version
SCORING     no round runs; it is on disk, and its scores are asked for
ENDED       drops every event
"""

from collections.abc import Iterable
from dataclasses import replace

from fleetune.contracts.record import record
from fleetune.recovery.holdings import INITIAL, Attempt, History, Holding, Version
from fleetune.recovery.membership import MEMBER, WAITING, Device
from fleetune.recovery.protocol import Layout

COLLECTING, REVISING, MOVING, REWINDING = "collecting", "revising", "moving", "rewinding"
RUNNING, LOGGING, FINISHING, ENDED = "running", "logging", "finishing", "ended"
SCORING, EXPECTING = "scoring", "expecting"
OWED = {COLLECTING: "aborted", MOVING: "moved", RUNNING: "ready", FINISHING: "saved"}
"""Phase -> the message that each device of it owes."""
KEPT_CHECKPOINTS = 2
COMMIT, REWIND = "commit", "rewind"


@record
class State:
    """Everything that the conductor knows; each event leads to another one."""

    phase: str
    attempt: Attempt
    history: History
    """The commit log as it is known to be on disk, without a write that is under way."""
    on_disk: tuple[Version, ...]
    """Versions of complete checkpoints that are kept, and INITIAL."""
    devices: tuple[Device, ...]
    layout: Layout | None = None
    """The newest plan; None until there is one."""
    replan: bool = False
    """True if another plan is to be found: for other devices, paces or links."""
    writing: frozenset[str] = frozenset()
    """COMMIT or REWIND, while it is under way on the coordinator's disk."""
    completing: frozenset[Version] = frozenset()
    """Checkpoints that are being collected and marked."""
    cut: frozenset[tuple[str, str]] = frozenset()
    gaps: tuple[tuple[str, str], ...] = ()
    """Links of the gaps since the last commit."""
    answered: frozenset[str] = frozenset()
    """Devices that have done what the phase waits for."""
    holdings: tuple[Holding, ...] = ()
    target: Version = INITIAL
    """The version that devices move to."""
    saving: Version | None = None
    saved: frozenset[str] = frozenset()
    failed: Version | None = None
    """Could not be completed when no round ran, and is tried once more."""
    backing: Version | None = None
    backed: frozenset[str] = frozenset()
    backup: Version = INITIAL
    """The newest version whose snapshots and backups are whole."""
    stop: bool = False

    @property
    def members(self) -> frozenset[str]:
        """Devices that live and were told of the attempt."""
        return self.of(MEMBER)

    @property
    def waiting(self) -> frozenset[str]:
        """Devices that join at the border of a round, or at the next loss."""
        return self.of(WAITING)

    def of(self, *statuses: str) -> frozenset[str]:
        """Return the devices with one of these statuses."""
        return frozenset(device.name for device in self.devices if device.status in statuses)

    def device(self, name: str) -> Device | None:
        """Return what is known of a device; None for one that nobody has heard of."""
        return next((device for device in self.devices if device.name == name), None)

    def with_device(self, changed: Device) -> "State":
        """Return the state in which this is known of a device."""
        others = tuple(device for device in self.devices if device.name != changed.name)
        return replace(self, devices=tuple(sorted((*others, changed), key=lambda device: device.name)))

    @property
    def owing(self) -> tuple[str, ...]:
        """Devices from which the phase waits for an answer."""
        if self.phase == COLLECTING:
            return tuple(sorted(self.members - self.answered))
        if self.phase == MOVING:
            return tuple(sorted(self.plan.holders - self.answered))
        if self.phase == RUNNING:
            return tuple(sorted(set(self.plan.devices) - self.answered))
        return tuple(sorted(set(self.plan.savers) - self.saved)) if self.phase == FINISHING and self.saving else ()

    @property
    def plan(self) -> Layout:
        """The newest plan, in phases that have one."""
        assert self.layout is not None, f"{self.phase} has a plan"
        return self.layout


def kept_versions(versions: Iterable[Version], history: History) -> tuple[Version, ...]:
    """Return the newest checkpoints of a history, and INITIAL, which is always there."""
    found = sorted(version for version in set(versions) if version in history and version != INITIAL)
    return (INITIAL, *found[-KEPT_CHECKPOINTS:])
