"""A chain's round beside the code from before programs of steps: both train at the same time, by slices of time."""

import itertools
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from benchmarks.report import Figure

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("chain_driver.py")
ADDED = "fleetune/program/lower.py"
"""The file whose first commit made workers obey programs of steps; the code before it is its parent."""
TARGET = 0.99
NAME = "chain_speed_beside_code_before_programs"
NOISE = "chain_speed_beside_itself"
WARM_UP = 3
"""Rounds before the first slice."""
SLICE_S = 0.2
BLOCK = 10
"""Rounds, of which a ratio is taken."""
SEED = 1


class NoHistory(Exception):
    """The code before cannot be had here."""


class ChainTraining:
    """A training of the chain with the code of one folder, which stands still but for its slices of time."""

    def __init__(self, code: Path, work: Path, rounds: int, driver: Path = DRIVER) -> None:
        work.mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(driver), str(work), str(rounds)],
            env={**os.environ, "PYTHONPATH": str(code)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self.processes: list[psutil.Process] = []
        """Its own and those that it started, once it has begun."""
        self.ran_s = 0.0
        """Seconds of its slices so far."""
        self.commits_s: list[float] = []
        """When each round was committed, in seconds of its own slices."""

    def prepare(self) -> None:
        """Wait until it has model, data and profile."""
        self._read_line()

    def begin(self) -> None:
        """Train the first rounds, which nothing is compared of; then stand still."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for _ in range(WARM_UP):
            self._read_line()
        self.processes = self._all()
        self._stand_still()

    def go_on(self, slice_s: float) -> None:
        """Train for so many seconds, from where the last slice ended."""
        started_s = time.perf_counter()
        for process in self.processes:
            process.resume()
        while (left_s := started_s + slice_s - time.perf_counter()) > 0:
            if select.select([self._lines], [], [], left_s)[0]:
                self._read_line()
                self.commits_s.append(self.ran_s + time.perf_counter() - started_s)
        self._stand_still()
        self.ran_s += time.perf_counter() - started_s

    def blocks_s(self, blocks: int) -> list[float]:
        """Seconds of each block of BLOCK rounds."""
        ends_s = self.commits_s[: blocks * BLOCK + 1 : BLOCK]
        return [end_s - start_s for start_s, end_s in itertools.pairwise(ends_s)]

    def close(self) -> None:
        """Kill the training, with all its processes: nothing of it is needed any more."""
        with self._process:
            for process in self._all():
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def _all(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self._process.pid)
            return [driver, *driver.children(recursive=True)]
        return []

    def _stand_still(self) -> None:
        for process in self.processes:
            process.suspend()

    def _read_line(self) -> None:
        if not self._lines.readline():
            raise RuntimeError(f"{DRIVER.name} ended with code {self._process.wait()}; its stderr says why")


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


def chain_figures(folder: Path, blocks: int, report_progress: Callable[[str], None]) -> list[Figure]:
    """Train a chain with the code before, with this one and with this one again; compare their seconds for a round.

    All three train at the same time, by short slices in random order, so that a machine whose pace changes from second
    to second gives them the same pace; what this code's two trainings differ by is the noise. (Trainings one after the
    other differed by 10 % a pair here, medians of 16 pairs by 3 %.)
    """
    try:
        commit = code_before(folder / "before")
    except NoHistory as error:
        return [Figure(name=NAME, value=None, unit="x", target=TARGET, better="higher", why=str(error))]
    with ExitStack() as stack:
        trainings = []
        for name, code in (("before", folder / "before"), ("now", ROOT), ("again", ROOT)):
            report_progress(f"chain: profiling with the code {name}")
            # the fastest one goes on until the slowest has done its rounds
            trainings.append(ChainTraining(code, folder / f"work-{name}", 3 * blocks * BLOCK))
            stack.callback(trainings[-1].close)
            trainings[-1].prepare()
        report_progress(f"chain: {blocks * BLOCK} rounds of each in slices of {SLICE_S} s")
        train_by_turns(trainings, blocks)
    before, now, again = (training.blocks_s(blocks) for training in trainings)
    about = f"seconds of a round with the code of {commit[:7]} over this code's"
    return [
        _ratio(NAME, before, now, about, TARGET),
        _ratio(NOISE, again, now, "the same between two trainings with this code: the noise", None),
    ]


def train_by_turns(trainings: Sequence[ChainTraining], blocks: int) -> None:
    """Train until all have done these blocks of rounds."""
    generator = random.Random(SEED)
    for training in trainings:
        training.begin()
    while any(len(training.commits_s) <= blocks * BLOCK for training in trainings):
        for training in generator.sample(trainings, len(trainings)):
            training.go_on(SLICE_S)


def _ratio(name: str, over: Sequence[float], under: Sequence[float], about: str, target: float | None) -> Figure:
    ratios = [one_s / other_s for one_s, other_s in zip(over, under, strict=True)]
    return Figure(
        name=name,
        value=sum(over) / sum(under),
        spread=(min(ratios), max(ratios)),
        unit="x",
        target=target,
        better="higher",
        about=f"{about}, {len(ratios)} blocks of {BLOCK} rounds",
    )


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoHistory("there is no git here; install it, and run this in a clone with its whole history") from None
    if done.returncode:
        raise NoHistory(f"git {arguments[0]}: {done.stderr.strip()}; run this in a clone with its whole history")
    return done.stdout
