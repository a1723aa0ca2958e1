"""`python -P child.py PARENT fleetune.launching.fork_server SOCKET CODE MODULE ...` imports modules, forks children.

Importing torch and transformers takes 3.2 s of processor time; a child that is forked after it takes 10 ms and shares
the memory of what was imported. CODE tells the state of this project's files (`forking.code_mark`). This is the
server's side; `fleetune.launching.forking` is the launcher's. Messages are JSON objects, one a packet:

    server -> launcher    ready, able
    launcher -> server    start; with descriptors of a file that holds a `Start`, stdin, stdout and stderr
    server -> launcher    started, pid | refused, errno             one answer for each start, in their order
    server -> launcher    ended, pid, code     the child stays a zombie meanwhile, so that no other gets its id
    launcher -> server    reap, pid

It forks only while it has a single thread, since a fork copies locks that other threads hold. Children die with the
server and the server with its launcher, as child.py arranges; SIGTERM, which a machine that shuts down sends to all
processes, ends a server only after its children, since these still write. A child that starts children of its own is
born with a server for these, forked from it before anything else runs. What they would each make anew, this server
makes once, beside the first steps of its launcher (`warm_up`). Not used: multiprocessing's forkserver, which pickles,
and whose children have neither streams nor an environment of their own.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from setproctitle import setproctitle

from fleetune.launching.child import BEAT_S, FORK_SERVER, die_with, show_life
from fleetune.launching.forking import PACKET_BYTES, adopt_server

MALLOC_OPTIONS = {"MALLOC_MMAP_MAX_": -4, "MALLOC_TRIM_THRESHOLD_": -1}
"""Variables that glibc reads when a program starts -> option of mallopt(3) that sets the same at any time."""
DESCRIPTORS = 4
"""Descriptors of a start: the request, stdin, stdout and stderr."""


def main() -> None:
    """Import the modules, serve until the launcher ends; in a forked child, run its module instead."""
    end = QuickEnd()
    door, code, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:]
    request = ForkServer(door).serve() if _preload(door, modules) else None
    while request is not None:
        _settle(request)
        inner = _fork_own_server(modules, code, request["warms_up"]) if request["forks"] else None
        if inner is None:
            end.code = 1
            _run(request, end)
        request = inner  # this is a child of that server
    end.code = end.code or 0


class QuickEnd:
    """Ends this process with `code`, once one is set, where Python would free all modules: that takes up to a second.

    Exit functions run in the reverse order of their registration, so this one comes after all that modules register.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self._end)

    def _end(self) -> None:
        if self.code is not None:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(self.code)


def _preload(door: socket.socket, modules: list[str]) -> bool:
    """Import the modules; returns False, having said so, where children could not be forked safely."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError:
        able = False  # the launcher starts the child without a server, and its log says what is missing
    else:
        able = _can_fork()
    _say(door, event="ready", able=able)
    return able


def _can_fork() -> bool:
    """Share all that was made so far with children; returns whether they could be forked safely."""
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, all that is shared
    return len(os.listdir("/proc/self/task")) == 1 and hasattr(os, "pidfd_open")


class ForkServer:
    """Forks children for the process at the other end of a socket, and tells it when they end."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._ends: dict[int, int] = {}
        """child -> its pidfd, which is readable once the child has ended."""
        self._zombies: set[int] = set()
        """Children that have ended and were not yet reaped."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(door, selectors.EVENT_READ)
        self._ending = False
        self._wake, signalled = socket.socketpair()
        for end in (self._wake, signalled):
            end.setblocking(False)
        self._signalled = signalled
        self._selector.register(self._wake, selectors.EVENT_READ)
        signal.set_wakeup_fd(signalled.fileno())
        signal.signal(signal.SIGTERM, self._end)

    def serve(self) -> dict[str, Any] | None:
        """Serve until the launcher closes the socket: None. Returns in every child too, with its request."""
        while not self._ending or self._ends or self._zombies:
            for key, _ in self._selector.select(BEAT_S):  # whether or not something comes, so that it shows its life
                if key.data is not None:
                    self._report_end(key.data)
                    continue
                if key.fileobj is self._wake:
                    self._wake.recv(PACKET_BYTES)
                    continue
                packet, descriptors, _, _ = socket.recv_fds(self._door, PACKET_BYTES, DESCRIPTORS)
                if not packet:
                    return None
                message = json.loads(packet)
                if message["event"] == "reap":
                    self._reap(message["pid"])
                elif (request := self._fork(descriptors)) is not None:
                    return request
        return None

    def _end(self, *_: object) -> None:
        self._ending = True

    def _fork(self, descriptors: list[int]) -> dict[str, Any] | None:
        """Fork a child; returns its request in the child, and None in the server."""
        server = os.getpid()
        in_session, has_session = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            _say(self._door, event="refused", errno=error.errno)
            pid = -1
        if pid == 0:
            die_with(server)
            os.setsid()
            self._forget_server()
            os.close(in_session)
            os.close(has_session)
            return _take_streams(descriptors)
        for descriptor in (*descriptors, has_session):
            os.close(descriptor)
        os.read(in_session, 1)  # ends when the child has its process group, to which signals are sent, or has ended
        os.close(in_session)
        if pid > 0:
            self._ends[pid] = os.pidfd_open(pid)
            self._selector.register(self._ends[pid], selectors.EVENT_READ, pid)
            _say(self._door, event="started", pid=pid)
        return None

    def _forget_server(self) -> None:
        """Close in a child what belongs to the server."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for socket_end in (self._wake, self._signalled):
            socket_end.close()
        self._selector.close()
        self._door.close()
        for end in self._ends.values():
            os.close(end)

    def _report_end(self, pid: int) -> None:
        self._selector.unregister(self._ends[pid])
        os.close(self._ends.pop(pid))
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert end is not None, "without WNOHANG it waits"
        self._zombies.add(pid)
        _say(self._door, event="ended", pid=pid, code=end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)

    def _reap(self, pid: int) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED)
        self._zombies.remove(pid)


def _say(door: socket.socket, **message: object) -> None:
    try:
        door.send(json.dumps(message).encode())
    except OSError:
        sys.exit(0)  # the launcher has ended


def _take_streams(descriptors: list[int]) -> dict[str, Any]:
    """Read a request, and put its three streams in the place of the server's."""
    with open(descriptors[0], "rb") as file:
        request = json.load(file)
    for number, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return dict(request)


def _settle(request: dict[str, Any]) -> None:
    """Take on the command line, the environment and the folder of a request."""
    # setproctitle finds the command line in memory beside the environment, so only while that is the original one.
    setproctitle(" ".join((sys.executable, "-P", str(Path(__file__).with_name("child.py")), *request["arguments"])))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    libc = ctypes.CDLL(None)
    for name, option in MALLOC_OPTIONS.items():
        if name in os.environ:
            value = int(os.environ[name])
            libc.mallopt(option, value if value < 1 << 31 else -1)  # an int; -1 is the largest size


def _fork_own_server(modules: list[str], code: str, warms_up: list[str]) -> dict[str, Any] | None:
    """Fork a server for the children of this process from what it has imported; in those, returns their request.

    What the server warms up, it does beside this process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        adopt_server(tuple(modules), code, pid, ours)
        return None
    die_with(parent)
    os.setsid()
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # the launcher reads stdout until it ends, with this process's parent
        os.dup2(nothing, stream)
    os.close(nothing)
    setproctitle(f"{sys.executable} -m {FORK_SERVER}")
    able = _warm_up(*warms_up) if warms_up else True
    _say(theirs, event="ready", able=able)
    request = ForkServer(theirs).serve() if able else None
    if request is None:
        os._exit(0)
    return request


def _warm_up(module: str, *arguments: str) -> bool:
    """Call a module's `warm_up`; returns whether children can still be forked. They meet its error themselves."""
    try:
        importlib.import_module(module).warm_up(*arguments)
    except Exception:
        traceback.print_exc()
    return _can_fork()


def _run(request: dict[str, Any], end: QuickEnd) -> None:
    """Run the module of a request, as child.py would in a process of its own."""
    show_life()
    module, *arguments = request["arguments"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        end.code = 0
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            end.code = (stop.code or 0) & 0xFF
        raise


if __name__ == "__main__":
    main()
