"""What the conductor knows between two events.

COLLECTING  all members were told to abort; waits for what they hold and for writes that are under way
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

from fleetune.contracts.record import record
from fleetune.recovery.holdings import INITIAL, Attempt, History, Holding, Version
from fleetune.recovery.protocol import Layout

COLLECTING, REVISING, MOVING, REWINDING = "collecting", "revising", "moving", "rewinding"
RUNNING, LOGGING, FINISHING, ENDED = "running", "logging", "finishing", "ended"
SCORING = "scoring"
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
    members: frozenset[str]
    """Devices that live and were told of the attempt."""
    layout: Layout | None = None
    """The newest plan; None until there is one."""
    replan: bool = False
    """True if another plan is to be found: for other devices, paces or links."""
    waiting: frozenset[str] = frozenset()
    """Devices that join at the border of a round, or at the next loss."""
    suspected: frozenset[str] = frozenset()
    writing: frozenset[str] = frozenset()
    """COMMIT or REWIND, while it is under way on the coordinator's disk."""
    completing: frozenset[Version] = frozenset()
    """Checkpoints that are being collected and marked."""
    lost: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
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
    def plan(self) -> Layout:
        """The newest plan, in phases that have one."""
        assert self.layout is not None, f"{self.phase} has a plan"
        return self.layout


def kept_versions(versions: Iterable[Version], history: History) -> tuple[Version, ...]:
    """Return the newest checkpoints of a history, and INITIAL, which is always there."""
    found = sorted(version for version in set(versions) if version in history and version != INITIAL)
    return (INITIAL, *found[-KEPT_CHECKPOINTS:])
