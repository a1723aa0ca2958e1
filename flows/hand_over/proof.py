"""Proves that an exported folder is what a run trained: by the receipt in its card, and by exporting once more."""

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleetune.contracts import json_io
from fleetune.contracts.checkpoint_path import ADAPTER, CARD, RECEIPT
from fleetune.errors import Refused
from fleetune.filesystem import file_digest
from fleetune.models.rotary_settings import OLDER, rotary_parameters
from fleetune.store import Store
from flows.hand_over.export import export
from flows.hand_over.trained_run import TrainedRun, tell, trained_run
from flows.receipt import Receipt, check_run

SETTINGS = ("config.json", "adapter_config.json")
VERSIONED, VERSION = ("config.json", "generation_config.json"), "transformers_version"
"""Files that transformers writes with its own version, and the key of that."""


def is_exported(name: str) -> bool:
    """True if a name of `fleetune verify` is that of a model's folder."""
    return any((Path(name) / file).is_file() for file in SETTINGS)


def prove(store: Store, folder: Path, note: Callable[[str], None]) -> str:
    """Return the id of the run that trained the model in a folder. Refused: the first file that it has not made.

    An adapter that was merged is merged again. Whatever the card says besides its receipt is not compared.
    """
    told = _receipt(folder)
    run = store.runs.load(told.run)
    if run.id != told.run or check_run(store, run, note) != told:
        raise Refused(f"{folder / CARD}: its receipt is not that of run {told.run} in this store")
    found = trained_run(store, run.id)
    adapter = (folder / "adapter_config.json").exists()
    ways = (not adapter,) if (found.checkpoint / ADAPTER).is_dir() else (False, True)
    faults = []
    for merge in ways:
        with tempfile.TemporaryDirectory(prefix="fleetune-") as scratch:
            again = export(found, Path(scratch) / "again", merge, note=lambda sentence: None)  # `check_run` has told
            faults.append(_first_difference(folder, again))
        if not faults[-1]:
            return run.id
    raise Refused(f"{faults[0]}; it is not what run {run.id} trained")


def is_there(store: Store, found: TrainedRun, folder: Path, merge: bool) -> bool:
    """Return whether a folder holds what `export` would write of a run, as one does that could not be pushed."""
    adapter = (folder / "adapter_config.json").exists()
    if adapter != ((found.checkpoint / ADAPTER).is_dir() and not merge):
        return False
    with suppress(Refused):
        return prove(store, folder, tell) == found.run.id
    return False


def _receipt(folder: Path) -> Receipt:
    """The receipt in a card."""
    try:
        text = (folder / CARD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    block = text.rpartition(RECEIPT)[2].partition("```json\n")[2].partition("```")[0]
    if not block:
        raise Refused(f"{folder / CARD}: it has no receipt; export the model again, or give a run")
    return json_io.parse(Receipt, block, str(folder / CARD))


def _first_difference(folder: Path, made: Path) -> str:
    """Describe the first file of a folder that is missing, added or another one; hidden files and the card aside."""
    there, wanted = ({path.relative_to(root).as_posix(): path for path in root.rglob("*") if _is_entry(path)}
                     for root in (folder, made))  # fmt: skip
    for name in sorted(there.keys() | wanted.keys()):
        if name == CARD or name.startswith("."):
            continue
        if name not in there:
            return f"{folder / name}: file is missing"
        if name not in wanted:
            kind = "link" if there[name].is_symlink() else "file"
            return f"{folder / name}: {kind} was added"
        if there[name].is_symlink() or not there[name].is_file():
            return f"{folder / name}: is not a plain file, so its content may become another"
        if fault := _fault(there[name], wanted[name]):
            return f"{folder / name}: {fault}"
    return ""


def _fault(there: Path, made: Path) -> str:
    """How the content of two files differs; empty if in nothing, or in the version of transformers alone."""
    if file_digest(there) == file_digest(made):
        return ""
    settings = [json_io.parse_plain(path.read_bytes(), str(path)) for path in (there, made) if path.name in VERSIONED]
    if settings and all(isinstance(each, dict) for each in settings):
        then, now = (each.pop(VERSION, "unknown") for each in settings)
        if others := _others(*settings):
            names = ", ".join(others)
            if then != now:
                return (
                    f"other settings ({names}), but transformers {then} wrote it, and {now} is here: verify with {then}"
                )
            return f"other settings ({names}) than a new export has, which an older version may have written"
        return ""
    return "its content is another"


def _others(here: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """Names of settings that two files, or parts of them, have otherwise.

    One of rotary positions as transformers 4 has it, which versions of ours repeat in other files, may be in one alone
    where transformers reads the same of both.
    """
    found, repeated = list[str](), False
    for key in sorted({*here, *again}):
        one, other = here.get(key), again.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += _others(one, other)
        elif key in (*OLDER, "rope_scaling") and None in (one, other):
            repeated = repeated or one is not other
        elif (key in here) != (key in again) or json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True):
            found.append(key)  # null is no default
    if repeated and (rotary_parameters(here) != rotary_parameters(again) or rotary_parameters(here) is None):
        found.append("rope_parameters")
    return found


def _is_entry(path: Path) -> bool:
    """True for what a folder holds besides folders; a link to one is an entry, since what lies in it is not gone
    through."""
    return path.is_symlink() or not path.is_dir()
