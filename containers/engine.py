"""`make engine` starts a container engine on a Debian machine without one; `make engine-stop` ends that engine.

The engine is Debian's docker.io, started directly with folders and a socket of its own: it changes nothing that was
there before, and needs no service manager. An engine that answers already is left alone.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from containers.engine_api import FLEETUNE_SOCKET
from containers.machine import Machine, print_steps
from fleetune.errors import Refused, TryAgain

__all__ = ["EnginePaths", "check", "start", "stop"]

START_TIMEOUT_S = 60.0
POLL_S = 0.25
INSTALL_COMMAND = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "docker.io")


@dataclass(frozen=True, kw_only=True)
class EnginePaths:
    """Folders of the engine: `data` keeps images and its log, `runtime` what ends with it."""

    data: Path = Path("/var/lib/fleetune-engine")
    runtime: Path = Path(FLEETUNE_SOCKET).parent

    @property
    def pid_file(self) -> Path:
        """Process id of the engine, written by it."""
        return self.runtime / "pid"

    @property
    def pid_files(self) -> tuple[Path, ...]:
        """Files of process ids, written by the engine and by the containerd that it starts."""
        return self.pid_file, self.runtime / "exec" / "containerd" / "containerd.pid"

    @property
    def log(self) -> Path:
        """Output of the engine."""
        return self.data / "log"

    def command(self) -> tuple[str, ...]:
        """Command line that starts the engine."""
        return (
            "dockerd",
            *("--data-root", str(self.data)),
            *("--exec-root", str(self.runtime / "exec")),
            *("--pidfile", str(self.pid_file)),
            *("--host", f"unix://{self.runtime / 'docker.sock'}"),
        )


def check(machine: Machine, paths: EnginePaths) -> Iterator[str]:
    """Yield one sentence on the engine that answers; TryAgain where none does."""
    engine = machine.find_engine()
    if engine is None:
        raise TryAgain("no engine answers: make engine starts one")
    yield engine.summary


def start(machine: Machine, paths: EnginePaths) -> Iterator[str]:
    """Install and start an engine unless one answers; yields what was done. Refused or TryAgain where that fails."""
    if engine := machine.find_engine():
        yield f"{engine.summary}; nothing was done"
        return
    if not machine.is_root():
        raise Refused("no engine answers, and starting one needs root: run sudo make engine, or start your own")
    if not machine.has("dockerd"):
        yield "no engine is installed: installing Debian's docker.io (apt-get remove docker.io removes it)"
        _install(machine)
        if engine := machine.find_engine():
            yield f"{engine.summary}: its package started it as a system service, which make engine-stop leaves alone"
            return
    pid = machine.running_process(paths.pid_file, str(paths.data))
    if pid is not None:
        yield f"the engine that was started here before (process {pid}) gives no answer yet: waiting for it"
        yield from _wait_until_ready(machine, paths, lambda: None)
        return
    if _remove_stale_pid_files(machine, paths):
        yield "the engine that was started here before has crashed: starting it again"
    yield from _wait_until_ready(machine, paths, machine.spawn(paths.command(), paths.log))


def _remove_stale_pid_files(machine: Machine, paths: EnginePaths) -> bool:
    """Remove pid files of a crashed engine; returns True if there were any.

    If another process has that id by now, the engine mistakes it for itself and refuses to start.
    """
    stale = [file for file in paths.pid_files if machine.running_process(file, str(paths.runtime)) is None]
    return any([machine.remove(file) for file in stale])


def _wait_until_ready(machine: Machine, paths: EnginePaths, poll: Callable[[], int | None]) -> Iterator[str]:
    """Wait for an engine that is starting, then yield how to reach it; TryAgain if it ends or does not answer."""
    for _ in range(round(START_TIMEOUT_S / POLL_S)):
        if engine := machine.find_engine():
            yield f"{engine.summary}; it keeps images in {paths.data}, and make engine-stop ends it"
            yield f"for the docker command: export DOCKER_HOST=unix://{engine.socket}"
            return
        if poll() is not None:
            raise TryAgain(f"the engine ended with exit code {poll()} as it started; {paths.log} says why")
        machine.sleep(POLL_S)
    raise TryAgain(
        f"the engine gives no answer for {START_TIMEOUT_S:g} s; {paths.log} may say why, and make engine-stop ends it"
    )


def stop(machine: Machine, paths: EnginePaths) -> Iterator[str]:
    """End the engine that `start` has started, and no other; yields what was done."""
    pid = machine.running_process(paths.pid_file, str(paths.data))
    if pid is None:
        yield "no engine that make engine started runs here; nothing was done"
        return
    if not machine.is_root():
        raise Refused("ending the engine needs root: run sudo make engine-stop")
    if not machine.terminate(pid, START_TIMEOUT_S):
        raise TryAgain(f"the engine (process {pid}) was asked to end, and still runs after {START_TIMEOUT_S:g} s")
    yield f"the engine (process {pid}) has ended, with its containers; its images stay in {paths.data}"


def _install(machine: Machine) -> None:
    if not machine.has("apt-get"):
        raise Refused("no engine is installed, and this is no Debian machine: install Docker as its makers describe")
    machine.call("apt-get", "update", "--quiet")  # a failure does not matter: an older package list may do
    code = machine.call(*INSTALL_COMMAND)
    if code:
        raise TryAgain(f"apt-get could not install docker.io (exit code {code}): see above, then run make engine again")


def main(arguments: list[str]) -> int:
    """Run `start`, `stop` or `check`; returns the exit code."""
    commands = {"start": start, "stop": stop, "check": check}
    if len(arguments) != 1 or arguments[0] not in commands:
        sys.stderr.write("usage: python -m containers.engine start|stop|check\n")
        return Refused.exit_code
    return print_steps(lambda: commands[arguments[0]](Machine(), EnginePaths()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
