"""What every command is asked besides its own: where the runs are kept, and whether a program reads the answer."""

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.store import Store

Root = Annotated[
    str, typer.Option("--root", envvar="FLEETUNE_ROOT", help="Folder (or fsspec URL) that keeps runs and artifacts.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@record
class Asked:
    """The common options of one call."""

    root: str
    as_json: bool

    def store(self) -> Store:
        """The store of the call; nothing is written by opening it. Refused when its root is a file."""
        store = Store(self.root)
        if store.local.exists() and not store.local.is_dir():
            raise Refused(f"--root {self.root}: it is a file; give a folder (it need not exist yet) or an fsspec URL")
        return store

    def folder(self) -> Path:
        """Where files of this machine go: the root itself, or the cache of a root that is elsewhere."""
        return self.store().local

    def out(self) -> Console:
        """stdout for people; text is printed as it is, and only a terminal wraps it."""
        return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def answer(self, document: Any) -> None:
        """The JSON document that the call was made for."""
        typer.echo(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False))


def with_common(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--root` and `--json`; it gets them as its first argument, an Asked."""

    def called(root: str, as_json: bool, **own: Any) -> None:
        command(Asked(root=root, as_json=as_json), **own)

    functools.update_wrapper(called, command, updated=())
    del called.__wrapped__  # type: ignore[attr-defined]
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter("root", inspect.Parameter.KEYWORD_ONLY, default="runs", annotation=Root),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
    ]
    called.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called
