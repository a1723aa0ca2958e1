"""`make engine`: a container engine on a Debian machine without one; `make engine-stop` ends what that started.

The engine is Debian's docker.io, started by hand with folders and a socket of its own: nothing that was there before
is changed, and a machine without a service manager serves as well. An engine that answers already is left alone.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from containers.answers import OURS
from containers.machine import Machine
from containers.telling import told
from fleetune.errors import Refused, TryAgain

__all__ = ["Places", "check", "start", "stop"]

PATIENCE_S = 60.0
STEP_S = 0.25
INSTALL = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "docker.io")


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where our engine keeps what: images and its log in `data`, what ends with it in `runtime`."""

    data: Path = Path("/var/lib/fleetune-engine")
    runtime: Path = Path(OURS).parent

    @property
    def pid_file(self) -> Path:
        """Written by the engine."""
        return self.runtime / "pid"

    @property
    def pid_files(self) -> tuple[Path, ...]:
        """Written by the engine, and by the containerd that it starts."""
        return self.pid_file, self.runtime / "exec" / "containerd" / "containerd.pid"

    @property
    def log(self) -> Path:
        """What the engine says."""
        return self.data / "log"

    def command(self) -> tuple[str, ...]:
        """What starts the engine."""
        return (
            "dockerd",
            *("--data-root", str(self.data)),
            *("--exec-root", str(self.runtime / "exec")),
            *("--pidfile", str(self.pid_file)),
            *("--host", f"unix://{self.runtime / 'docker.sock'}"),
        )


def check(machine: Machine, places: Places) -> Iterator[str]:
    """The engine that answers; TryAgain where none does."""
    answer = machine.answer()
    if answer is None:
        raise TryAgain("no engine answers: make engine starts one")
    yield answer.words


def start(machine: Machine, places: Places) -> Iterator[str]:
    """What was done, sentence by sentence; does nothing where an engine answers. Refused or TryAgain where none can."""
    if answer := machine.answer():
        yield f"{answer.words}; nothing was done"
        return
    if not machine.is_root():
        raise Refused("no engine answers, and to start one needs root: run sudo make engine, or start one of yours")
    if not machine.has("dockerd"):
        yield "no engine is installed: installing Debian's docker.io (apt-get remove docker.io takes it away again)"
        _install(machine)
        if answer := machine.answer():
            yield f"{answer.words}: its package started it as the system's service, which make engine-stop leaves alone"
            return
    pid = machine.process(places.pid_file, str(places.data))
    if pid is not None:
        yield f"the engine that was started here before (process {pid}) gives no answer yet: waiting for it"
        yield from _awaited(machine, places, lambda: None)
        return
    if _put_away(machine, places):
        yield "the engine that was started here before has crashed: starting it again"
    yield from _awaited(machine, places, machine.spawn(places.command(), places.log))


def _put_away(machine: Machine, places: Places) -> bool:
    """Whether an engine crashed here before. Numbers of processes that it left are forgotten: an engine takes whatever
    has such a number by now for its own, and refuses to start."""
    left = [file for file in places.pid_files if machine.process(file, str(places.runtime)) is None]
    return any([machine.forget(file) for file in left])


def _awaited(machine: Machine, places: Places, ended: Callable[[], int | None]) -> Iterator[str]:
    """How to reach an engine that is starting, once it answers; TryAgain if it does not."""
    for _ in range(round(PATIENCE_S / STEP_S)):
        if answer := machine.answer():
            yield f"{answer.words}; it keeps images in {places.data}, and make engine-stop ends it"
            yield f"for the docker command: export DOCKER_HOST=unix://{answer.socket}"
            return
        if ended() is not None:
            raise TryAgain(f"the engine ended with exit code {ended()} as it started; {places.log} says why")
        machine.wait(STEP_S)
    raise TryAgain(
        f"the engine gives no answer for {PATIENCE_S:g} s; {places.log} may say why, and make engine-stop ends it"
    )


def stop(machine: Machine, places: Places) -> Iterator[str]:
    """What was done, sentence by sentence; only an engine that `start` has started is ended."""
    pid = machine.process(places.pid_file, str(places.data))
    if pid is None:
        yield "no engine that make engine started runs here; nothing was done"
        return
    if not machine.is_root():
        raise Refused("to end the engine needs root: run sudo make engine-stop")
    if not machine.end(pid, PATIENCE_S):
        raise TryAgain(f"the engine (process {pid}) was asked to end, and still runs after {PATIENCE_S:g} s")
    yield f"the engine (process {pid}) has ended, with its containers; its images stay in {places.data}"


def _install(machine: Machine) -> None:
    if not machine.has("apt-get"):
        raise Refused("no engine is installed, and this is no Debian machine: install Docker as its makers describe")
    machine.call("apt-get", "update", "--quiet")  # a list that is old may serve as well
    code = machine.call(*INSTALL)
    if code:
        raise TryAgain(f"apt-get could not install docker.io (exit code {code}): see above, then run make engine again")


def main(arguments: list[str]) -> int:
    """`start`, `stop` or `check`, in words; the exit code."""
    works = {"start": start, "stop": stop, "check": check}
    if len(arguments) != 1 or arguments[0] not in works:
        sys.stderr.write("usage: python -m containers.engine start|stop|check\n")
        return Refused.exit_code
    return told(lambda: works[arguments[0]](Machine(), Places()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
