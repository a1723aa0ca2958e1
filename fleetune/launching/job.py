"""What can be started, and what can be done with it once it runs."""

import signal
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Protocol

from fleetune.contracts.record import record

OUT_OF_MEMORY_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)


KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment of what computes: memory once had is kept and used again. Else every large tensor comes as fresh pages
from the kernel: the backward of an embedding of 12 million parameters takes 26 ms instead of 7, and now and then not,
so that no profile holds."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


SPINS = 10_000
"""How often a thread looks for the next work before it sleeps. OpenMP's own 300,000 cost a busy machine up to ten times
the round of one thread (who spins keeps the core from whom it waits for); none cost an idle one a quarter of its gain.
On 2 cores, MiniLM, times one thread: idle 1.68 (300,000), 1.65 (10,000), 1.29 (0); beside one other process on the same
cores 0.2-0.55, 0.63, 0.90."""


def thread_environment(threads: int) -> dict[str, str]:
    """Environment of a process that computes with so many threads: its libraries read it when they are imported."""
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "GOMP_SPINCOUNT": str(SPINS)}


@record
class Command:
    """`python -m module arguments`, with its environment added to what the launcher gives every child."""

    module: str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    first_line: bytes = field(default=b"", repr=False)
    """Written to stdin, which is then closed: the place for secrets."""
    log: Path
    """File that stderr is appended to."""
    reads: tuple[Path, ...] = ()
    """Folders that it reads; a container sees these, under the same names, and no others."""
    writes: tuple[Path, ...] = ()
    """Folders that it may write to."""


class Job(Protocol):
    """A started command."""

    @property
    def pid(self) -> int:
        """Its process id on the machine where it runs."""

    def lines(self) -> Iterator[str]:
        """The lines of its stdout as they come, without line ends; ends when stdout does. For one reader."""

    def poll(self) -> int | None:
        """Its exit code (minus the signal's number when a signal ended it); None while it runs."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code; None when it still runs after `timeout_s`."""

    def stop(self, grace_s: float = 2.0) -> int:
        """Ask it and all it started to end, force them after `grace_s`; its exit code. Safe to repeat."""

    def tail(self, lines: int = 10) -> str:
        """The last lines of its log."""

    def hold(self) -> None:
        """From now on its device's share of processor time binds it; until then starting up may take what is free."""

    def collect(self, folder: Path) -> None:
        """Make what it has written to one of its folders be there on this machine too."""

    @property
    def out_of_memory(self) -> bool:
        """Whether it is known to have ended because its memory did not suffice."""

    @property
    def used_bytes(self) -> int | None:
        """Most memory that it was seen to hold; None where nobody looked."""


class Launcher(Protocol):
    """A place where commands can run."""

    def start(self, command: Command) -> Job:
        """Start a command; TryAgain when the place cannot."""


def used_in_words(job: Job) -> str:
    """What a job that ran out of memory had used, as the end of a clause; empty where it is not known."""
    return f" ({job.used_bytes / 1e9:.2f} GB used)" if job.used_bytes else ""


def exit_in_words(code: int) -> str:
    """An exit code as a person would say it."""
    if code == 0:
        return "ended normally"
    number = -code if code < 0 else code - 128
    if code in OUT_OF_MEMORY_CODES:
        return "killed by signal 9 (often the system's answer when memory runs out)"
    if code < 0 or 128 < code < 160:
        try:
            return f"killed by signal {number} ({signal.Signals(number).name})"
        except ValueError:
            pass
    return f"ended with exit code {code}"
