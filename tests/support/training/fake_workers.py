"""Fake workers: threads of the test that speak the real protocol over real links and follow a script."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch
import zmq

from fleetune.contracts import json_io
from fleetune.errors import TryAgain
from fleetune.launching import Command, Job
from fleetune.links.authentication import KeyPair
from fleetune.links.endpoint import Endpoint
from fleetune.training.exchange import Aborted, Exchange, Stopped
from fleetune.training.liveness import COMPUTING, Heartbeat, PeriodicThread
from fleetune.training.task import COORDINATOR, WorkerKeys, WorkerTask

BEAT_S = 0.02


class ExchangeOfThread(Exchange):
    """Ends the thread that receives once another one has stopped it, as the end of a process would."""

    def __init__(self, endpoint: Endpoint, stopped: threading.Event) -> None:
        super().__init__(endpoint, COORDINATOR, torch.device("cpu"))
        self._stopped = stopped

    def receive_next(self) -> None:
        """As an exchange does; Stopped once the other thread has said so."""
        if self._stopped.is_set():
            raise Stopped
        super().receive_next()


class FakeWorker:
    """One device. `script` is called in the worker's thread when a round starts."""

    pid = 0
    out_of_memory = False
    filled: float | None = None
    """What its engine would tell of its memory."""
    out_of_reach = False
    """True if its engine does not answer, so that nothing but the coordinator's word ends it."""
    welcomed = False
    """True once the coordinator has sent it the addresses of the others."""

    def __init__(
        self, command: Command, scripts: Mapping[str, "WorkerScript"], on_limit: "WorkerScript | None" = None
    ) -> None:
        """on_limit: what its engine does when it is asked to hold it to its CPU share; None: nothing."""
        task = json_io.read(WorkerTask, Path(command.arguments[1]))
        secrets = json_io.parse(WorkerKeys, command.first_line, "keys")
        self.device, self.returns = task.device, task.returns
        allowed = {name: key.encode() for name, key in secrets.peers.items()}
        allowed[COORDINATOR] = secrets.coordinator_public.encode()
        keys = KeyPair(public=secrets.public.encode(), secret=secrets.secret.encode())
        self.endpoint = Endpoint(task.device, keys, allowed, run=task.run, note=lambda _: None)
        self.endpoint.connect(COORDINATOR, secrets.coordinator_address, allowed[COORDINATOR])
        self._ended, self._stopped = threading.Event(), threading.Event()
        self.exchange = ExchangeOfThread(self.endpoint, self._stopped)
        self._on_limit = on_limit
        self._allowed, self._script = allowed, scripts.get(task.device, lambda worker: worker.wait_for_stop())
        threading.Thread(target=self._run, daemon=True).start()

    def wait_for_stop(self) -> None:
        """Keep sending beats until the coordinator says stop."""
        self.exchange.recv_control("nothing but stop")

    def fall_silent(self) -> None:
        """Say and answer nothing more, without an end, until it is stopped."""
        self.endpoint.close()
        self._stopped.wait()

    def skip(self, peer: str) -> None:
        """Lose a message to a peer; the next message reveals the gap."""
        # private: a connection loses a message only as it breaks, at no moment that one can choose
        self.endpoint._peers[peer]._sequence += 1

    def lines(self) -> Iterator[str]:
        """Return no lines: it has no stdout."""
        return iter(())

    def poll(self) -> int | None:
        """Return 0 once the thread has ended."""
        return 0 if self._ended.is_set() else None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the thread; return 0 once it has ended."""
        self._ended.wait(timeout_s)
        return self.poll()

    def stop(self, grace_s: float = 2.0) -> int:
        """Have its thread end, if it can be reached; only that one closes its links, since it may be connecting another
        one."""
        if self.out_of_reach:
            return 0
        self._stopped.set()
        self.endpoint.wake()
        self._ended.wait(grace_s)
        return 0

    def tail(self, lines: int = 10) -> str:
        """Return '': it has no log."""
        return ""

    def limit_cpu(self) -> None:
        """Do what was given for it: a thread has no CPU share."""
        if self._on_limit is not None:
            self._on_limit(self)

    def memory_share(self) -> float | None:
        """Return what the script says."""
        return self.filled

    def collect(self, folder: Path, into: Path) -> None:
        """Do nothing: it writes no files."""

    def _run(self) -> None:
        beat = Heartbeat(self.exchange, self.endpoint, COORDINATOR, lambda why: None)
        try:
            self.exchange.send_control("hello", {"address": self.endpoint.address, "pid": 0})
            with PeriodicThread(lambda: self._beat(beat), lambda: BEAT_S):
                addresses = self.exchange.recv_control("welcome").header["addresses"]
                self.welcomed = True
                for peer in (name for name in self._allowed if name not in (COORDINATOR, self.device)):
                    self.endpoint.connect(peer, addresses[peer], self._allowed[peer])
                beat.doing = COMPUTING  # silence is judged by beats, and not by a limit for loading
                if self.returns:
                    self.exchange.send_control("loaded", {})
                self._obey()
        except Stopped:
            pass
        finally:
            self.endpoint.close()
            self._ended.set()

    def _beat(self, beat: Heartbeat) -> None:
        """Beat, unless the links were closed just now."""
        with suppress(zmq.ZMQError, TryAgain):
            beat.beat()

    def _obey(self) -> None:
        """Answer what begins an attempt, and run the script when a round starts; an abort breaks it off."""
        while True:
            try:
                message = self.exchange.recv_control("move", "drop_old", "start")
                if message.kind == "move":
                    self.exchange.send_control("moved", {"attempt": self.exchange.attempt})
                elif message.kind == "start":
                    self._script(self)
                    return
            except Aborted as aborted:
                self.exchange.start_attempt(aborted.attempt)
                held = {"attempt": aborted.attempt, "holdings": [], "lost": dict(self.endpoint.lost_from)}
                self.exchange.send_control("aborted", held)


WorkerScript = Callable[[FakeWorker], None]


class FakeLauncher:
    """A launcher of fake workers; devices without a script only send beats."""

    def __init__(self, **scripts: WorkerScript) -> None:
        self._roles = scripts
        self.on_limit: WorkerScript | None = None
        """What engines do when they are asked to hold a worker to its CPU share."""
        self.workers: list[FakeWorker] = []

    def start(self, command: Command) -> Job:
        """Start a fake worker."""
        self.workers.append(FakeWorker(command, self._roles, self.on_limit))
        return self.workers[-1]
