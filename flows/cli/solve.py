"""`fleetune solve`: reads a planning problem as JSON and writes its plan as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fleetune import filesystem
from fleetune.contracts.record import record
from fleetune.errors import STOPPED, Refused, TryAgain
from flows.cli.options import AsJson, with_options
from flows.cli.work import WORK

if TYPE_CHECKING:
    from fleetune.solving import Kind, Solved

STDIN = "-"
LOOK_S = 0.2
T = TypeVar("T")

Problem = Annotated[str | None, typer.Argument(metavar="PROBLEM", help="JSON file with the problem; - is stdin.")]
Output = Annotated[str | None, typer.Option("-o", "--output", metavar="PLAN", help="Write the plan there, as JSON.")]
List = Annotated[bool, typer.Option("--list", help="List kinds of problems and their methods.")]


@record
class SolveOptions:
    """Options of solving."""

    method: Annotated[str | None, typer.Option(metavar="NAME", help="See --list; the default comes first.")] = None
    time_limit: Annotated[float | None, typer.Option(metavar="S", help="Seconds that a search may take.")] = None
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the method's random choices.")] = 0
    as_json: AsJson = False


@with_options(SolveOptions)
def solve(options: SolveOptions, problem: Problem = None, output: Output = None, listed: List = False) -> None:
    """Solve a planning problem given as plain numbers."""
    from fleetune import solving

    known = WORK.get().solvers()
    if listed:
        if problem is not None:
            raise Refused(f"--list: takes no problem (got {problem!r}); leave out one of the two")
        return _print_kinds(known, options.as_json)
    if problem is None:
        raise Refused("solve: no problem is given; give a JSON file, - for stdin, or --list")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it as Ctrl-C does
    target = None if output is None else _writable_path(output, problem)

    def work() -> tuple[Kind, Solved]:
        kind, instance = solving.read(_read_problem(problem), "stdin" if problem == STDIN else problem, known)
        return kind, solving.solve(
            kind, instance, method=options.method, time_limit_s=options.time_limit, seed=options.seed
        )

    kind, plan = _interruptible(work)
    text = json.dumps(solving.document(plan), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    if target is not None:
        _write(text, target)
    if options.as_json:
        typer.echo(text, nl=False)
    else:
        typer.echo(summary_line(kind, plan) + (f"; {output}" if output else ""))


def _interruptible(work: Callable[[], T]) -> T:
    """Run on another thread: Python handles Ctrl-C only on the main one, and only while no compiled code runs there."""
    done: Future[T] = Future()

    def perform() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=perform, daemon=True).start()  # a signal may come while this waits for the thread
        while not done.done():  # or just before a wait, which it would not interrupt
            wait([done], LOOK_S)
        return done.result()
    except KeyboardInterrupt:
        if done.done():
            raise
        typer.echo("stopped; no plan was written", err=True)
        sys.stdout.flush()
        os._exit(STOPPED)  # a normal exit would wait for compiled code on other threads


def summary_line(kind: Kind, plan: Solved) -> str:
    """One line with the objective, its gap to the bound, the method and the time."""
    from fleetune.formatting import number, seconds

    value = seconds(plan.objective) if kind.unit == "s" else f"{number(plan.objective)} {kind.unit}".rstrip()
    reached = f"{kind.objective} {value}{_gap(plan)}, {kind.describe_plan(plan)}, solved in {seconds(plan.solve_s)}"
    if plan.feasible:
        return f"{plan.method}: {reached}"
    return f"x {plan.method}: infeasible: {plan.reason.rstrip('.')}; if it were not: {reached}"


def _gap(plan: Solved) -> str:
    """The distance of the objective from its bound, in words; empty without a bound."""
    from fleetune.formatting import percent

    for name, side in (("lower_bound", "above"), ("upper_bound", "below")):
        bound = getattr(plan, name, None)
        if bound:
            return f" ({percent(abs(plan.objective - bound) / abs(bound)).lstrip('+')} {side} its bound)"
    return ""


def _print_kinds(known: Mapping[str, Kind], as_json: bool) -> None:
    if as_json:
        answer = [{"kind": kind.name, "summary": kind.summary, "methods": kind.methods} for kind in known.values()]
        return typer.echo(json.dumps({"kinds": answer}, indent=1, ensure_ascii=False))
    for kind in known.values():
        methods = kind.methods
        width = max(map(len, methods))
        typer.echo(f"{kind.name}: {kind.summary}")
        for index, (name, line) in enumerate(methods.items()):
            typer.echo(f"  {name:{width}}  {line}{'' if index else ' (default)'}")


def _read_problem(problem: str) -> bytes:
    if problem == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(problem).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Refused(f"{problem}: cannot be read ({why}); give an existing JSON file, or - for stdin") from None


def _writable_path(output: str, problem: str) -> Path:
    """Path of the plan, links resolved; Refused before solving when it cannot be written."""
    if output == STDIN:
        raise Refused("-o -: give a file; --json prints the plan on stdout")
    try:
        path = Path(output).resolve()
        path.is_file()  # the file system refuses names that are too long
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "its symbolic links form a circle"
        raise Refused(f"-o {output}: cannot be written ({why}); give another file") from None
    if path.is_dir():
        raise Refused(f"-o {output}: it is a folder; give a file in it")
    if not path.parent.is_dir():
        raise Refused(f"-o {output}: there is no folder {path.parent}; make it, or give another file")
    if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise Refused(f"-o {output}: cannot be written (Permission denied); give another file")
    if problem != STDIN and path.exists() and Path(problem).exists() and path.samefile(problem):
        raise Refused(f"-o {output}: it is the problem itself; give another file")
    return path


def _write(text: str, path: Path) -> None:
    """Replace the file atomically; write directly to a pipe or /dev/stdout."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    try:
        filesystem.write_durably(text.encode(), path)
    except OSError as error:
        if known := filesystem.disk_error(error, {filesystem.OUTPUT: path}):
            raise known from None
        raise TryAgain(f"-o {path}: cannot be written ({error.strerror}); give another file") from None
