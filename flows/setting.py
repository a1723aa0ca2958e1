"""What a run is conducted with: the store, the table of stages, a launcher, and someone to tell."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from importlib import metadata
from pathlib import Path

from fleetune.contracts import wire
from fleetune.contracts.config.data import BUILT_IN
from fleetune.contracts.config.run import RunConfig
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.record import record
from fleetune.launching import Launcher, ProcessLauncher
from fleetune.store import Store
from fleetune.store.code import Sources
from flows.checkout import Commit, checked_out
from flows.events import Listen, nobody
from stages.catalog import STAGES, StageEntry

Settle = Callable[[Path, Path, RunConfig], bool]


def version_of(package: str) -> str:
    """Installed version of a distribution; `absent` where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def pinned(config: RunConfig) -> RunConfig:
    """The config with every name on the hub pinned to the commit that it stands for now."""
    model, data = config.model, config.data
    if model.source is not None and not model.source.startswith("package:") and not Path(model.source).is_dir():
        from fleetune.models.source import pinned as pinned_model  # imports transformers: only for names on the hub

        model = pinned_model(model)
    if data.source not in BUILT_IN and not Path(data.source).expanduser().exists():
        from fleetune.data import pinned_request

        data = pinned_request(data)
    return replace(config, model=model, data=data)


def data_content(config: RunConfig) -> str:
    """Digest of every byte the run's data are made from; Refused when they cannot be read."""
    from fleetune.data import content_digest

    return content_digest(config.data)


def model_content(config: RunConfig) -> str:
    """Digest of every byte the run's model is read from; Refused when it cannot be found."""
    from fleetune.models.source import content_digest  # imports transformers: only when a run really starts

    return content_digest(config.model)


def same_fleet(stored: Path, measured: Path, config: RunConfig) -> bool:
    """Whether a measurement of the fleet is close enough to the stored one to be dropped for it."""
    from fleetune.discovery import within_tolerance

    old, new = (wire.read(Fleet, folder / "fleet.json") for folder in (stored, measured))
    if new.simulated:
        return bool(old == new)  # stated, not measured
    return bool(within_tolerance(old, new, config.fleet.tolerance))


def fleet_is_there(stored: Path, measured: Path, config: RunConfig) -> bool:
    """Whether every device of a stored fleet is there, and no other, however fast its links are now."""
    from fleetune.discovery import same_devices

    return bool(same_devices(*(wire.read(Fleet, folder / "fleet.json") for folder in (stored, measured))))


@record
class Setting:
    """Everything around a run that is not its config."""

    store: Store
    listen: Listen = nobody
    catalog: tuple[StageEntry, ...] = STAGES
    launcher: Launcher = field(default_factory=ProcessLauncher)
    contents: Mapping[str, Callable[[RunConfig], str]] = field(
        default_factory=lambda: {"data": data_content, "model weights": model_content}
    )
    """Digests of what lies outside the store, by the name the catalog uses."""
    pin: Callable[[RunConfig], RunConfig] = pinned
    """Has every later stage and worker read what a name on the hub stands for when the run begins."""
    versions: Callable[[str], str] = version_of
    sources: Callable[[str], Mapping[str, str]] = field(default_factory=lambda: Sources().of)
    """Source files that a module runs, by path, with their digests."""
    commit: Callable[[], Commit] = checked_out
    settle: Mapping[str, Settle] = field(default_factory=lambda: {"fleet": same_fleet})
    """kind -> whether a new measurement may be dropped for the stored one"""
    there: Mapping[str, Settle] = field(default_factory=lambda: {"fleet": fleet_is_there})
    """kind -> whether it may be dropped for that of a run that is not done, whatever has changed of it since"""
    chance: Callable[[int], str] = secrets.token_hex


@record
class Wish:
    """What the user asked for beyond the config."""

    from_stage: str | None = None
    """Earlier stages must be in the store already; this one is run even when its key is known."""
    only: str | None = None
    """What it reads must be in the store already; nothing after it is run."""
    rerun: str | None = None
    """The run that is run again: reasons are told against it."""
    until: str | None = None
    """The last stage; the run ends well after it."""
