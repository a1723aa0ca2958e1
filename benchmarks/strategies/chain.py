"""A chain's round beside the code from before programs of steps: both trained in turns, in one session."""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.report import Figure

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("chain_driver.py")
ADDED = "fleetune/program/lower.py"
"""The file whose first commit made workers obey programs of steps; the code before it is its parent."""
TARGET = 0.99
NAME = "chain_speed_beside_code_before_programs"


class NoHistory(Exception):
    """The code before cannot be had here."""


class ChainDriver:
    """A process that trains the chain with the code of one folder."""

    def __init__(self, code: Path, work: Path) -> None:
        work.mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(DRIVER), str(work)],
            env={**os.environ, "PYTHONPATH": str(code)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> None:
        """Wait until it has prepared model and data."""
        self._answer()

    def round_s(self, rounds: int) -> float:
        """Train so many rounds; return the median seconds of one."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rounds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{DRIVER.name} ended with code {self._process.wait()}; its stderr says why")
        return line.strip()


def code_before(folder: Path, root: Path = ROOT) -> str:
    """Extract the code before programs of steps into a folder; return its commit. NoHistory: git has none here."""
    listed = _git(root, "log", "--diff-filter=A", "--format=%H", "--", ADDED).split()
    if not listed:
        raise NoHistory(f"git knows no commit that added {ADDED}; run this in a clone with its whole history")
    commit = _git(root, "rev-parse", f"{listed[-1]}^").strip()
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    _git(root, "archive", "--output", str(archive), commit)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return commit


def chain_figure(folder: Path, pairs: int, rounds: int, report_progress: Callable[[str], None]) -> Figure:
    """Train a chain with the code before and with this one, in turns; return old seconds over new seconds."""
    try:
        commit = code_before(folder / "before")
    except NoHistory as error:
        return Figure(name=NAME, value=None, unit="x", target=TARGET, better="higher", why=str(error))
    ratios: list[float] = []
    with ExitStack() as stack:
        drivers = []
        for name, code in (("before", folder / "before"), ("now", ROOT)):
            report_progress(f"chain: profiling with the code {name}")
            driver = ChainDriver(code, folder / f"work-{name}")
            stack.callback(driver.close)
            driver.ready()
            drivers.append(driver)
        for pair in range(pairs):
            report_progress(f"chain: pair {pair + 1} of {pairs}")
            turns = drivers if pair % 2 == 0 else drivers[::-1]
            taken = {driver: driver.round_s(rounds) for driver in turns}
            ratios.append(taken[drivers[0]] / taken[drivers[1]])
    return Figure(
        name=NAME,
        value=statistics.median(ratios),
        unit="x",
        target=TARGET,
        better="higher",
        spread=(min(ratios), max(ratios)),
        about=f"seconds of a round with the code of {commit[:7]} over this code's, {pairs} pairs of {rounds} rounds",
    )


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoHistory("there is no git here; install it, and run this in a clone with its whole history") from None
    if done.returncode:
        raise NoHistory(f"git {arguments[0]}: {done.stderr.strip()}; run this in a clone with its whole history")
    return done.stdout
