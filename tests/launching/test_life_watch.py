"""What freezes is found and ended, and nothing else is."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fleetune.launching import Command, Job, ProcessLauncher, describe_exit
from fleetune.launching.child import processor_time_ns
from fleetune.launching.job import SILENT_CODE
from fleetune.launching.life_watch import LIMIT, LifeWatch, Silence
from tests.support.launching.freezing import WORDS, watch_of
from tests.support.monitoring.hand_clock import HandClock

CAREFUL = watch_of(floor_s=1.0, ceiling_s=1.5)
PATIENCE_S = 30.0
ALIVE = "print('up', flush=True); import signal; signal.pause()"
COMPUTES = "import itertools\nprint('up', flush=True)\nwhile True: sum(itertools.repeat(1, 1 << 30))"
"""Each sum takes seconds, in which no other thread of Python runs."""
STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


def silent_after_s(signs: Callable[[int], object], until_s: int = 1000, every_s: float = 1.0) -> float | None:
    """Seconds after which a process is silent that shows these signs (second -> sign); None if it never is."""
    clock = HandClock()
    silence = Silence(LIMIT, clock)
    while clock.now_s < until_s:
        if silence.look({"p": signs(int(clock.now_s))}):
            return clock.now_s
        clock.sleep(every_s)
    return None


def test_a_process_without_a_sign_is_silent_after_the_limit() -> None:
    """A minute once its own rhythm is known, two before; one that shows signs, or of which nothing tells, never."""
    assert silent_after_s(lambda second: min(second, 100)) == 161.0
    assert silent_after_s(lambda second: 0) == 121.0
    assert silent_after_s(lambda second: second) is None
    assert silent_after_s(lambda second: None) is None


def test_the_limit_stretches_with_the_gaps_that_load_makes() -> None:
    """Signs that come every 30 s, as on a machine without memory: their end is told after three such gaps."""
    assert silent_after_s(lambda second: min(second, 390) // 30) == 481.0


@pytest.mark.parametrize("gap_s", [500.0, 50_000.0], ids=["minutes", "a night"])
def test_who_did_not_look_accuses_nobody(gap_s: float) -> None:
    """Whoever watches was itself frozen, and with it what it watches, as a machine that was put to sleep: the silence
    meanwhile counts for a quarter of the limit, so that what shows a sign soon after goes on."""
    clock = HandClock()
    silence = Silence(LIMIT, clock)
    for second in range(20):
        assert not silence.look({"p": second})
        clock.sleep(1.0)
    clock.sleep(gap_s)
    for second in range(40):
        assert not silence.look({"p": 20 + second // 40})
        clock.sleep(1.0)


def test_each_process_has_its_own_silence() -> None:
    """One of two stops; after it has ended, another that begins under its name is not taken for it."""
    clock = HandClock()
    silence = Silence(LIMIT, clock)
    found = []
    for second in range(90):
        clock.sleep(1.0)
        found += silence.look({"lives": second, "stops": min(second, 10)})
    assert set(found) == {"stops"}
    assert silence.look({"lives": 90}) == ()
    assert silence.look({"lives": 91, "stops": 10}) == ()


def test_a_watch_ends_with_what_it_watches() -> None:
    """A process that ends in its time is ended by nobody."""
    clock = HandClock()

    def over(seconds: float) -> bool:
        clock.sleep(seconds)
        return clock.now_s > 100.0

    watch = LifeWatch(limit=LIMIT, clock=clock)
    assert not watch.wait(lambda: 0, over)
    clock.now_s = -300.0
    assert watch.wait(lambda: 0, over), "it is silent before it would be over"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    """Start scripts as modules; ends those that still run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    jobs: list[Job] = []

    def start_script(source: str, watch: LifeWatch = CAREFUL, **more: object) -> Job:
        name = f"script_{len(jobs)}"
        (tmp_path / f"{name}.py").write_text(source)
        command = replace(Command(module=name, log=tmp_path / f"{name}.log"), **more)  # type: ignore[arg-type]
        jobs.append(ProcessLauncher(watch=watch).start(command))
        return jobs[-1]

    yield start_script
    for job in jobs:
        job.stop(0)


@pytest.mark.parametrize("preloads", [(), ("colorsys",)], ids=["spawned", "forked"])
def test_a_process_that_was_stopped_is_ended(start: Callable[..., Job], preloads: tuple[str, ...]) -> None:
    """SIGSTOP of a child, however it was started: its output ends, and its code says why, in words that do not put it
    down to its memory."""
    frozen = start(STOPS, preloads=preloads)
    assert list(frozen.lines()) == []
    assert frozen.wait(PATIENCE_S) == SILENT_CODE
    assert WORDS in describe_exit(SILENT_CODE) and "memory" not in describe_exit(SILENT_CODE)


def test_what_waits_or_computes_lives(start: Callable[..., Job]) -> None:
    """A process that waits for something, one whose computation lets no other thread run, and one whose starter listens
    to it itself outlast a frozen one."""
    heard = start(STOPS, watched=False)
    living = [start(source) for source in (ALIVE, COMPUTES)]
    assert [next(job.lines()) for job in living] == ["up", "up"]
    assert start(STOPS).wait(PATIENCE_S) == SILENT_CODE
    assert [job.poll() for job in (*living, heard)] == [None] * 3


def test_a_fork_server_that_was_stopped_is_ended(start: Callable[..., Job]) -> None:
    """Nobody would hear of the ends of its children, nor could have new ones: they end with it, and the next child is
    forked by another."""
    preloads = ("stringprep",)
    child = start(ALIVE, preloads=preloads)
    assert next(child.lines()) == "up"
    server = psutil.Process(child.pid).parent()
    assert server is not None
    server.suspend()
    assert list(child.lines()) == [] and child.wait(PATIENCE_S) == SILENT_CODE
    assert list(start("print('again')", preloads=preloads).lines()) == ["again"]
    assert not server.is_running()


def test_processor_time_is_that_of_another_process(start: Callable[..., Job]) -> None:
    """It grows while the process computes, and none is told of one that has ended."""
    job = start(COMPUTES)
    assert next(job.lines()) == "up"
    used = [processor_time_ns(job.pid)]
    while used[-1] == used[0]:
        used.append(processor_time_ns(job.pid))
    assert used[0] is not None and used[-1] is not None and used[-1] > used[0]
    job.stop(0)
    assert processor_time_ns(job.pid) is None
