"""What `make engine` and `make engine-stop` do on machines of several kinds, none of them this one."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from containers.answers import Answer
from containers.engine import INSTALL, Places, check, main, start, stop
from containers.machine import Machine
from fleetune.errors import Refused, TryAgain

PLACES = Places(data=Path("data"), runtime=Path("runtime"))
ANSWER = Answer(socket="runtime/docker.sock", version="20.10", cgroups="1")


class Fake(Machine):
    """A machine in memory, which notes what is done to it."""

    def __init__(self, *programs: str, answers: bool = False, root: bool = True) -> None:
        self.programs, self.answers, self.root = set(programs), answers, root
        self.done: list[Sequence[str]] = []
        self.fails: tuple[Sequence[str], ...] = ()
        self.installing_starts_it = self.ends_at_once = False
        self.waited_s = 0.0
        self.running: int | None = None
        self.crashed = False

    def answer(self) -> Answer | None:
        """As if asked over the socket."""
        return ANSWER if self.answers else None

    def is_root(self) -> bool:
        """As told."""
        return self.root

    def has(self, program: str) -> bool:
        """As told, or as installed since."""
        return program in self.programs

    def call(self, *command: str) -> int:
        """Notes it; fails as told."""
        self.done.append(command)
        self.answers |= self.installing_starts_it and command == INSTALL
        return 1 if command in self.fails else 0

    def spawn(self, command: Sequence[str], log: Path) -> Callable[[], int | None]:
        """Notes it; the engine answers, unless told that it ends at once, or that a number was left in its way."""
        self.done.append(command)
        self.ends_at_once |= self.crashed
        self.answers = not self.ends_at_once
        return lambda: 1 if self.ends_at_once else None

    def process(self, pid_file: Path, must_say: str) -> int | None:
        """As told."""
        return self.running

    def forget(self, file: Path) -> bool:
        """As told."""
        was, self.crashed = self.crashed, False
        return was

    def end(self, pid: int, patience_s: float) -> bool:
        """It ends."""
        self.done.append(("end", str(pid)))
        return True

    def wait(self, seconds: float) -> None:
        """No time passes; an engine that runs is slow to answer."""
        self.waited_s += seconds
        self.answers |= self.running is not None and self.waited_s > 1


def test_an_engine_that_answers_is_left_alone() -> None:
    """Where an engine answers, nothing is done, also without root and when asked twice."""
    machine = Fake("dockerd", root=False, answers=True)
    for _ in range(2):
        assert list(start(machine, PLACES)) == [f"{ANSWER.words}; nothing was done"]
    assert machine.done == []


def test_installs_and_starts() -> None:
    """On a Debian machine without an engine, Debian's is installed, started in folders of its own, and named."""
    machine = Fake("apt-get")
    told = " ".join(start(machine, PLACES))
    assert machine.done[:2] == [("apt-get", "update", "--quiet"), INSTALL]
    assert machine.done[-1] == PLACES.command()
    assert {"--data-root", "data", "unix://runtime/docker.sock"} <= set(PLACES.command())
    assert "docker.io" in told and "engine 20.10 answers at runtime/docker.sock, limits by cgroup v1" in told
    assert "export DOCKER_HOST=unix://runtime/docker.sock" in told
    done = len(machine.done)
    list(start(machine, PLACES))
    assert len(machine.done) == done


def test_installed_engine_is_started() -> None:
    """Nothing is installed where an engine is installed but not started."""
    machine = Fake("dockerd")
    list(start(machine, PLACES))
    assert INSTALL not in machine.done and PLACES.command() in machine.done


def test_service_of_the_package() -> None:
    """Where the package starts its own service, no second engine is started."""
    machine = Fake("apt-get")
    machine.installing_starts_it = True
    assert "which make engine-stop leaves alone" in list(start(machine, PLACES))[-1]
    assert PLACES.command() not in machine.done


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Fake("apt-get", root=False), "sudo make engine"),
        (Fake(), "no Debian machine"),
    ],
    ids=["not root", "not Debian"],
)
def test_machines_that_cannot(machine: Fake, words: str) -> None:
    """Without root, or without Debian's packages, it is said what to do, and nothing is."""
    with pytest.raises(Refused, match=words):
        list(start(machine, PLACES))
    assert machine.done == []


def test_failed_installation() -> None:
    """An installation that fails is named with its exit code, and no engine is started."""
    machine = Fake("apt-get")
    machine.fails = (INSTALL,)
    with pytest.raises(TryAgain, match="exit code 1"):
        list(start(machine, PLACES))
    assert PLACES.command() not in machine.done


def test_engine_that_ends() -> None:
    """An engine that ends as it starts is told from a slow one, at once, with where its log is."""
    machine = Fake("dockerd")
    machine.ends_at_once = True
    with pytest.raises(TryAgain, match="exit code 1 as it started; data/log says why"):
        list(start(machine, PLACES))
    assert machine.waited_s == 0


def test_a_crashed_engine_is_started_again() -> None:
    """What a crashed engine left does not keep the next from starting, and is told."""
    machine = Fake("dockerd")
    machine.crashed = True
    told = list(start(machine, PLACES))
    assert "has crashed: starting it again" in told[0]
    assert machine.done == [PLACES.command()] and machine.answers


def test_a_slow_engine_is_waited_for() -> None:
    """Beside an engine of ours that runs but gives no answer yet, no second one is started."""
    machine = Fake("dockerd")
    machine.running = 7
    told = list(start(machine, PLACES))
    assert "(process 7) gives no answer yet" in told[0] and "answers at" in told[1]
    assert machine.done == []


def test_numbers_of_processes_that_are_no_engine_are_forgotten(tmp_path: Path) -> None:
    """A file with the number of another process goes; one with the number of a process of ours stays."""
    machine = Machine()
    place = tmp_path / "pid"
    place.write_text(str(os.getpid()))
    assert machine.process(place, str(tmp_path)) is None
    assert machine.forget(place) and not place.exists()
    assert not machine.forget(place)


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether an engine answers is told without starting one; a word that is unknown is refused."""
    machine = Fake("dockerd", answers=True)
    assert list(check(machine, PLACES)) == [ANSWER.words]
    with pytest.raises(TryAgain, match="make engine starts one"):
        list(check(Fake("dockerd"), PLACES))
    assert machine.done == []
    assert main(["begin"]) == 64 and "start|stop|check" in capsys.readouterr().err


def test_stop() -> None:
    """Only the engine that was started here is ended; without one, nothing is done."""
    machine = Fake("dockerd", answers=True)
    assert "nothing was done" in list(stop(machine, PLACES))[0]
    assert machine.done == []
    machine.running = 7
    assert "process 7) has ended" in list(stop(machine, PLACES))[0]
    assert machine.done == [("end", "7")]


def test_a_number_used_again_is_no_engine(tmp_path: Path) -> None:
    """A process is taken for our engine only if its command line names our folder."""
    (tmp_path / "pid").write_text(str(os.getpid()))
    assert Machine().process(tmp_path / "pid", "python") == os.getpid()
    assert Machine().process(tmp_path / "pid", str(tmp_path)) is None
    assert Machine().process(tmp_path / "none", "python") is None
