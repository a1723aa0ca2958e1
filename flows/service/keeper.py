"""`python -m flows.service.keeper PORT ROOT [--no-password]`: keeps Prefect's server and a worker until terminated.

It holds the service's lock, so that a store has one service at most. Its children die with it. Lines on stdout tell the
command that started it what happens; the last is `ready`, or `refused REASON`.
"""

import datetime
import errno
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from fleetune import filesystem
from fleetune.contracts.url_passwords import holds_password
from fleetune.errors import FleetuneError, Refused, TryAgain, by_exit_code
from fleetune.filesystem import write_durably
from fleetune.launching import Command, Job, Launcher, ProcessLauncher, describe_exit
from fleetune.linux import process_identity
from fleetune.store import Store
from flows.prefect_server import DATABASE, HOST, answers
from flows.provenance import version_of
from flows.service.ended_runs import EndedRuns, EndMessages, ServerApi
from flows.service.environment import IN_FOLDER, RUNS_ONLY, WORKER_LIVES, client_environment
from flows.service.flow_process import ORPHAN_S
from flows.service_files import ServiceFiles, ServiceRecord

POOL = "fleetune"
START_S, ASK_S, LOOK_S = 180.0, 0.2, 1.0
SERVER_GRACE_S, WORKER_GRACE_S = 10.0, ORPHAN_S + 10.0
MOST_PAUSE_S = 60.0
"""Longest pause before a child that keeps ending is started again."""
MOST_LOG_BYTES = 10_000_000
"""A longer log of a child is set aside."""
NO_PASSWORD = "--no-password"


class Keeper:
    """The server and the worker of one store."""

    def __init__(
        self, root: str, port: int, password: bool, tell: Callable[[str], None], launcher: Launcher | None = None
    ) -> None:
        """`password`: the server asks for one.

        `launcher`: starts the server, the worker and registrations; None: as processes.
        """
        self._store = Store(root)
        self._root = str(self._store.root) if "://" in root else str(Path(root).resolve())
        self._port = port
        self._password = password
        self._tell = tell
        self._files = ServiceFiles(self._store.local)
        self._stop = threading.Event()
        self._auth = ""
        self._launcher = launcher or ProcessLauncher()
        self.jobs: dict[str, Job] = {}
        """`server`, `worker`, `registration` -> what runs of them."""

    def stop(self, *_: object) -> None:
        """End `keep`; a signal handler."""
        self._stop.set()

    def keep(self) -> None:
        """Start everything, then keep it running until `stop`; Refused when the port or the store is taken."""
        lock, begun_s = self._files.lock(), time.monotonic()
        while not lock.take():  # a command that only looks holds it for a moment
            if time.monotonic() > begun_s + LOOK_S:
                raise Refused(f"{self._root}: its service runs or starts already")
            time.sleep(ASK_S)
        for left in (self._files.record, self._files.going_down, self._files.submitted):
            left.unlink(missing_ok=True)  # by a killed service, or as links, through which the marks would be made
        try:
            with reserve(self._port):
                self._start()
                self._tell("ready")
                api = ServerApi(self._port, self._auth)
                self.watch(EndedRuns(self._files, api).still_shown, EndMessages(api, self._root).complete)
        finally:
            self._end()
            self._files.record.unlink(missing_ok=True)
            lock.release()

    def _start(self) -> None:
        self._auth = self._files.login() if self._password else ""
        if not self._password:
            self._files.end_keys()
        self._tell("starting Prefect's server (the first start creates its database)")
        self._start_server()
        self._files.write(self._record())
        self._note_database()
        self._tell("registering deployments")
        note_folder(self._files)
        self.register()
        self._tell("starting the worker")
        self._start_worker()

    def _note_database(self) -> None:
        """Tell when the store's service before this one had another database, as after an `up` without the setting."""
        note, name = self._files.folder / "database", name_of(os.environ.get(DATABASE, ""))
        before = (note.read_text() if note.exists() else "") or name  # a lost power may have left it empty
        if before != name:
            self._tell(f"the database is {name}; earlier runs of this store are in {before}, and not shown here")
        write_durably(name.encode(), note)

    def _record(self) -> ServiceRecord:
        return ServiceRecord(
            address=f"http://{HOST}:{self._port}",
            root=self._root,
            keeper=os.getpid(),
            identity=process_identity(os.getpid()),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            authenticated=bool(self._auth),
            version=version_of("fleetune"),
            database=self._files.mark(os.environ.get(DATABASE, "")),
        )

    def _launch(self, name: str, module: str, *arguments: str, first_line: str = "") -> Job:
        database = {DATABASE: os.environ[DATABASE]} if name == "server" and DATABASE in os.environ else {}
        log = self._files.folder / f"{name}.log"
        bound(log)
        job = self._launcher.start(
            Command(
                module=module,
                arguments=arguments,
                environment={**client_environment(self._files, self._record(), self._auth), **database},
                first_line=first_line.encode(),
                log=log,
            )
        )
        self.jobs[name] = job
        return job

    def _start_server(self) -> None:
        job = self._launch(
            "server", "flows.service.http_server", str(self._port), self._root, first_line=self._auth + "\n"
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (code := job.poll()) is not None:
                raise ended_at_start(code, job.tail())
            if answers(self._port):
                return
            if self._stop.wait(ASK_S):
                raise TryAgain("stopped while Prefect's server was starting")
        raise TryAgain(f"Prefect's server did not answer within {START_S:.0f} s; see {self._files.folder}/server.log")

    def register(self, *options: str) -> None:
        """Tell the server the deployments, and of runs that say Running whether they are; options: of that module."""
        job = self._launch("registration", "flows.service.registration", *options)
        threading.Thread(target=self._end_with_server, args=(job,), daemon=True).start()
        try:
            follow_registration(job, self._tell)
        finally:
            del self.jobs["registration"]

    def _end_with_server(self, job: Job) -> None:
        """Kill a registration whose server has ended, or whose service ends: it would wait for that server's return."""
        while job.wait(ASK_S) is None:
            if self._stop.is_set() or self.jobs["server"].poll() is not None:
                job.stop(0.0)

    def _start_worker(self) -> None:
        self._launch("worker", "flows.service.worker", POOL)

    def watch(self, still_shown: Callable[[], Collection[str]], complete: Callable[[], None]) -> None:
        """Start a child that has ended again, after a pause that grows while it keeps ending; until `stop`.

        `still_shown`: returns ended runs that the server shows as running. `complete`: completes its messages.
        """
        pause_s, began = LOOK_S, time.monotonic()
        whole = owed = False  # a registration that failed, as while the database is away
        while not self._stop.wait(LOOK_S):
            try:
                complete()
                for name in self.jobs:
                    bound(self._files.folder / f"{name}.log")
            except OSError as error:
                self._tell(f"{error}; runs go on")
            ended = [name for name, job in self.jobs.items() if job.poll() is not None]
            whole = whole or bool(ended)
            if not whole and not owed and not still_shown():
                pause_s = LOOK_S if time.monotonic() - began > MOST_PAUSE_S else pause_s
                continue
            if self._stop.wait(pause_s):
                return
            pause_s, began, owed = min(2 * pause_s, MOST_PAUSE_S), time.monotonic(), True
            try:
                if "server" in ended:
                    self._start_server()
                lives = () if "worker" in ended else (WORKER_LIVES,)
                self.register(*lives, *((IN_FOLDER, noted_folder(self._files)) if whole else (RUNS_ONLY,)))
                whole = owed = False
                if "worker" in ended:
                    self._start_worker()
            except (FleetuneError, OSError) as error:
                self._tell(str(self.known(error) or error))

    def known(self, error: Exception) -> FleetuneError | None:
        """The sentence for an error; None for one that nobody has foreseen. A full disk has many names."""
        if isinstance(error, Refused):
            return error
        used = {filesystem.STORE: self._store.local}
        full = filesystem.disk_error(error, used) or filesystem.find_full_disk(used)
        return full or (error if isinstance(error, FleetuneError) else None)

    def _end(self) -> None:
        """Stop the worker, which ends after its runs, and then the server, which they report to."""
        for name, grace_s in (("registration", 0.0), ("worker", WORKER_GRACE_S), ("server", SERVER_GRACE_S)):
            if name in self.jobs:
                self.jobs[name].stop(grace_s)


def note_folder(files: ServiceFiles) -> None:
    """Note this process's folder as that of the last `up`, whose configs have the schedules."""
    write_durably(str(Path.cwd()).encode(), files.folder / "folder")


def noted_folder(files: ServiceFiles) -> str:
    """Return the folder of the last `up`; this process's where it is not known or no more."""
    note = files.folder / "folder"
    noted = note.read_text(encoding="utf-8") if note.exists() else ""
    return noted if noted and Path(noted).is_dir() else str(Path.cwd())


def bound(log: Path) -> None:
    """Set a long log aside, also while a child appends to it: a server without its database writes 5 MB a minute."""
    if log.exists() and not log.is_symlink() and log.stat().st_size > MOST_LOG_BYTES:
        with suppress(OSError):  # a disk without room for it: the old lines are lost, and the service goes on
            aside = log.with_suffix(".log.1")
            aside.unlink(missing_ok=True)  # it may be a link
            shutil.copyfile(log, aside)
        os.truncate(log, 0)


def name_of(url: str) -> str:
    """How a database is called where no password may be told; empty URL: the file in the store."""
    if not url:
        return "SQLite in the store"
    scheme, _, rest = url.partition("?")[0].partition("://")
    if holds_password(url):
        rest = rest.rpartition("@")[2] if "@" in rest else ""  # what is left of a password with a ? tells its start
    return f"{scheme.partition('+')[0]}://{rest.rpartition('@')[2]}"


def ended_at_start(code: int, tail: str) -> FleetuneError:
    """The error for a server that has ended with `code` instead of starting; `tail`: the end of its log."""
    said = [line.strip() for line in tail.splitlines() if line.strip() and not line.startswith("ERROR:")]
    why = said[-1] if said else "no reason given"
    if code in (Refused.exit_code, TryAgain.exit_code):
        return by_exit_code(code, why)  # its own sentence, as for a database that does not answer
    return TryAgain(f"Prefect's server did not start ({why})")


def reserve(port: int) -> socket.socket:
    """Bind a port without listening on it; Refused when any other program has it.

    Nobody else can have it then while the server starts again. It is bound alone, and shared only after that, with the
    server: SO_REUSEPORT shares a port among all processes of one user, and the service of another store is one of them.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have just ended are no program
    try:
        reserved.bind((HOST, port))
    except OSError as error:
        reserved.close()
        why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        raise Refused(f"port {port}: {why}; give another with --port") from None
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reserved


def follow_registration(job: Job, tell: Callable[[str], None]) -> None:
    """Tell what a registration prints; TryAgain when it fails."""
    for line in job.lines():
        tell(line)
    code = job.wait() or 0
    if code == Refused.exit_code:
        raise Refused(job.tail(1).strip())
    if code != 0:
        why = job.tail(1).strip() or describe_exit(code)
        raise TryAgain(f"the deployments could not be registered ({why}); run it again")


def main() -> None:
    """Keep the service of the store ROOT on PORT."""

    def tell(line: str) -> None:
        try:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        except BrokenPipeError:  # the command that started it has ended
            sys.stdout = sys.stderr

    port, root, *options = sys.argv[1:]
    keeper = Keeper(root, int(port), NO_PASSWORD not in options, tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, keeper.stop)
    try:
        keeper.keep()
    except Exception as raised:
        error = keeper.known(raised)
        if error is None:
            raise
        tell(f"refused {error}" if isinstance(error, Refused) else f"failed {error}")
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
