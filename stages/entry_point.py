"""Start and end of a stage process.

stdout carries JSON lines only: `{"event": "progress", "what", "done", "total", "unit", "detail"}`,
`{"event": "note", "text"}`, `{"event": "resumed", "text"}`, and as the last line of a failure
`{"event": "error", "message"}`. Everything else a library may print goes to stderr, which is the log. Exit codes:
0 done, 64 refused, 65 infeasible, 75 try again.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import psutil

from fleetune import filesystem
from fleetune.contracts import json_io
from fleetune.contracts.record import record
from fleetune.contracts.task import OUTLIVES_STAGE, StageTask
from fleetune.errors import FleetuneError, Refused, TryAgain

END_CHILDREN_S = 2.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Channel:
    """The stdout of the stage: one JSON object per line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Any) -> None:
        """Write one event."""
        line = json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n"
        line = line.encode("utf-8", "backslashreplace").decode()  # a path whose bytes are not UTF-8
        with self._lock:
            self._stream.write(line)
            self._stream.flush()

    def progress(self, what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        """Report progress to the process that started this one."""
        more = {"detail": detail} if detail else {}
        self.say("progress", what=what, done=done, total=total, unit=unit, **more)

    def resumed(self, text: str) -> None:
        """Report the work of an earlier attempt that is continued; it is shown with the reason why the stage runs."""
        self.say("resumed", text=text)

    def note(self, text: str) -> None:
        """Report a sentence for people who watch the run."""
        self.say("note", text=text)


class _Terminated(BaseException):
    """SIGTERM or Ctrl-C as an exception in the main thread, so that open resources are closed."""


class Termination:
    """The request that this process should end: SIGTERM or Ctrl-C. Only the first one counts."""

    def __init__(self) -> None:
        self._deferred = False
        self._asked = False

    @property
    def asked(self) -> bool:
        """True once somebody has asked for the end."""
        return self._asked

    def watch(self) -> None:
        """Handle the signals from now on."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """A context that a request does not interrupt: it only sets `asked`, and takes effect when the context ends."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self._asked:
            raise _Terminated

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ignore_signals()
        self._asked = True
        if not self._deferred:
            raise _Terminated


def ignore_signals() -> None:
    """Ignore further requests to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@record
class StageContext:
    """The context of a stage: its task, its folders, its output channel, and the request that it should end."""

    task: StageTask
    channel: Channel
    termination: Termination = field(default_factory=Termination)

    def input(self, kind: str) -> Path:
        """Read-only folder of an input."""
        try:
            return Path(self.task.inputs[kind])
        except KeyError:
            given = ", ".join(self.task.inputs) or "none"
            raise Refused(f"task: {self.task.stage} needs input {kind}; given are {given}") from None

    def output(self, kind: str) -> Path:
        """Folder for an output, created on demand."""
        folder = Path(self.task.output) / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def outputs(self) -> Path:
        """Folder that receives a folder for each kind of output."""
        return Path(self.task.output)

    @property
    def earlier(self) -> tuple[Path, ...]:
        """Work folders of unfinished attempts with other inputs."""
        return tuple(map(Path, self.task.earlier))

    @property
    def work(self) -> Path:
        """Folder that outlives an interrupted attempt."""
        return Path(self.task.work)


def main(stage: Callable[[StageContext], None], arguments: Sequence[str] | None = None) -> None:
    """Run a stage as this process and end with its exit code."""
    channel = Channel(_own_stdout())
    termination = Termination()
    termination.watch()
    code = 0
    used = filesystem.folders()
    try:
        task = _read_task(arguments)
        used = filesystem.folders(task.work)
        stage(StageContext(task=task, channel=channel, termination=termination))
    except FleetuneError as error:
        code = _report_error(channel, error)
    except _Terminated:
        code = _report_error(channel, TryAgain("the stage was told to end before it was done; run it again to go on"))
    except Exception as error:
        with contextlib.suppress(OSError):  # the log may lie on a full disk
            traceback.print_exc()
        unforeseen = TryAgain(f"the stage failed unexpectedly ({_short(error)}); its log has the traceback")
        code = _report_error(channel, filesystem.disk_error(error, used) or unforeseen)
    finally:
        ignore_signals()
        _end_children()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)  # threads of a failed stage must not keep the process alive


def _read_task(arguments: Sequence[str] | None) -> StageTask:
    """The task named on the command line; usage errors are Refused."""
    parser = argparse.ArgumentParser(prog="python -m stages.NAME", exit_on_error=False)
    parser.add_argument("--task", type=Path, required=True, help="JSON file of a StageTask")
    try:
        found, unknown = parser.parse_known_args(arguments)
    except (argparse.ArgumentError, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            raise  # --help
        raise Refused("usage: python -m stages.NAME --task task.json") from None
    if unknown:
        raise Refused(f"argument {unknown[0]!r} is unknown; usage: python -m stages.NAME --task task.json")
    return json_io.read(StageTask, found.task)


def _own_stdout() -> TextIO:
    """Return a private copy of stdout and redirect file descriptor 1 to the log, for libraries that print."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _report_error(channel: Channel, error: FleetuneError) -> int:
    channel.say("error", message=" ".join(str(error).split()))
    return error.exit_code


def _short(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else text[:197] + "..."


def _end_children() -> None:
    """Stop every child process that the stage left running."""
    children = [each for each in psutil.Process().children(recursive=True) if not outlives_stage(each)]
    for child in children:
        _signal(child, signal.SIGTERM)
    left = psutil.wait_procs(children, timeout=END_CHILDREN_S)[1]
    for child in left:
        _signal(child, signal.SIGKILL)
    psutil.wait_procs(left, timeout=END_CHILDREN_S)


def outlives_stage(process: psutil.Process) -> bool:
    """True for a reaper, which ends by itself once it has removed what this process left on engines."""
    try:
        return OUTLIVES_STAGE in process.cmdline()
    except psutil.Error:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
