"""The interface of launchers: a `Launcher` starts a `Command` and returns a `Job`."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import IO, Protocol

from fleetune.contracts.record import record
from fleetune.errors import TryAgain
from fleetune.filesystem import open_for_writing
from fleetune.formatting import gigabytes

OUT_OF_MEMORY_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)

MALLOC_ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment of processes that compute: glibc keeps freed memory and reuses it. Otherwise every large tensor comes as
fresh pages from the kernel: the backward of an embedding of 12 million parameters then takes 26 ms instead of 7, but
not every time, so that no profile holds."""

MODEL_MODULES = (
    "torch",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "peft",
    "pydantic",
    "zmq",
)
"""Modules of commands that compute with a model, for `Command.preloads`; their import takes 3.7 s of processor time.
Modules of this project that are named here would count in the keys of all stages."""

SILENT_CODE = -100
"""Exit code of a command that showed no sign of life and was ended (`fleetune.launching.life_watch`); no signal has
that number."""
AFTER_KILL_S = 10.0
"""A silent command ends so soon after it was killed, or is given up: nothing kills what waits for a disk that does not
answer, and nothing reaches an engine that is gone."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

SPIN_COUNT = 10_000
"""Polls for work by an idle OpenMP thread before it sleeps. OpenMP's default of 300,000 made a round on a busy machine
up to ten times as long (a spinning thread keeps the core from the thread it waits for); 0 costs an idle machine a
quarter of the gain. On 2 cores, MiniLM, speed relative to one thread: idle 1.68 (300,000), 1.65 (10,000), 1.29 (0);
beside one other process on the same cores 0.2-0.55, 0.63, 0.90."""


AFTER_OUTPUT_S = 60.0
"""A command ends right after its output, unless the connection to its engine is lost."""


def thread_environment(threads: int) -> dict[str, str]:
    """Environment of a process that computes with `threads` threads; libraries read it when they are imported."""
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "GOMP_SPINCOUNT": str(SPIN_COUNT)}


def _never() -> bool:
    return False


@record
class Command:
    """`python -m module arguments`, with `environment` added to what the launcher gives every child."""

    module: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    preloads: tuple[str, ...] = ()
    """Modules that it needs, which a launcher of processes imports once for several of them."""
    forks: bool = False
    """True if it starts commands that preload the same modules."""
    warms_up: tuple[str, ...] = ()
    """Module and arguments: its function `warm_up` is called with these where the commands that it starts are forked
    from, so that they find what it keeps."""
    given_up: Callable[[], bool] = field(default=_never, repr=False, compare=False)
    """True once it is to be stopped, maybe before it was started; asked while `preloads` are imported, which takes
    seconds."""
    first_line: bytes = field(default=b"", repr=False)
    """Written to stdin, which is then closed; carries secrets."""
    watched: bool = True
    """False if whoever starts it hears its signs of life itself, and gives it up by these."""
    log: Path
    """File that stderr is appended to."""
    reads: tuple[Path, ...] = ()
    """Folders that it reads; a container sees these, under the same names, and no others."""
    live_reads: tuple[Path, ...] = ()
    """Folders of this machine that it reads as they are then; where its engine is elsewhere, it does not see them."""
    writes: tuple[Path, ...] = ()
    """Folders that it may write to, and so may change at any moment: this process reads and writes nothing there, but
    takes files out (`fleetune.exposed_folders`)."""
    device_reads: tuple[Path, ...] = ()
    """Files and folders of the device's own machine; they are never copied from or to this one."""
    device_writes: tuple[Path, ...] = ()
    """Folders of the device's own, which later commands of its session find as they were left; `Job.collect` never
    fetches them."""

    def __post_init__(self) -> None:
        for folder in (*self.writes, *self.device_writes):
            if self.log.is_relative_to(folder):  # a container could put a link in its place
                raise ValueError(f"log {self.log} lies in {folder}, which the command may write")


def open_log(path: Path) -> IO[bytes]:
    """Open a log to append to it. Refused where a link is in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(open_for_writing(path, os.O_WRONLY | os.O_APPEND, 0o666), "ab")


class Job(Protocol):
    """A started command."""

    @property
    def pid(self) -> int:
        """Process id on the machine where the command runs."""

    def lines(self) -> Iterator[str]:
        """Lines of stdout as they come, without line ends, until stdout ends. For one reader."""

    def poll(self) -> int | None:
        """Exit code (minus the signal's number when a signal ended it, SILENT_CODE when it was ended as it showed no
        sign of life); None while it runs."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit code; None when it still runs after `timeout_s`."""

    def stop(self, grace_s: float = 2.0) -> int:
        """Send SIGTERM to it and all it started, SIGKILL after `grace_s`; returns the exit code. Safe to repeat."""

    def tail(self, lines: int = 10) -> str:
        """The last lines of its log."""

    def limit_cpu(self) -> None:
        """Apply the device's CPU quota from now on; until then start-up may use idle cores."""

    def collect(self, folder: Path, into: Path) -> None:
        """Copy what the command wrote to one of its folders into one of this machine, unless it is there already."""

    @property
    def out_of_memory(self) -> bool:
        """True if it is known to have ended for lack of memory."""

    @property
    def used_bytes(self) -> int | None:
        """Peak memory seen; None where nothing measures it."""

    def memory_share(self) -> float | None:
        """Share of its memory limit that is in use now and cannot be reclaimed; None where nothing tells. It may take
        as long as an engine takes to answer."""


class Launcher(Protocol):
    """Starts commands in one place."""

    def start(self, command: Command) -> Job:
        """Start a command; TryAgain when the place cannot."""


def describe_used_memory(job: Job) -> str:
    """Peak memory of a job that ran out of memory, as the end of a clause; empty where it is not known."""
    return f" ({gigabytes(job.used_bytes)} used)" if job.used_bytes else ""


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code == 0:
        return "ended normally"
    if code == SILENT_CODE:
        return (
            "showed no sign of life and was ended (it was stopped or paused, or its machine sleeps or is out of reach)"
        )
    number = -code if code < 0 else code - 128
    if code in OUT_OF_MEMORY_CODES:
        return "killed by signal 9 (often the system's answer when memory runs out)"
    if code < 0 or 128 < code < 160:
        try:
            return f"killed by signal {number} ({signal.Signals(number).name})"
        except ValueError:
            pass
    return f"ended with exit code {code}"


def exit_code_after_output(job: Job, what: str) -> int:
    """Return the exit code of a command whose output has ended.

    TryAgain if it does not come: then the output has ended because the connection to its engine is gone.
    """
    code = job.wait(AFTER_OUTPUT_S)
    if code is None:
        raise TryAgain(
            f"{what}: its output has ended, and for {AFTER_OUTPUT_S:.0f} s nothing tells whether it has, too; see that "
            "its machine is on, and that the engine there answers, and run it again"
        )
    return code
