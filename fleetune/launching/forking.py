"""The launcher's side of fork servers (`fleetune.launching.fork_server`): finds or starts one, asks it for children.

A server serves children that need no module beyond its own, and have its environment and limits, since libraries read
these while they are imported. One that has imported modules of this project serves only while their files are as they
were. Beyond KEPT_SERVERS the least recently used ones without a child end.
"""

import atexit
import functools
import hashlib
import json
import os
import queue
import resource
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from fleetune.contracts.record import record
from fleetune.launching.child import FORK_SERVER, processor_time_ns
from fleetune.launching.job import MALLOC_ENVIRONMENT, SILENT_CODE
from fleetune.launching.life_watch import USUAL, LifeWatch

KEPT_SERVERS = 2
PACKET_BYTES = 4096
GIVEN_UP_POLL_S = 0.1
READ_LATE = (*MALLOC_ENVIRONMENT, "COLUMNS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST")
"""Variables that nothing reads while it is imported, and those that a forked child applies by itself: children of one
server may differ in them, and the server has none."""
LIMITS = tuple(getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_"))

PACKAGE = Path(__file__).parents[1]
"""Folder of this project's library."""

SpawnServer = Callable[[list[str], Mapping[str, str], IO[bytes], int], int]
"""Starts a child of this process, and returns its id: module and arguments, environment, log, a descriptor that it
inherits."""


@record
class Start:
    """A child that is to be started."""

    arguments: tuple[str, ...]
    """Module and arguments."""
    environment: Mapping[str, str]
    forks: bool
    """True if it will fork children of its own."""
    warms_up: tuple[str, ...] = ()
    """What the server of these calls before it forks them; see `Command.warms_up`."""
    has_input: bool
    """True if its stdin is a pipe; otherwise it is empty."""


class ForkedChild:
    """A child of a fork server, with the streams of a `subprocess.Popen`."""

    def __init__(self, server: "ServerConnection", pid: int, stdin: IO[bytes] | None, stdout: IO[bytes]) -> None:
        self._server = server
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None

    def wait_for_end(self) -> None:
        """Wait until the child has ended; its process id stays taken until `reap`."""
        self.returncode = self._server.wait_for_end(self.pid)

    def reap(self) -> None:
        """Release the process id, after `wait_for_end`."""
        self._server.reap(self.pid)


class ServerConnection:
    """A fork server that was started, and its children; one that shows no sign of life is ended, and these with it."""

    def __init__(self, pid: int, door: socket.socket, watch: LifeWatch) -> None:
        """pid: of the server, a child of this process that nobody else waits for."""
        self._pid, self._door = pid, door
        self._reaped = threading.Event()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._codes: dict[int, int | None] = {}
        """child -> exit code, None while it runs; children that were reaped are left out."""
        self._able: bool | None = None
        self._silent = False
        self.gone = False
        """True once the server has ended, and with it its children."""
        self.claims = 0
        """Starts that are about to be asked for; changed under the lock of `fork_child`."""
        threading.Thread(target=self._listen, name=f"fleetune-fork-server-{pid}", daemon=True).start()
        sign = functools.partial(processor_time_ns, pid)
        watch.follow(f"fork-server-{pid}", sign, self._reaped.wait, self._end_silent)

    @property
    def idle(self) -> bool:
        """True while it has no child and none is about to be started."""
        return not self.claims and not self._codes

    @property
    def stale(self) -> bool:
        """True once another server should take its place; one that cannot fork stays, so as not to try again."""
        return self.gone and self._able is not False

    def start(self, start: Start, log: IO[bytes], given_up: Callable[[], bool]) -> ForkedChild | None:
        """Fork a child; None if the server cannot, or has not imported all before it was `given_up`.

        OSError when the system refuses another process.
        """
        ours_out, theirs_out = os.pipe()
        theirs_in, ours_in = os.pipe() if start.has_input else (os.open(os.devnull, os.O_RDONLY), None)
        request = _request(start)
        try:
            with self._asking:
                answer = self._ask([request, theirs_in, theirs_out, log.fileno()], given_up)
        finally:
            for descriptor in (request, theirs_in, theirs_out):
                os.close(descriptor)
        if "pid" in answer:
            stdin = None if ours_in is None else os.fdopen(ours_in, "wb")
            return ForkedChild(self, answer["pid"], stdin, os.fdopen(ours_out, "rb"))
        for descriptor in (ours_out, *(() if ours_in is None else (ours_in,))):
            os.close(descriptor)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return None

    def wait_for_end(self, pid: int) -> int:
        """Exit code of a child once it has ended (minus the signal's number); that of SIGKILL if the server ended, and
        SILENT_CODE if it was silent."""
        with self._changed:
            self._changed.wait_for(lambda: self.gone or self._codes[pid] is not None)
            code = self._codes[pid]
            if code is None:
                return SILENT_CODE if self._silent else -signal.SIGKILL
            return code

    def reap(self, pid: int) -> None:
        """Release the process id of a child that has ended."""
        with suppress(OSError):
            self._door.send(json.dumps({"event": "reap", "pid": pid}).encode())
        with self._changed:
            del self._codes[pid]

    def end(self) -> None:
        """End the server and its children."""
        with suppress(ProcessLookupError):
            if not self.gone:
                os.kill(self._pid, signal.SIGKILL)
        self._reaped.wait()

    def _end_silent(self) -> None:
        self._silent = True
        self.end()

    def _ask(self, descriptors: list[int], given_up: Callable[[], bool]) -> dict[str, Any]:
        """Answer to a start; empty if the server cannot fork or has ended. For one thread at a time."""
        while self._able is None and not self.gone and not given_up():
            with self._changed:
                self._changed.wait_for(lambda: self.gone or self._able is not None, GIVEN_UP_POLL_S)
        if not self._able or self.gone:
            return {}
        try:
            socket.send_fds(self._door, [b'{"event": "start"}'], descriptors)
        except OSError:
            return {}
        return self._answers.get()

    def _listen(self) -> None:
        """Receive the server's messages until it ends."""
        while packet := self._receive():
            message = json.loads(packet)
            if message["event"] == "ready":  # known before the end, so that it is not tried again
                with self._changed:
                    self._able = message["able"]
                    self._changed.notify_all()
                continue
            if message["event"] == "ended":
                with self._changed:
                    self._codes[message["pid"]] = message["code"]
                    self._changed.notify_all()
                continue
            if message["event"] == "started":
                self._codes[message["pid"]] = None
            self._answers.put(message)
        with self._changed:
            self.gone = True
            self._changed.notify_all()
        self._answers.put({})
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._door.close()
        self._reaped.set()

    def _receive(self) -> bytes:
        try:
            return self._door.recv(PACKET_BYTES)
        except OSError:
            return b""


class Imported(NamedTuple):
    """What a server and its children have in common."""

    modules: frozenset[str]
    code: str
    """`code_mark` of these modules."""
    surroundings: object
    """What a process hands down to children."""

    def serves(self, wanted: "Imported") -> bool:
        """Return whether a child that wants this finds it here."""
        has_code = self.code == wanted.code or not wanted.code
        return has_code and wanted.modules <= self.modules and self.surroundings == wanted.surroundings


_SERVERS: dict[Imported, ServerConnection] = {}
"""The most recently used one is the last."""
_FINDING = threading.Lock()


def fork_child(
    start: Start,
    modules: tuple[str, ...],
    log: IO[bytes],
    spawn: SpawnServer,
    given_up: Callable[[], bool],
    watch: LifeWatch,
) -> ForkedChild | None:
    """Fork a child that has imported `modules`; starts a server unless one runs. None where none can, or `given_up`.

    watch: of a server that is started. OSError when the system refuses another process.
    """
    environment = _read_early(start.environment)
    wanted = Imported(frozenset(modules), code_mark(modules), _surroundings(environment))
    with _FINDING:
        if not _SERVERS:
            atexit.register(_end_all, os.getpid())
        common = next((each for each in reversed(_SERVERS) if each.serves(wanted)), wanted)
        server = _SERVERS.pop(common, None)
        if server is None or server.stale:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                arguments = [FORK_SERVER, str(theirs.fileno()), wanted.code, *modules]
                server = ServerConnection(spawn(arguments, environment, log, theirs.fileno()), ours, watch)
            common = wanted
        _SERVERS[common] = server
        server.claims += 1
        _end_idle()
    try:
        return server.start(start, log, given_up)
    finally:
        with _FINDING:
            server.claims -= 1


def adopt_server(modules: tuple[str, ...], code: str, pid: int, door: socket.socket) -> None:
    """Use a server that was forked from this process, for children with the environment that it has now.

    code: mark of the modules when they were imported.
    """
    with _FINDING:
        imported = Imported(frozenset(modules), code, _surroundings(_read_early(os.environ)))
        _SERVERS[imported] = ServerConnection(pid, door, USUAL)


def code_mark(modules: tuple[str, ...]) -> str:
    """Return what changes with any source file of this project, or empty if none of the modules is of it."""
    if not any(module.split(".")[0] == PACKAGE.name for module in modules):
        return ""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in sorted(os.path.join(folder, name) for name in files):
            with suppress(OSError):  # an editor's file is gone again
                facts = os.stat(path)
                digest.update(f"{path} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name not in READ_LATE}


def _surroundings(environment: Mapping[str, str]) -> object:
    """This process, the environment, and what else is handed down to children."""
    bounds = tuple(resource.getrlimit(limit) for limit in LIMITS)
    cores, niceness = frozenset(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)
    return os.getpid(), frozenset(environment.items()), bounds, cores, niceness


def _end_idle() -> None:
    """End the least recently used servers beyond those that are kept."""
    for common in list(_SERVERS)[:-KEPT_SERVERS]:
        if _SERVERS[common].idle:
            _SERVERS.pop(common).end()


def _request(start: Start) -> int:
    """Descriptor of a file in memory with the request of a start, whose environment is large and may hold secrets."""
    descriptor = os.memfd_create("fleetune-start", os.MFD_CLOEXEC)
    request = {"arguments": start.arguments, "environment": dict(start.environment), "folder": os.getcwd()}
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps({**request, "forks": start.forks, "warms_up": start.warms_up}).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _end_all(owner: int) -> None:
    if os.getpid() == owner:  # a fork of this process has not started them
        for server in _SERVERS.values():
            server.end()
