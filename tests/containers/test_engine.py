"""`make engine` and `make engine-stop` on simulated machines of several kinds."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from containers.engine import INSTALL_COMMAND, EnginePaths, check, main, start, stop
from containers.engine_api import EngineInfo
from containers.machine import Machine
from fleetune.errors import Refused, TryAgain

PATHS = EnginePaths(data=Path("data"), runtime=Path("runtime"))
ENGINE = EngineInfo(socket="runtime/docker.sock", version="20.10", cgroup_version="1")


class Fake(Machine):
    """A simulated machine that records what is done to it."""

    def __init__(self, *programs: str, answers: bool = False, root: bool = True) -> None:
        self.programs, self.answers, self.root = set(programs), answers, root
        self.done: list[Sequence[str]] = []
        self.fails: tuple[Sequence[str], ...] = ()
        self.installing_starts_it = self.ends_at_once = False
        self.waited_s = 0.0
        self.running: int | None = None
        self.crashed = False

    def find_engine(self) -> EngineInfo | None:
        """The engine that answers, if `answers` is set."""
        return ENGINE if self.answers else None

    def is_root(self) -> bool:
        """As set by the test."""
        return self.root

    def has(self, program: str) -> bool:
        """True for a program that was given, or installed since."""
        return program in self.programs

    def call(self, *command: str) -> int:
        """Record the command; fails for those in `fails`."""
        self.done.append(command)
        self.answers |= self.installing_starts_it and command == INSTALL_COMMAND
        return 1 if command in self.fails else 0

    def spawn(self, command: Sequence[str], log: Path) -> Callable[[], int | None]:
        """Record the command; the engine then answers, unless it ends at once or a stale pid file is in its way."""
        self.done.append(command)
        self.ends_at_once |= self.crashed
        self.answers = not self.ends_at_once
        return lambda: 1 if self.ends_at_once else None

    def running_process(self, pid_file: Path, expected: str) -> int | None:
        """As set by the test."""
        return self.running

    def remove(self, file: Path) -> bool:
        """Remove the stale pid file of a crashed engine."""
        was, self.crashed = self.crashed, False
        return was

    def terminate(self, pid: int, timeout_s: float) -> bool:
        """Record the signal; the process ends."""
        self.done.append(("terminate", str(pid)))
        return True

    def sleep(self, seconds: float) -> None:
        """Count the time without waiting; a running engine answers after a second."""
        self.waited_s += seconds
        self.answers |= self.running is not None and self.waited_s > 1


def test_an_engine_that_answers_is_left_alone() -> None:
    """`start` does nothing where an engine answers, also without root and when called twice."""
    machine = Fake("dockerd", root=False, answers=True)
    for _ in range(2):
        assert list(start(machine, PATHS)) == [f"{ENGINE.summary}; nothing was done"]
    assert machine.done == []


def test_installs_and_starts() -> None:
    """`start` installs Debian's engine, starts it in folders of its own, and says how to reach it."""
    machine = Fake("apt-get")
    told = " ".join(start(machine, PATHS))
    assert machine.done[:2] == [("apt-get", "update", "--quiet"), INSTALL_COMMAND]
    assert machine.done[-1] == PATHS.command()
    assert {"--data-root", "data", "unix://runtime/docker.sock"} <= set(PATHS.command())
    assert "docker.io" in told and "engine 20.10 answers at runtime/docker.sock, limits by cgroup v1" in told
    assert "export DOCKER_HOST=unix://runtime/docker.sock" in told
    done = len(machine.done)
    list(start(machine, PATHS))
    assert len(machine.done) == done


def test_installed_engine_is_started() -> None:
    """`start` installs nothing where an engine is installed but does not run."""
    machine = Fake("dockerd")
    list(start(machine, PATHS))
    assert INSTALL_COMMAND not in machine.done and PATHS.command() in machine.done


def test_service_of_the_package() -> None:
    """No second engine is started where the package starts a service."""
    machine = Fake("apt-get")
    machine.installing_starts_it = True
    assert "which make engine-stop leaves alone" in list(start(machine, PATHS))[-1]
    assert PATHS.command() not in machine.done


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Fake("apt-get", root=False), "sudo make engine"),
        (Fake(), "no Debian machine"),
    ],
    ids=["not root", "not Debian"],
)
def test_machines_that_cannot_start_an_engine(machine: Fake, words: str) -> None:
    """Without root or Debian's packages `start` refuses, says what to do, and changes nothing."""
    with pytest.raises(Refused, match=words):
        list(start(machine, PATHS))
    assert machine.done == []


def test_failed_installation() -> None:
    """A failed installation is reported with its exit code, and no engine is started."""
    machine = Fake("apt-get")
    machine.fails = (INSTALL_COMMAND,)
    with pytest.raises(TryAgain, match="exit code 1"):
        list(start(machine, PATHS))
    assert PATHS.command() not in machine.done


def test_engine_that_ends() -> None:
    """An engine that ends while it starts is reported at once, with the path of its log."""
    machine = Fake("dockerd")
    machine.ends_at_once = True
    with pytest.raises(TryAgain, match="exit code 1 as it started; data/log says why"):
        list(start(machine, PATHS))
    assert machine.waited_s == 0


def test_a_crashed_engine_is_started_again() -> None:
    """Stale files of a crashed engine are removed and reported, so that the next engine starts."""
    machine = Fake("dockerd")
    machine.crashed = True
    told = list(start(machine, PATHS))
    assert "has crashed: starting it again" in told[0]
    assert machine.done == [PATHS.command()] and machine.answers


def test_a_slow_engine_is_waited_for() -> None:
    """`start` waits for an engine that runs but does not answer yet, instead of starting a second one."""
    machine = Fake("dockerd")
    machine.running = 7
    told = list(start(machine, PATHS))
    assert "(process 7) gives no answer yet" in told[0] and "answers at" in told[1]
    assert machine.done == []


def test_stale_pid_files_are_removed(tmp_path: Path) -> None:
    """`remove` tells whether a pid file was there; the id of another process is no running engine."""
    machine = Machine()
    place = tmp_path / "pid"
    place.write_text(str(os.getpid()))
    assert machine.running_process(place, str(tmp_path)) is None
    assert machine.remove(place) and not place.exists()
    assert not machine.remove(place)


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    """`check` reports an engine without starting one, and an unknown command is refused."""
    machine = Fake("dockerd", answers=True)
    assert list(check(machine, PATHS)) == [ENGINE.summary]
    with pytest.raises(TryAgain, match="make engine starts one"):
        list(check(Fake("dockerd"), PATHS))
    assert machine.done == []
    assert main(["begin"]) == 64 and "start|stop|check" in capsys.readouterr().err


def test_stop() -> None:
    """`stop` ends only the engine that `start` started."""
    machine = Fake("dockerd", answers=True)
    assert "nothing was done" in list(stop(machine, PATHS))[0]
    assert machine.done == []
    machine.running = 7
    assert "process 7) has ended" in list(stop(machine, PATHS))[0]
    assert machine.done == [("terminate", "7")]


def test_a_reused_process_id_is_no_engine(tmp_path: Path) -> None:
    """A process counts as the engine only if its command line names the engine's folder."""
    (tmp_path / "pid").write_text(str(os.getpid()))
    own = Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0")[0]  # xdist gives its workers titles
    assert Machine().running_process(tmp_path / "pid", own) == os.getpid()
    assert Machine().running_process(tmp_path / "pid", str(tmp_path)) is None
    assert Machine().running_process(tmp_path / "none", "python") is None
