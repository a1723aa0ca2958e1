"""Origin of a run's results outside the store: package versions, hub revisions, contents of data and models, the git
commit, and the facts of fleets and plans that stage keys depend on."""

import hashlib
import json
import subprocess
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.contracts.fleet import DOCKER, Fleet
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.record import record
from fleetune.contracts.run_config import BUILT_IN, DataRequest, RunConfig
from fleetune.filesystem import expanded
from fleetune.store.stage_key import ROOT

CODE = ("fleetune", "flows", "stages", "containers")
GIT_TIMEOUT_S = 10.0

MeasurementTest = Callable[[Path, Path, RunConfig], bool]
InputFact = Callable[[Callable[[str], Path]], str]


def version_of(package: str) -> str:
    """Installed version of a distribution; `absent` when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def pin_revisions(config: RunConfig) -> RunConfig:
    """The config with every hub name pinned to its current commit."""
    model, data = config.model, config.data
    if model.source is not None and not model.source.startswith("package:") and not Path(model.source).is_dir():
        from fleetune.models.source import pin_revision  # brings numpy: only for names on the hub

        model = pin_revision(model)
    named = [data.source, *([data.validation] if isinstance(data.validation, str) else [])]
    if any(source not in BUILT_IN and not expanded(source).exists() for source in named):
        from fleetune.data.sources import pinned_request

        data = pinned_request(data)
    data = replace(data, local={device: _pinned_local(source) for device, source in data.local.items()})
    return replace(config, model=model, data=data)


def _pinned_local(source: str) -> str:
    """A device's own source, pinned if it is a name on the hub; an absolute path need not exist here."""
    if source in BUILT_IN or Path(source).is_absolute() or expanded(source).exists():
        return source
    from fleetune.data.sources import pinned_request

    return pinned_request(DataRequest(source=source)).source


def data_content(config: RunConfig) -> str:
    """Digest of every byte of the run's data; Refused when they cannot be read."""
    from fleetune.contracts.input_spec import InputSpec
    from fleetune.data.sources import content_digest

    return content_digest(config.data, images=not InputSpec(task=config.model.task).is_text)


def local_data_content(config: RunConfig) -> str:
    """JSON of device -> digest of its own data, which each device computes; Refused when one cannot read its data."""
    from fleetune.preparation.local_data import reported_digests

    return json.dumps(reported_digests(config.fleet, config.data, config.model.task), sort_keys=True)


def model_content(config: RunConfig) -> str:
    """Digest of every byte of the run's model; Refused when it cannot be found."""
    from fleetune.models.source import content_digest  # brings numpy: only when a run really starts

    return content_digest(config.model)


def model_marks(config: RunConfig) -> Hashable:
    """What shows that a file of the run's model was touched, without reading it."""
    from fleetune.models.source import content_marks  # as above

    return content_marks(config.model)


@record
class MeasurementPair:
    """The stored outputs of a stage that measures and those of a new attempt, kind -> folder; and the run's config."""

    stored: Mapping[str, Path]
    """Its evidence is that of the newest run; absent if that run left none."""
    measured: Mapping[str, Path]
    config: RunConfig
    anew: bool
    """The user asked to measure again."""


@record
class MeasurementVerdict:
    """Whether the stored measurement is kept, and why; `why` is empty for one within tolerance."""

    keep: bool
    why: str = ""


def judge_fleet(pair: MeasurementPair) -> MeasurementVerdict:
    """Compare a measured fleet with the stored one; see `fleetune.discovery.hysteresis`."""
    from fleetune.discovery.hysteresis import judge
    from fleetune.discovery.measurement import Measurement

    def measurement(folders: Mapping[str, Path]) -> Measurement | None:
        folder = folders.get("measurement")
        return json_io.read(Measurement, folder / "measurement.json") if folder else None

    new = measurement(pair.measured)
    assert new is not None, "discover writes its measurement"
    stored = json_io.read(Fleet, pair.stored["fleet"] / "fleet.json")
    verdict = judge(stored, new, measurement(pair.stored), pair.config.fleet.tolerance, pair.anew)
    return MeasurementVerdict(keep=verdict.keep, why=verdict.why)


def fleet_has_same_devices(stored: Path, measured: Path, config: RunConfig) -> bool:
    """True when a measured fleet has exactly the devices of the stored one, whatever the rates of its links."""
    from fleetune.discovery.measurement import same_devices

    return bool(same_devices(*(json_io.read(Fleet, folder / "fleet.json") for folder in (stored, measured))))


MeasurementJudge = Callable[[MeasurementPair], MeasurementVerdict]


@record
class Commit:
    """The commit that is checked out; its id is empty without a checkout or without git."""

    id: str = ""
    dirty: bool = False
    """The code has uncommitted edits."""


def plan_decisions(folder: Callable[[str], Path]) -> str:
    """sha256 of what the plan has devices do, without its forecast, bound, solve time and report.

    `folder` gives the folder of an input by its kind.
    """
    decided = json_io.read(PlanResult, folder("plan") / "plan.json").plan
    return hashlib.sha256(json_io.text(decided).encode()).hexdigest()


def training_method(folder: Callable[[str], Path]) -> str:
    """What the plan computes beside who does it: empty if that is the training of one model by whole gradients.

    Plans of the same method may go on from each other's checkpoints: the training stays one and the same.
    """
    result = json_io.read(PlanResult, folder("plan") / "plan.json")
    if result.plan.trains_whole_gradients:
        return ""
    return json.dumps({"strategy": result.plan.strategy, **result.options}, sort_keys=True)


def device_arithmetic(folder: Callable[[str], Path]) -> str:
    """JSON of what may change the last bits of the planned devices' sums: accelerator, threads, image, and fingerprint.

    The fingerprint covers processor, GPU, torch and the image's digest, but also cores and memory.
    """
    fleet = json_io.read(Fleet, folder("fleet") / "fleet.json")
    used = json_io.read(PlanResult, folder("plan") / "plan.json").plan.devices
    facts: dict[str, list[str | int]] = {}
    for device in map(fleet.device, used):
        image = fleet.image if device.launcher == DOCKER else ""
        facts[device.name] = [device.accelerator.partition(":")[0], device.threads, image, device.fingerprint]
    return json.dumps(facts)


def current_commit(root: Path = ROOT) -> Commit:
    """The commit of the checkout at `root`; empty when `root` is only a folder inside another checkout."""
    if not (root / ".git").exists():
        return Commit()
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return Commit()
    edited = _git(root, "status", "--porcelain", "--", *(name for name in CODE if (root / name).is_dir()))
    return Commit(id=commit, dirty=bool(edited))


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
