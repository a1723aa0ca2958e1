"""The worker processes of a run, and the coordinator's messages with them."""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fleetune.clock import Clock
from fleetune.contracts import json_io
from fleetune.contracts.fleet import PROCESS
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain, by_exit_code
from fleetune.formatting import gigabytes
from fleetune.launching import (
    MALLOC_ENVIRONMENT,
    Command,
    Job,
    describe_exit,
    describe_used_memory,
    thread_environment,
)
from fleetune.links.authentication import KeyPair, new_key_pair
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.message import Message, Received
from fleetune.models.source import local_folders, with_local_source
from fleetune.monitoring import EventLog
from fleetune.program import seats_of
from fleetune.training.checkpoints import CHECKPOINTS, StoredCheckpoint
from fleetune.training.exchange import BEAT_ACK, COORDINATOR_ALIVE
from fleetune.training.liveness import LOADING_S, Fault, Liveness, PeriodicThread
from fleetune.training.measurements import decode_rows
from fleetune.training.task import COORDINATOR, TrainingTask, WorkerKeys, WorkerTask

WORKER = "fleetune.training.worker"
TASK = "task.json"
STARTING_S = 120.0
POLL_S = 0.2
ALIVE_INTERVAL_S = 2.0
FINAL_MESSAGE_S = 1.0
MAX_REASON_CHARACTERS = 2000
END_S = 3.0
"""Seconds that workers have to end when they are told to."""
WORKER_MESSAGES = ("hello", "loaded", "ready", "saved")
"""Kinds of messages that `gather` waits for."""


class StopAsked(Exception):
    """Raised when the run is told to end; not an error."""


class WorkerGroup:
    """The workers of all devices in a plan, started together and stopped together."""

    def __init__(self, task: TrainingTask, found: StoredCheckpoint | None, events: EventLog) -> None:
        """found: the checkpoint to resume from."""
        self._task, self._events = task, events
        self.devices = task.plan.plan.devices
        self._run = secrets.token_hex(8)
        self._first_round = found.mark.round if found else 0
        self._state = found.folder if found else None
        self._jobs: dict[str, Job] = {}
        self._pending: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        self._liveness = Liveness(COORDINATOR, task.plan.objective, time.monotonic)
        keys = {device: new_key_pair() for device in self.devices}
        self._keys = new_key_pair()
        self._public = {device: pair.public for device, pair in keys.items()}
        self._connected: set[str] = set()
        listen = Listen(bind=task.sites.listen)
        self._endpoint = Endpoint(
            COORDINATOR, self._keys, self._public, run=self._run, listen=listen, note=self._log_refused
        )
        self._alive_thread = PeriodicThread(self._announce_alive, lambda: ALIVE_INTERVAL_S)
        try:
            self._alive_thread.__enter__()
            self._start(keys)
        except BaseException as error:
            self.end(at_once=not isinstance(error, Exception))
            raise

    def gather(
        self, kind: str, devices: tuple[str, ...], patience_s: float, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, dict[str, Any]]:
        """Return the header of one message of this kind from each device.

        TryAgain if a device fails or is too late; StopAsked as soon as `stop` returns True.
        """
        found: dict[str, dict[str, Any]] = {}
        give_up_s = self._liveness.now_s() + patience_s
        while len(found) < len(devices):
            if stop():
                raise StopAsked
            for device in devices:
                for index, (other, header) in enumerate(self._pending.get(device, [])):
                    if other == kind and device not in found:
                        found[device] = header
                        self._pending[device].pop(index)
                        break
            if len(found) == len(devices):
                break
            self._receive_all()
            self._raise_failures()
            if self._liveness.now_s() > give_up_s:
                late = next(device for device in devices if device not in found)
                raise self._fault_error(self._liveness.explain_timeout(late, kind, patience_s))
        return found

    def collect(self, devices: tuple[str, ...], folder: Path) -> None:
        """Copy the files that these devices have written to a local folder."""
        for device in devices:
            self._jobs[device].collect(folder)

    def broadcast(self, kind: str, header: dict[str, Any]) -> None:
        """Send a control message to every worker."""
        self.send(self.devices, kind, header)

    def send(self, devices: tuple[str, ...], kind: str, header: dict[str, Any]) -> None:
        """Send a control message to these workers."""
        for device in devices:
            self._endpoint.send(device, Message(kind, header))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(at_once=self._task.stop.asked or not isinstance(error, Exception | None))

    def end(self, at_once: bool = False) -> None:
        """Stop every worker and the coordinator's links; `at_once`: without waiting for what they do. Repeatable."""
        self._alive_thread.__exit__()
        for device in self._connected:
            if self._endpoint.connected(device):
                self._endpoint.send(device, Message("stop", {}))
        patience_s = time.monotonic() + (0.0 if at_once else END_S)

        def end(job: Job) -> None:
            if job.wait(max(0.0, patience_s - time.monotonic())) is None:
                job.stop(grace_s=0.0)

        with ThreadPoolExecutor(max(1, len(self._jobs)), thread_name_prefix="end-worker") as pool:
            list(pool.map(end, self._jobs.values()))
        self._endpoint.close()

    def _start(self, keys: dict[str, KeyPair]) -> None:
        task = self._task
        state = self._state
        read = [task.model_folder, *local_folders(task.model), *([state] if state else [])]
        task.work.joinpath(CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for device in self.devices:
            folder = task.work / "workers" / device
            json_io.write(self._worker_task(device, state), folder / TASK)
            others = {name: pair.public.decode() for name, pair in keys.items() if name != device}
            line = WorkerKeys(
                public=keys[device].public.decode(),
                secret=keys[device].secret.decode(),
                coordinator_address=self._endpoint.address,
                coordinator_public=self._keys.public.decode(),
                peers=others,
            )
            command = Command(
                module=WORKER,
                arguments=("--task", str(folder / TASK)),
                first_line=json_io.text(line).replace("\n", " ").encode(),
                environment={**MALLOC_ENVIRONMENT, **thread_environment(task.fleet.device(device).threads)},
                log=self._log(device),
                reads=(folder, *read, *(() if device in task.local else (task.data_folder,))),
                writes=(task.work / CHECKPOINTS,),
                device_writes=(task.local[device].folder.parent,) if device in task.local else (),
            )
            self._jobs[device] = task.sites.launcher(device).start(command)
        self._connect_workers()

    def _worker_task(self, device: str, state: Path | None) -> WorkerTask:
        task, facts, listen = self._task, self._task.fleet.device(device), self._task.sites.listen_settings(device)
        return WorkerTask(
            device=device,
            run=self._run,
            plan=task.plan.plan,
            model=with_local_source(task.model),
            training=task.training,
            seed=task.seed,
            model_folder=str(task.model_folder),
            data_folder=str(task.local[device].folder if device in task.local else task.data_folder),
            local_samples={owner: data.samples for owner, data in task.local.items()},
            work=str(task.work),
            accelerator=facts.accelerator,
            cores=facts.cores if facts.emulated and facts.launcher == PROCESS else None,
            threads=facts.threads,
            first_round=self._first_round,
            state=str(state) if state else None,
            bind=listen.bind,
            address=listen.address,
            delays_s=dict(listen.delays_s),
            paced_bytes_per_s={
                use.target: use.share * task.fleet.link(device, use.target).bytes_per_s
                for use in task.plan.plan.links
                if use.source == device and use.share < 1
            },
        )

    def _connect_workers(self) -> None:
        """Send every worker the addresses of the others, and begin once all have loaded."""
        addresses = {d: str(h["address"]) for d, h in self.gather("hello", self.devices, STARTING_S).items()}
        self.broadcast("welcome", {"addresses": addresses})
        self.gather("loaded", self.devices, LOADING_S)
        for job in self._jobs.values():
            job.limit_cpu()
        self.broadcast("begin", {"round": self._first_round})

    def _receive_all(self) -> bool:
        """Handle all messages that have arrived, waiting up to POLL_S for the first; return whether there was one."""
        began_s = time.monotonic()
        received = self._endpoint.receive(POLL_S)
        heard = received is not None
        while received is not None:
            self._handle(received)
            if received.at_s > began_s:  # a device that sends all the time must not starve the checks
                break
            received = self._endpoint.receive(0)
        return heard

    def _handle(self, received: Received) -> None:
        device, kind, header = received.sender, received.message.kind, received.message.header
        if kind == "beat":
            sent_s = self._liveness.record_beat(device, header, received.at_s)
            times = {"sent_s": sent_s, "came_s": received.at_s, "answered_s": time.monotonic()}
            self._endpoint.send(device, Message(BEAT_ACK, times))
            self._events.beat(device)
        elif kind == "failed":
            raise self._worker_failed(device, header)
        elif kind in WORKER_MESSAGES:
            if kind == "hello":
                self._connect(device, header)
            if kind == "ready":
                header = {**header, "rows": decode_rows(device, received.message.parts)}
            self._pending.setdefault(device, []).append((kind, header))
        else:
            raise Refused(f"device {device} sent {kind!r}, which is not a message of workers")

    def _connect(self, device: str, header: dict[str, Any]) -> None:
        """Connect to a worker by the address in its first message; Refused if the address is malformed."""
        if device not in self._connected:
            self._endpoint.connect(device, str(header.get("address")), self._public[device])
            self._connected.add(device)
            self._liveness.add_device(device)
            self._events.joined(device)

    def _announce_alive(self) -> None:
        """Send every worker a sign of life, without which it ends by itself; runs even while this process is busy."""
        for device in list(self._connected):
            self._endpoint.send(device, Message(COORDINATOR_ALIVE, {}))

    def _worker_failed(self, device: str, header: dict[str, Any]) -> FleetuneError:
        why, code = str(header.get("why"))[:MAX_REASON_CHARACTERS], header.get("exit_code")
        self._events.lost(device, why)
        return by_exit_code(
            code if isinstance(code, int) else TryAgain.exit_code,
            f"device {device} failed: {why}; log: {self._log(device)}",
        )

    def _raise_failures(self) -> None:
        """Raise the known failure; a worker that has ended comes first, since other failures follow from it."""
        for device, job in self._jobs.items():
            code = job.poll()
            if code is not None:
                until_s = time.monotonic() + FINAL_MESSAGE_S  # its own explanation may still arrive
                while time.monotonic() < until_s and self._receive_all():
                    pass
                if job.out_of_memory:
                    raise self._out_of_memory(device, describe_used_memory(job))
                raise self._device_lost(device, describe_exit(code))
        fault = self._liveness.find_fault(self._endpoint.lost_from, self._endpoint.down_s)
        if fault is not None:
            raise self._fault_error(fault)

    def _out_of_memory(self, device: str, used: str) -> Infeasible:
        """Return the error that names the device's memory, its use and the need by its profile."""
        task, seats = self._task, ", ".join(map(str, seats_of(self._task.plan.plan, device))) or "no segment"
        needed = Clock(task.fleet, task.profile).memory_bytes(task.plan.plan, device)
        why = (
            f"ran out of its {gigabytes(task.fleet.device(device).memory_bytes)}{used} while training {seats}: by its "
            f"profile it needs {gigabytes(needed)}; "
            "lower training.micro_batch_samples, give it more memory or leave it out"
        )
        self._events.lost(device, why)
        return Infeasible(f"device {device} {why}; log: {self._log(device)}")

    def _fault_error(self, fault: Fault) -> TryAgain:
        if fault.device:
            return self._device_lost(fault.device, fault.why)
        self._events.lost("", fault.why)
        return TryAgain(f"{fault.why}; run again to go on from the newest checkpoint")

    def _device_lost(self, device: str, why: str) -> TryAgain:
        self._events.lost(device, why)
        return TryAgain(
            f"device {device} {why}; run again to go on from the newest checkpoint; log: {self._log(device)}"
        )

    def _log(self, device: str) -> Path:
        return self._task.work / "workers" / device / "log"

    def _log_refused(self, sentence: str) -> None:
        with (self._task.work / "refused.log").open("a", encoding="utf-8") as log:
            log.write(sentence + "\n")
