"""What surrounds a run besides its config, and which of its stages are selected."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import field

from fleetune.contracts.record import record
from fleetune.contracts.run_config import RunConfig
from fleetune.launching import Launcher, ProcessLauncher
from fleetune.store import Store
from fleetune.store.stage_key import SourceDigests
from flows.events import EventListener, ignore_event
from flows.external import (
    Commit,
    InputFact,
    MeasurementTest,
    current_commit,
    data_content,
    device_arithmetic,
    fleet_is_there,
    model_content,
    pinned,
    plan_decisions,
    same_fleet,
    version_of,
)
from stages.catalog import DEVICE_ARITHMETIC, PLAN_DECISIONS, STAGES, StageSpec


@record
class RunContext:
    """Everything around a run that is not its config."""

    store: Store
    listen: EventListener = ignore_event
    catalog: tuple[StageSpec, ...] = STAGES
    launcher: Launcher = field(default_factory=ProcessLauncher)
    contents: Mapping[str, Callable[[RunConfig], str]] = field(
        default_factory=lambda: {"data": data_content, "model weights": model_content}
    )
    """Digests of what lies outside the store, by the name the catalog uses."""
    facts: Mapping[str, InputFact] = field(
        default_factory=lambda: {PLAN_DECISIONS: plan_decisions, DEVICE_ARITHMETIC: device_arithmetic}
    )
    """Facts about inputs that stand for them in a key, by the name the catalog uses."""
    pin: Callable[[RunConfig], RunConfig] = pinned
    """Has every later stage and worker read what a name on the hub stands for when the run begins."""
    versions: Callable[[str], str] = version_of
    sources: Callable[[str], Mapping[str, str]] = field(default_factory=lambda: SourceDigests().of)
    """Source files that a module runs, by path, with their digests."""
    commit: Callable[[], Commit] = current_commit
    within_tolerance: Mapping[str, MeasurementTest] = field(default_factory=lambda: {"fleet": same_fleet})
    """kind -> whether a new measurement may be dropped for the stored one"""
    same_members: Mapping[str, MeasurementTest] = field(default_factory=lambda: {"fleet": fleet_is_there})
    """kind -> whether it may be dropped for that of a run that is not done, whatever has changed of it since"""
    chance: Callable[[int], str] = secrets.token_hex


@record
class StageSelection:
    """What the user asked for beyond the config."""

    from_stage: str | None = None
    """Earlier stages must be in the store already; this one is run even when its key is known."""
    only: str | None = None
    """What it reads must be in the store already; nothing after it is run."""
    rerun: str | None = None
    """The run that is run again: reasons are told against it."""
    until: str | None = None
    """The last stage; the run ends well after it."""
