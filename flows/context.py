"""The surroundings of a run (store, catalog, launcher, listener) and the selection of its stages."""

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
    fleet_has_same_devices,
    fleet_within_tolerance,
    model_content,
    pin_revisions,
    plan_decisions,
    version_of,
)
from stages.catalog import DEVICE_ARITHMETIC, PLAN_DECISIONS, STAGES, StageSpec


@record
class RunContext:
    """Everything that a run needs besides its config."""

    store: Store
    listen: EventListener = ignore_event
    catalog: tuple[StageSpec, ...] = STAGES
    launcher: Launcher = field(default_factory=ProcessLauncher)
    contents: Mapping[str, Callable[[RunConfig], str]] = field(
        default_factory=lambda: {"data": data_content, "model weights": model_content}
    )
    """name of external content, as in the catalog -> its digest"""
    facts: Mapping[str, InputFact] = field(
        default_factory=lambda: {PLAN_DECISIONS: plan_decisions, DEVICE_ARITHMETIC: device_arithmetic}
    )
    """name of a key fact, as in the catalog -> its text, computed from input folders"""
    pin: Callable[[RunConfig], RunConfig] = pin_revisions
    """Pins hub names to commits when the run begins, so that every stage and worker reads the same."""
    versions: Callable[[str], str] = version_of
    sources: Callable[[str], Mapping[str, str]] = field(default_factory=lambda: SourceDigests().of)
    """module -> path and digest of each source file that it runs"""
    commit: Callable[[], Commit] = current_commit
    within_tolerance: Mapping[str, MeasurementTest] = field(default_factory=lambda: {"fleet": fleet_within_tolerance})
    """kind -> test that a new measurement is close enough to the stored one, which is then kept"""
    same_members: Mapping[str, MeasurementTest] = field(default_factory=lambda: {"fleet": fleet_has_same_devices})
    """kind -> test that an unfinished run's measurement names the same devices; it is then kept, however far off"""
    chance: Callable[[int], str] = secrets.token_hex


@record
class StageSelection:
    """The stages that the user selected with --from, --only and --until."""

    from_stage: str | None = None
    """Earlier stages must be stored; this one runs even when its key is known."""
    only: str | None = None
    """Its inputs must be stored; no later stage runs."""
    rerun: str | None = None
    """Id of the run that is rerun: reasons are differences from it."""
    until: str | None = None
    """The last stage; stages that it does not need are left out."""
