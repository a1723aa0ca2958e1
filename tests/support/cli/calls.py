"""Calls of the command line in this process, and what they print and leave."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import Result

from flows.cli.work import WORK, Work

Call = Callable[..., Result]


@contextmanager
def working(work: Work) -> Iterator[None]:
    """Have commands that are called in this process set this work going."""
    token = WORK.set(work)
    try:
        yield
    finally:
        WORK.reset(token)


def files(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its content; empty when the folder is not there."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def document(result: Result) -> Any:
    """The one JSON document on stdout of a successful call."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
