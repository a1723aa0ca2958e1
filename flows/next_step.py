"""The command with which the message of a flow run's state ends: what to enter next, or how to start the run again.

Does not depend on Prefect. A command can be copied: it names the store and the run, and its values are quoted.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.form import (
    AS_GIVEN,
    EVERY_STAGE,
    FIRST_CHANGE,
    LAST_STAGE,
    config_changes,
    find_run_file,
)
from flows.store_root import DEFAULT_ROOT

NEXT = "; next: "
"""Between what happened and the command."""
PROGRAM = "fleetune"


def command(root: str, words: Sequence[str]) -> str:
    """The command with these words for the store at `root`; the store is not named where it is the default."""
    place = root if "://" in root else str(Path(root).resolve())
    store = [] if place == str(Path(DEFAULT_ROOT).resolve()) else ["--root", place]
    return shlex.join([_program(), *words, *store])


def and_next(message: str, next_command: str) -> str:
    """`accuracy did not improve; next: fleetune show demo-...`; a message that names a next command already stays."""
    return message if NEXT in message else message.strip().rstrip(".;") + NEXT + next_command


def again(flow: str, values: Mapping[str, Any]) -> list[str]:
    """The words of the command that does what the flow run does whose form has these values.

    `values`: names of parameters -> values; missing ones are neutral. A selection of stages that only past runs can
    have, such as `start_from`, is left out for a run file.
    """
    changes = [word for change in config_changes(values) for word in ("--set", change)]
    force = ["--force"] if values.get("force") else []
    if flow == "evaluate":
        data = values.get("data", AS_GIVEN)
        given = [word for change in values.get("changes", ()) for word in ("--set", change)]
        named = [] if data == AS_GIVEN else ["--data", data]
        return ["evaluate", str(values.get("run", "latest")), *named, *given, *force]
    base = str(values.get("base", "demo"))
    file = find_run_file(base)
    if flow == "compare":
        return ["compare", str(file or base), *_comparison(values), *changes]
    only, until = values.get("only", EVERY_STAGE), values.get("until", LAST_STAGE)
    last = "profile" if flow == "profile-fleet" else "" if until == LAST_STAGE else until
    if file is not None:
        last = last if only == EVERY_STAGE else only
        return ["run", str(file), *(["--until", last] if last else []), *changes, *force]
    first = values.get("start_from", FIRST_CHANGE)
    stages = [
        *(["--from", first] if first != FIRST_CHANGE else []),
        *(["--only", only] if only != EVERY_STAGE else []),
        *(["--until", last] if last else []),
    ]
    return ["rerun", base, *stages, *changes, *force]


def _comparison(values: Mapping[str, Any]) -> list[str]:
    strategies, target_loss = values.get("strategies", ()), values.get("target_loss", 0.0)
    return [
        *(["--strategies", ",".join(strategies)] if strategies else []),
        *(["--train"] if values.get("train") else []),
        *(["--target-loss", str(target_loss)] if target_loss else []),
    ]


def _program() -> str:
    """How this program is called here: by its name where the shell finds it, else by its path."""
    if shutil.which(PROGRAM):
        return PROGRAM
    beside = Path(sys.executable).with_name(PROGRAM)
    if not beside.exists():
        return PROGRAM
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)
