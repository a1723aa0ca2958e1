"""Options that all commands share: the folder of runs and the output format."""

import dataclasses
import functools
import inspect
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.formatting import CONTROL
from flows.store_root import DEFAULT_ROOT, ROOT_VARIABLE

if TYPE_CHECKING:
    from rich.console import Console

    from fleetune.store import Store

Root = Annotated[
    str, typer.Option("--root", envvar=ROOT_VARIABLE, help="Folder (or fsspec URL) that keeps runs and artifacts.")
]
PIPE_WIDTH = 1000
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the config: training.rounds=10. Repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@record
class CommonOptions:
    """The common options of one call."""

    root: Root = DEFAULT_ROOT
    as_json: AsJson = False

    def store(self) -> "Store":
        """Open the store, which writes nothing. Refused when its root is a file."""
        from fleetune.store import Store

        if not self.root.strip():
            raise Refused("--root: it is empty; give a folder (it need not exist yet) or an fsspec URL")
        store = Store(self.root)
        try:
            is_else = store.local.exists() and not store.local.is_dir()
        except OSError as error:
            raise Refused(f"--root {self.root}: cannot be looked at ({error.strerror}); give another folder") from None
        if is_else:
            raise Refused(f"--root {self.root}: it is a file; give a folder (it need not exist yet) or an fsspec URL")
        return store

    def folder(self) -> Path:
        """Folder for files of this machine: the root itself, or the local cache of a remote root."""
        return self.store().local

    def root_option(self) -> str:
        """The `--root` option of a command that is printed for the user; empty for the default root."""
        return "" if self.root == DEFAULT_ROOT else f" --root {shlex.quote(self.root)}"

    def console(self) -> "Console":
        """stdout for people; prints text verbatim, and only a terminal wraps it: files and pipes have no width."""
        from flows.cli.terminal import terminal

        console = terminal()
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = PIPE_WIDTH
        return console

    def print_json(self, document: Any) -> None:
        """Print the one JSON document of the call."""
        text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
        typer.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text))  # JSON escapes only those below a space


def with_options(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command with one option per field of the record `kind`, which becomes its first argument."""
    hints = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name])
        for f in dataclasses.fields(kind)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            gathered = {option.name: given.pop(option.name) for option in options}
            command(kind(**gathered), **given)

        functools.update_wrapper(called, command, updated=())
        del called.__wrapped__  # type: ignore[attr-defined]
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        called.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        called.__annotations__ = {}
        return called

    return decorate


with_common_options = with_options(CommonOptions)
