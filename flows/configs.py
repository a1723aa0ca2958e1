"""Run files: YAML to a RunConfig, with named sections, changes from the command line, and resolved paths.

A section (fleet, model, data, strategy, training) is a mapping, the NAME of a file in the folder of its kind
beside the run file's own folder (`configs/runs/x.yaml` with `fleet: here` reads `configs/fleets/here.yaml`), or a
mapping with `use: NAME` whose other keys override those of that file. Strategies go by their own names where there is
no such file. A run file elsewhere that has no such file beside
it gets that of `configs/` in the working directory. A device's `simulated` is a mapping or the NAME of a file in
configs/devices.
"""

import datetime
import re
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from fleetune.contracts import json_io
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.record import NAME, record
from fleetune.contracts.run_config import BUILT_IN, NO_PASSWORD, STRATEGIES, RunConfig
from fleetune.contracts.url_passwords import refuse_password
from fleetune.errors import Refused
from fleetune.filesystem import check_utf8, expanded
from flows import yaml_file

FOLDERS = {"fleet": "fleets", "model": "models", "data": "data", "strategy": "strategies", "training": "trainings"}
DEVICES = "devices"
ANNEX = "/annex/objects/"
"""In the paths of files that git-annex keeps by their content."""
DATA_SOURCE, DATA_VALIDATION, DATA_LOCAL = "data.source", "data.validation", "data.local."
LORA_START, JOIN_TOKEN, ENGINE_TLS = "model.lora.start", "fleet.join.token_file", "fleet.engines.tls"
CHAT_TEMPLATE = "data.chat_template"
MODEL_SOURCE, MODEL_REVISION = "model.source", "model.revision"
STREAMING, BY_CONTENT = "streaming", "split_by_content"
FILES_ONLY = (LORA_START, JOIN_TOKEN, ENGINE_TLS, CHAT_TEMPLATE)
"""Settings that name a file or folder and nothing else."""
CRON_FIELDS = 5
DATA_FILES = (".jsonl", ".json", ".csv", ".parquet")
RUNS = Path("configs", "runs")
"""Folder of run files; reruns look up names from here."""


@record
class _Origin:
    """The config that is read, for messages, and the folder that its names and paths are relative to."""

    owner: str
    folder: Path
    new: bool = False
    """It is no config of a past run."""


def load(path: Path, sets: Sequence[str] = ()) -> RunConfig:
    """The run file at `path` with `sets` (each `dotted.key=YAML`) applied before anything is checked.

    Refused with the file, the key, the value and the allowed values when anything is wrong.
    """
    return _config(yaml_file.read(path), sets, _Origin(owner=str(path), folder=path.absolute().parent, new=True))


def with_changes(config: RunConfig, sets: Sequence[str], owner: str, folder: Path = RUNS) -> RunConfig:
    """Apply `sets` to the config of a past run; names of sections are looked up as from a run file in `folder`."""
    return _config(json_io.dump(config), sets, _Origin(owner=owner, folder=folder.absolute()))


def title(config: RunConfig) -> str:
    """`demo · asteroid · 40 rounds`, the name of a run in Prefect's UI."""
    rounds = config.training.rounds
    return f"{config.name} · {config.strategy.name} · {rounds} round{'' if rounds == 1 else 's'}"


def _config(plain: dict[str, Any], sets: Sequence[str], origin: "_Origin") -> RunConfig:
    files = {section: _fill_section(plain, section, origin) for section in FOLDERS}
    _fill_devices(plain.get("fleet"), origin)
    promoted = None if origin.new else plain.get("promote")  # what was promoted before goes on as it was split
    keys = {change.partition("=")[0].strip() for change in sets}
    pinned = _model_source(plain)
    for change in sets:
        apply_change(plain, change)
        section = change.partition("=")[0].partition(".")[0].strip()
        files[section] = _fill_section(plain, section, origin) or files.get(section)
        _fill_devices(plain.get("fleet"), origin)
    if MODEL_SOURCE in keys and MODEL_REVISION not in keys and _model_source(plain) != pinned:
        plain["model"].pop("revision", None)  # the commit of another model
    data = plain.get("data")
    if promoted is None and plain.get("promote") is not None and isinstance(data, dict) and not data.get(STREAMING):
        data.setdefault(BY_CONTENT, True)  # of a stream, as many rows are read each time
    try:
        _resolve_paths(plain, origin)
        config = json_io.load(RunConfig, plain, origin.owner)
        check_utf8(origin.owner, json_io.text(config))
        _validate_strategy(config, origin.owner)
        _validate_schedule(config, origin.owner)
    except Refused as error:
        by_hand = any(change.partition("=")[0].strip() in str(error) for change in sets)
        raise Refused(str(error) + ("" if by_hand else _origin_note(str(error), files, origin))) from None
    return config


def _model_source(plain: dict[str, Any]) -> Any:
    model = plain.get("model")
    return model.get("source") if isinstance(model, dict) else None


def load_fleet(path: Path) -> FleetRequest:
    """Load one file of configs/fleets."""
    plain = yaml_file.read(path)
    _fill_devices(plain, _Origin(owner=str(path), folder=path.absolute().parent))
    return json_io.load(FleetRequest, plain, str(path))


def apply_change(plain: dict[str, Any], change: str) -> None:
    """Set one `dotted.key=value` in place; members of a list are found by their `name`.

    `fleet.devices.nano.emulate.cores=0.3` changes the device called nano. The value is YAML: `[1, 2]`, `null`, `1e-4`.
    """
    key, sign, value = change.partition("=")
    steps = key.strip().split(".")
    if not sign or not all(steps):
        raise Refused(f"--set {change}: write KEY=VALUE such as training.rounds=10")
    place: Any = plain
    for depth, step in enumerate(steps[:-1]):
        place = _child(place, step, ".".join(steps[:depth]), change)
    new = yaml_file.parse(value, f"--set {change}")
    if isinstance(place, list):
        place[_index_by_name(place, steps[-1], ".".join(steps[:-1]), change)] = new
    elif isinstance(place, dict):
        place[steps[-1]] = new
    else:
        raise _no_section(place, ".".join(steps[:-1]), change)


def _child(place: Any, step: str, key: str, change: str) -> Any:
    """The value at `step` inside `place`; creates a mapping when the key is missing."""
    if isinstance(place, list):
        return place[_index_by_name(place, step, key, change)]
    if not isinstance(place, dict):
        raise _no_section(place, key, change)
    if place.get(step) is None:
        place[step] = {}
    return place[step]


def _index_by_name(members: list[Any], name: str, key: str, change: str) -> int:
    names = [member.get("name") if isinstance(member, dict) else None for member in members]
    if name not in names:
        known = ", ".join(str(n) for n in names if n) or "none"
        raise Refused(f"--set {change}: {key} has no member named {name!r}; its names are {known}")
    return names.index(name)


def _no_section(place: Any, key: str, change: str) -> Refused:
    return Refused(f"--set {change}: {key} is {place!r}, which has no keys inside; set {key} itself")


def _origin_note(message: str, files: dict[str, Path | None], origin: "_Origin") -> str:
    """Name the file of the section that a message is about, when it is not the run file itself."""
    about = re.match(r"\w+", message.removeprefix(f"{origin.owner}: "))
    file = files.get(about.group()) if about else None
    return f" (its section is read from {file})" if file else ""


def _fill_section(plain: dict[str, Any], section: str, origin: _Origin) -> Path | None:
    """Replace a section that is a name, or has `use: NAME`, by the named file's content; returns that file."""
    value = plain.get(section)
    if section not in FOLDERS or value is None:
        return None
    if isinstance(value, str):
        try:
            file = _section_file(value, section, FOLDERS[section], origin)
        except Refused:
            if section != "strategy" or value not in STRATEGIES:
                raise
            plain[section] = {"name": value}  # a strategy needs no file, wherever the run file lies
            return None
        plain[section] = yaml_file.read(file)
        return file
    if isinstance(value, dict) and "use" in value:
        file = _section_file(value["use"], section, FOLDERS[section], origin)
        own = {key: inner for key, inner in value.items() if key != "use"}
        plain[section] = _merged(yaml_file.read(file), own)
        return file
    if not isinstance(value, dict):
        allowed = f"a mapping or the name of a file in {FOLDERS[section]}/"
        raise Refused(f"{origin.owner}: {section}: it is {value!r}; allowed are {allowed}")
    return None


def _fill_devices(fleet: Any, origin: _Origin) -> None:
    """Replace every `simulated: NAME` of a fleet's devices by the content of configs/devices/NAME.yaml."""
    devices = fleet.get("devices") if isinstance(fleet, dict) else None
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and isinstance(device.get("simulated"), str):
            label = f"fleet.devices.{device.get('name')}.simulated"
            device["simulated"] = yaml_file.read(_section_file(device["simulated"], label, DEVICES, origin))


def _section_file(name: Any, label: str, folder: str, origin: _Origin) -> Path:
    """The file FOLDER/NAME.yaml beside the run file's folder or inside it, else that of this project's configs."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Refused(f"{origin.owner}: {label}: {name!r} is not a name; use letters, digits, '.', '_' and '-'")
    places = [root / folder for root in (origin.folder.parent, origin.folder)]
    ours = RUNS.parent.absolute() / folder
    for place in (*places, ours):
        found = place / f"{name}.yaml"
        if found.is_file():
            return found
    place = next((one for one in places if any(one.glob("*.yaml"))), ours)  # a folder of one's own hides ours in errors
    known = sorted({file.stem for file in place.glob("*.yaml")})
    allowed = f"its names are {', '.join(known)}" if known else "it has none"
    raise Refused(f"{origin.owner}: {label}: there is no {name}.yaml in {place}; {allowed}")


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over`, mapping by mapping; lists are replaced whole."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _resolve_paths(plain: dict[str, Any], origin: _Origin) -> None:
    """Make paths absolute: relative to the run file if they exist there, else to the working directory."""
    model, fleet = plain.get("model"), plain.get("fleet")
    lora = model.get("lora") if isinstance(model, dict) else None
    join, engines = (fleet.get("join"), fleet.get("engines")) if isinstance(fleet, dict) else (None, None)
    data = plain.get("data")
    local = data.get("local") if isinstance(data, dict) else None
    _resolve_patterns(data, origin)
    for holder, key, label in (
        (data, "source", DATA_SOURCE),
        (data, "validation", DATA_VALIDATION),
        (data, "chat_template", CHAT_TEMPLATE),
        *((local, device, f"{DATA_LOCAL}{device}") for device in (local if isinstance(local, dict) else ())),
        (model, "source", "model.source"),
        (lora, "start", LORA_START),
        (join, "token_file", JOIN_TOKEN),
        *((engine, "tls", ENGINE_TLS) for engine in (engines if isinstance(engines, list) else ())),
    ):
        if not isinstance(holder, dict) or not isinstance(holder.get(key), str) or not holder[key]:
            continue
        given = holder[key]
        refuse_password(label, given, NO_PASSWORD)  # before a message shows it
        if (_is_data(label) and given in BUILT_IN) or given.startswith("package:"):
            continue
        tried = [(base / expanded(given)) for base in (origin.folder, Path.cwd())]
        found = next(filter(_exists, tried), None)
        if found is not None:
            elsewhere = label.startswith(DATA_LOCAL) and Path(given).is_absolute()  # this machine's links say nothing
            target = found.resolve()
            unnamed = found.suffix not in ("", target.suffix) or ANNEX in target.as_posix()
            if _is_data(label) and found.is_file() and unnamed:
                target = found.parent.resolve() / found.name  # as in the hub's cache, whose files have no names
            holder[key] = given if elsewhere else str(target)
        elif _must_be_path(given, label):
            looked = " and ".join(dict.fromkeys(str(place) for place in tried))
            raise Refused(f"{origin.owner}: {label}: {given!r} does not exist; looked for {looked}")


def _resolve_patterns(data: Any, origin: _Origin) -> None:
    """Make the files and patterns of data.files absolute, as paths are."""
    files: Any = data.get("files") if isinstance(data, dict) else None
    for number, given in enumerate(files if isinstance(files, list) else ()):
        if not isinstance(given, str) or not given:
            raise Refused(f"{origin.owner}: data.files: {given!r} is not a file or a pattern such as chats/*.jsonl")
        refuse_password("data.files", given, NO_PASSWORD)
        tried = [str(base / expanded(given)) for base in (origin.folder, Path.cwd())]
        found = next((place for place in tried if _exists(Path(place)) or glob(place, recursive=True)), None)
        if found is None:
            looked = " and ".join(dict.fromkeys(tried))
            raise Refused(f"{origin.owner}: data.files: no file matches {given!r}; looked for {looked}")
        files[number] = found


def _exists(place: Path) -> bool:
    try:
        return place.exists()
    except OSError:  # longer than a file name may be
        return False


def _is_data(label: str) -> bool:
    return label in (DATA_SOURCE, DATA_VALIDATION) or label.startswith(DATA_LOCAL)


def _must_be_path(given: str, label: str) -> bool:
    """True for text that cannot be a name on a hub; an absolute path of data.local may lie on another machine."""
    if label.startswith(DATA_LOCAL) and Path(given).is_absolute():
        return False
    return (
        label in FILES_ONLY
        or given.startswith(("/", "./", "../", "~"))
        or (_is_data(label) and given.endswith(DATA_FILES))
    )


def _validate_schedule(config: RunConfig, owner: str) -> None:
    """Refuse a cron expression that Prefect would not accept or that names no day, and an unknown time zone."""
    if config.schedule is None or config.schedule.cron is None:
        return
    cron, timezone = config.schedule.cron, config.schedule.timezone
    from prefect._vendor.croniter.croniter import croniter  # Prefect's own, whose scheduler a bad expression stops

    parser: Any = croniter
    example = '"0 2 * * *" is every night at two'
    fields = cron.lower().split()
    random = any(field.startswith(("r", "h")) for field in fields)  # Prefect does not take croniter's R and H
    if random or len(fields) != CRON_FIELDS or not parser.is_valid(cron):
        raise Refused(
            f"{owner}: schedule.cron: {cron!r} is not minute, hour, day of the month, month and day of the week; "
            f"{example}"
        )
    try:
        parser(cron, datetime.datetime.now(datetime.UTC)).get_next()
    except ValueError:
        raise Refused(f"{owner}: schedule.cron: {cron!r} names a day that does not exist; {example}") from None
    if timezone is not None and timezone not in available_timezones():
        raise Refused(
            f"{owner}: schedule.timezone: {timezone!r} is not a time zone; give one such as Europe/Berlin, or leave it "
            "out for UTC"
        )


def _validate_strategy(config: RunConfig, owner: str) -> None:
    """Refuse an unknown strategy, before anything is measured."""
    if config.strategy.name not in STRATEGIES:
        allowed = ", ".join(sorted(STRATEGIES))
        raise Refused(f"{owner}: strategy.name is {config.strategy.name!r}; allowed are {allowed}")
