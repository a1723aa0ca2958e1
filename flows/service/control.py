"""Start and stop the service of a store: `fleetune up`, `fleetune down`."""

import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from fleetune.contracts.record import record
from fleetune.contracts.url_passwords import holds_password
from fleetune.errors import Refused, TryAgain, by_exit_code
from fleetune.filesystem import check_home, check_utf8
from fleetune.launching import Command, ProcessLauncher
from fleetune.launching.child import processor_time_ns
from fleetune.launching.job import open_log
from fleetune.launching.life_watch import USUAL, LifeWatch
from fleetune.launching.process import child_command, inherited_environment
from flows.prefect_server import DATABASE
from flows.service.environment import WORKER_LIVES, client_environment
from flows.service.keeper import NO_PASSWORD, follow_registration, note_folder
from flows.service_files import ServiceFiles, ServiceRecord, claim_home

END_S, ASK_S = 75.0, 0.1
PORT = 4200
FLOW_PROCESS = "flows.service.flow_process"


@record
class ServiceOptions:
    """What `up` can be told."""

    port: int | None = None
    """Port of the server; None: PORT, or that of the service that runs."""
    password: bool | None = None
    """The server asks for a password; None: it does, or what the service that runs does."""
    database: str | None = None
    """SQLAlchemy URL of the server's database; None: what the environment says, else a SQLite file in the store."""
    adopt: bool = False
    """What lies in the store is taken over, see store_mark.py."""

    def given_database(self) -> str | None:
        """The database that the options or the environment name."""
        return self.database or os.environ.get(DATABASE) or None


def refuse_password(database: str | None) -> None:
    """Refused when the words of a command line hold a password: every user of the machine can read them."""
    if holds_password(database or ""):
        raise Refused(
            "--database: it holds a password, which every user of this machine could read in the list of processes;"
            f" put the password into ~/.pgpass, or the URL into the environment: read -rs {DATABASE}; export {DATABASE}"
        )


def up(
    local: Path, root: str, options: ServiceOptions, tell: Callable[[str], None], watch: LifeWatch = USUAL
) -> ServiceRecord:
    """Start the service of a store, or update the deployments of one that runs; returns its record.

    Raises the error that the start ended with; TryAgain if it freezes.
    """
    check_home()
    check_utf8("the working directory", str(Path.cwd()))  # deployments name it
    files = ServiceFiles(local)
    claim_home(files.home, options.adopt)
    if (running := files.running()) is not None:
        refuse_changes(files, running, options)
        register_again(files, running, tell)
        return running
    if files.starting():
        raise TryAgain(f"{root}: its service is starting or ending; try again in a few seconds")
    files.folder.mkdir(exist_ok=True)
    url = options.given_database()
    database = {DATABASE: url} if url else {}
    without = [NO_PASSWORD] if options.password is False else []
    with open_log(files.folder / "keeper.log") as log:
        keeper = subprocess.Popen(
            [*child_command(0), "flows.service.keeper", str(options.port or PORT), root, *without],
            env={**inherited_environment(os.environ), **database, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    try:
        with watch.following("keeper", functools.partial(processor_time_ns, keeper.pid), keeper.kill):
            _follow(keeper, tell)
    except BaseException:
        keeper.terminate()  # Ctrl-C while it starts; it has ended already after an error of its own
        raise
    service = files.running()
    if service is None:
        raise TryAgain(f"the service ended while it started; see {files.folder / 'keeper.log'}, and run it again")
    return service


def refuse_changes(files: ServiceFiles, running: ServiceRecord, options: ServiceOptions) -> None:
    """Refused when `up` asks for settings that the running service does not have; they count from its next start on."""
    first = "to change it: fleetune down, then fleetune up"
    if options.port is not None and options.port != urlsplit(running.address).port:
        raise Refused(f"--port {options.port}: the service of this store runs already, on {running.address}; {first}")
    if options.password is not None and options.password != running.authenticated:
        has = "with" if running.authenticated else "without"
        raise Refused(f"--{'' if options.password else 'no-'}password: the service runs already, {has} one; {first}")
    url = options.given_database()
    if url is not None and files.mark(url) != running.database:
        raise Refused(f"--database: the service runs already, with another database; {first}")


def register_again(files: ServiceFiles, running: ServiceRecord, tell: Callable[[str], None]) -> None:
    """Register the deployments of today's configs with a running service."""
    auth_string = files.auth_string(running)
    note_folder(files)
    job = ProcessLauncher().start(
        Command(
            module="flows.service.registration",
            arguments=(WORKER_LIVES,),
            environment=client_environment(files, running, auth_string),
            log=files.folder / "registration.log",
        )
    )
    follow_registration(job, tell)


def _follow(keeper: "subprocess.Popen[str]", tell: Callable[[str], None]) -> None:
    """Tell what a starting keeper prints until it is ready or has ended; raises the error that it ends with."""
    assert keeper.stdout is not None
    with keeper.stdout as lines:
        for line in lines:
            word, _, text = line.strip().partition(" ")
            if word == "ready":
                return
            if word in ("refused", "failed"):
                raise by_exit_code(keeper.wait(), text)
            tell(line.strip())
    keeper.wait()


@record
class StoppedService:
    """What `down` has stopped."""

    service: ServiceRecord
    flow_runs: int
    """How many runs were in progress."""


def down(local: Path, root: str, pause: Callable[[float], None] = time.sleep) -> StoppedService:
    """Stop the service of a store and everything that it started."""
    files = ServiceFiles(local)
    service = files.running()
    if service is None:
        if files.starting():
            raise TryAgain(f"{root}: its service is starting or ending; try again in a few seconds")
        raise Refused(f"{root}: no service runs for this store; start one with: fleetune up")
    flow_runs = _count_flow_runs(service.keeper)
    files.going_down.touch()
    os.kill(service.keeper, signal.SIGTERM)  # the lock is held, so that this process id is the keeper's
    os.kill(service.keeper, signal.SIGCONT)  # else one that was stopped would not hear it
    for _ in range(int(END_S / ASK_S)):
        if not files.starting():
            return StoppedService(service=service, flow_runs=flow_runs)
        pause(ASK_S)
    raise TryAgain(f"the service (process {service.keeper}) did not end within {END_S:.0f} s; run it again")


def _count_flow_runs(keeper: int) -> int:
    """How many flow runs the worker of a service is running."""
    with suppress(psutil.Error):
        processes = psutil.Process(keeper).children(recursive=True)
        found = {process.pid: process for process in processes if _runs_a_flow(process)}
        return sum(process.ppid() not in found for process in found.values())  # no child before it is another program
    return 0


def _runs_a_flow(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return FLOW_PROCESS in process.cmdline()
    return False
