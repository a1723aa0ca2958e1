"""The worker processes of a run, and the coordinator's messages with them."""

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from fleetune.clock import Clock
from fleetune.contracts.plan import Plan
from fleetune.errors import FleetuneError, Infeasible, Refused, TryAgain, by_exit_code
from fleetune.formatting import gigabytes
from fleetune.launching import Job, describe_exit, describe_used_memory
from fleetune.links.authentication import new_key_pair
from fleetune.links.endpoint import Listen
from fleetune.links.message import Message, Received
from fleetune.monitoring import EventLog
from fleetune.program import seats_of
from fleetune.recovery.holdings import Attempt
from fleetune.training.checkpoint_saver import DeviceShards, take_shards
from fleetune.training.checkpoints import CHECKPOINTS
from fleetune.training.device_watch import (
    DeviceWatch,
    FellSilent,
    Found,
    HeardAgain,
    Lost,
    MessageLost,
    NotBack,
    Said,
    in_background,
)
from fleetune.training.exchange import ABORT, BEAT_ACK, COORDINATOR_ALIVE, FIRST_ATTEMPT, Exchange, attempt_of
from fleetune.training.gradients import total_norm
from fleetune.training.liveness import Fault, Liveness, PeriodicThread
from fleetune.training.measurements import decode_rows
from fleetune.training.parcels import FETCH, PARCEL_BYTES
from fleetune.training.task import COORDINATOR, TrainingTask
from fleetune.training.worker_command import WorkerCommands


@dataclass(slots=True)
class StartedWorker:
    """A device's worker. It is `here` from its start, or its return, to its loss."""

    here: bool = True
    job: Job | None = None
    """The newest that was started with the others, or has said hello."""
    starting: Future[Job] | None = None
    """One that is started again and has not said hello yet; starting it may take seconds."""
    address: str = ""
    """Where it listens, once it has said hello."""
    returned: bool = False
    used: bool = True
    """False for one that has come back, or is spare, and has had no part in a plan since."""
    limited: bool = False
    """True once it is held to its device's CPU share."""

    def adopt(self, job: Job) -> None:
        """Take a process for the newest."""
        self.job, self.here, self.limited = job, True, False

    def take_failure(self) -> str:
        """Return why a process that was started again does not come, once; '' while it may."""
        if self.starting is None or not self.starting.done():
            return ""
        if (error := self.starting.exception()) is not None:
            why = f"could not be started again: {error}"
        elif (code := self.starting.result().poll()) is not None:
            why = f"was started again and {describe_exit(code)}"
        else:
            return ""
        self.starting = None
        return why

    def take_all(self) -> list[Job]:
        """Return all its processes; what has not begun to start is not started any more."""
        starting, self.starting = self.starting, None
        begun = starting is not None and not starting.cancel() and starting.exception() is None
        both = [self.job, starting.result() if starting is not None and begun else None]
        return [job for job in both if job is not None]


STARTING_S = 120.0
POLL_S = 0.04
"""Interval of the checks of devices; the end of a process or of a connection is found at once."""
ALIVE_INTERVAL_S = 2.0
FINAL_MESSAGE_S, MAX_REASON_CHARACTERS = 1.0, 2000
END_S = 3.0
"""Seconds that workers have to end when they are told to."""
DISMISSED_S = 1.0
"""Longest wait for the end of a device that was given up: its engine may be out of reach."""
WORKER_MESSAGES = ("hello", "loaded", "aborted", FETCH, "moved", "ready", "saved", "backed_up")
"""Kinds of messages that `receive` returns."""


class WorkerGroup:
    """The workers of all devices in a plan, started together and stopped together."""

    def __init__(self, task: TrainingTask, state: Path | None, events: EventLog) -> None:
        """Start all workers and wait for their first messages; TryAgain if one of them ends meanwhile.

        state: folder of the checkpoint that they will read.
        """
        self._task, self._events = task, events
        self.devices = (*task.plan.plan.devices, *task.spares)
        """All that are started, spares later."""
        run = secrets.token_hex(8)
        self._attempt = FIRST_ATTEMPT
        self._workers = {device: StartedWorker(here=device not in task.spares) for device in self.devices}
        self._received: list[Found] = []
        self._liveness = Liveness(COORDINATOR, task.plan.objective, time.monotonic)
        keys, own_keys = {device: new_key_pair() for device in self.devices}, new_key_pair()
        self._public = {device: pair.public for device, pair in keys.items()}
        self._starts = ThreadPoolExecutor(1, thread_name_prefix="start-again")
        self.plan_in_force: Callable[[], Plan] = lambda: task.plan.plan
        """The one whose work devices do."""
        listen = Listen(bind=task.sites.listen)
        self._endpoint = task.make_endpoint(
            COORDINATOR, own_keys, self._public, run=run, listen=listen, note=self._log_refused
        )
        self._commands = WorkerCommands(
            task=task,
            run=run,
            keys=keys,
            coordinator_address=self._endpoint.address,
            coordinator_public=own_keys.public,
        )
        self.exchange = Exchange(self._endpoint, COORDINATOR, torch.device("cpu"))
        """What sends tensors to workers."""
        self._watch = DeviceWatch(self._endpoint)
        self._alive_thread = PeriodicThread(self._announce_alive, lambda: ALIVE_INTERVAL_S)
        try:
            self._alive_thread.__enter__()
            self._start(state)
            self._connect_workers()
        except BaseException as error:
            self.end(at_once=not isinstance(error, Exception))
            raise

    @property
    def living(self) -> tuple[str, ...]:
        """Devices that were started and not lost."""
        return tuple(device for device, worker in self._workers.items() if worker.here)

    def now_s(self) -> float:
        """Return the time without the periods in which this process itself was suspended."""
        return self._liveness.now_s()

    def receive(self) -> list[Found]:
        """Return what has come or was found out, in this order, waiting for it up to POLL_S.

        Refused for a message that is malformed; the error of a worker that has failed in a way that no other one can
        make good; TryAgain if a link is down, or if nobody is heard.
        """
        if not self._received:
            self._receive_all()
            self._received += self._losses()
            for device, worker in self._workers.items():
                if why := worker.take_failure():
                    self._received.append(NotBack(device, why))
        found, self._received = self._received, []
        return found

    def begin_attempt(self, attempt: Attempt, devices: Sequence[str]) -> None:
        """Tell these devices to end their round; from now on messages of older attempts are dropped."""
        self._attempt = self.exchange.attempt = attempt
        self._received = [each for each in self._received if not (isinstance(each, Said) and self._is_old(each))]
        self._liveness.forgive(COORDINATOR, self._endpoint.lost_from)
        self.send(devices, ABORT, {"attempt": attempt})

    def give_up(self, device: str, kind: str, patience_s: float) -> Lost:
        """Return the loss of the device that is behind a missing message; TryAgain if it is none of them."""
        return self._lost(self._liveness.explain_timeout(device, kind, patience_s))

    def lost(self, device: str, why: str) -> Lost:
        """Return the loss of a device that cannot be reached."""
        return Lost(device, why, self._device_lost(device, why))

    def probe(self, device: str) -> None:
        """Ask a device for a sign of life; what follows is a `HeardAgain`, or a `Lost`."""
        self._liveness.begin_probe(device)
        worker = self._workers[device]
        self._watch.ask(device, worker.address, lambda: not worker.here)

    def dismiss(self, device: str) -> None:
        """End a device's process, if it lives, and listen to it no more."""
        worker = self._workers[device]
        worker.here, worker.address = False, ""
        self._liveness.remove_device(device)
        in_background(f"dismiss-{device}", lambda: self._job(device).stop(grace_s=0.0)).join(DISMISSED_S)

    def start_again(self, device: str) -> None:
        """Start the worker of a lost or spare device, without waiting for it: it says hello, or `NotBack` tells why
        not.
        """
        worker = self._workers[device]
        if worker.job is not None and worker.job.poll() is None:
            self._received.append(NotBack(device, "is not started again, as its worker has not ended"))
            return
        self._endpoint.disconnect(device)
        command = self._commands.of(device, returns=True)
        worker.starting = self._starts.submit(self._task.sites.launcher(device).start, command)

    @property
    def gone(self) -> tuple[str, ...]:
        """Devices that were lost, or not started yet."""
        return tuple(device for device, worker in self._workers.items() if not worker.here)

    @property
    def returned(self) -> dict[str, str]:
        """Device -> the address that it listens on, of those that have come back."""
        return {device: address for device, address in self._addresses.items() if self._workers[device].returned}

    @property
    def _addresses(self) -> dict[str, str]:
        return {device: worker.address for device, worker in self._workers.items() if worker.address}

    def _job(self, device: str) -> Job:
        job = self._workers[device].job
        assert job is not None, "a spare that was never started is asked nothing"
        return job

    def limit_cpu(self) -> None:
        """Hold the workers that have come since the last call to their devices' CPU shares, once they have loaded.

        Where that fails, as an engine cannot be asked, the user is told, and it is tried again with the next call.
        """
        for device in [each for each in self.living if not self._workers[each].limited]:
            try:
                self._job(device).limit_cpu()
            except TryAgain as error:
                self._task.note(f"device {device} may compute faster than its share: {error}")
            else:
                self._workers[device].limited = True

    def _is_old(self, said: Said) -> bool:
        try:
            return "attempt" in said.header and attempt_of(said.header) < self._attempt
        except (TypeError, ValueError) as error:
            raise Refused(f"device {said.device} sent a {said.kind!r} that cannot be read ({error})") from None

    def collect(self, devices: Iterable[str], shards: DeviceShards, round: int) -> None:
        """Take what these devices have written of the state after `round` rounds; TryAgain as `take_shards` says."""
        for device in devices:
            take_shards(self._task.work, round, device, self._job(device), shards.get(device, ()))

    def send(self, devices: Iterable[str], kind: str, header: dict[str, Any]) -> None:
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
        for device in self._addresses:
            if self._endpoint.connected(device):
                self._endpoint.send(device, Message("stop", {}))
        patience_s = time.monotonic() + (0.0 if at_once else END_S)

        def end(job: Job) -> None:
            if job.wait(max(0.0, patience_s - time.monotonic())) is None:
                job.stop(grace_s=0.0)

        for worker in self._workers.values():  # first, or each that is waited for would let the next one begin
            if worker.starting is not None:
                worker.starting.cancel()
        jobs = [job for worker in self._workers.values() for job in worker.take_all()]
        with ThreadPoolExecutor(max(1, len(jobs)), thread_name_prefix="end-worker") as pool:
            list(pool.map(end, jobs))
        self._starts.shutdown()  # only now, as these end with its thread
        self._watch.close()
        self._endpoint.close()

    def _start(self, state: Path | None) -> None:
        task = self._task
        task.work.joinpath(CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for device in self.living:
            seen = None if task.local else state  # owners of data are sent their own part of it: see `_is_away`
            self._adopt(device, task.sites.launcher(device).start(self._commands.of(device, seen)))

    def _adopt(self, device: str, job: Job) -> None:
        self._workers[device].adopt(job)
        self._watch.watch_end(device, job)

    def _connect_workers(self) -> None:
        """Send every worker the addresses of the others, once all have said hello."""
        give_up_s = self.now_s() + STARTING_S
        while late := [device for device in self.living if not self._workers[device].address]:
            for each in self.receive():
                if isinstance(each, Lost):
                    raise each.error
                if isinstance(each, MessageLost):
                    raise TryAgain(f"{each.why}; run again")
                if isinstance(each, FellSilent):
                    self.probe(each.device)
            if self.now_s() > give_up_s:
                raise self.give_up(late[0], "hello", STARTING_S).error
        self.send(self.living, "welcome", {"addresses": self._addresses})

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
        worker = self._workers[device]
        if worker.starting is not None and kind == "hello":
            self._welcome_back(device, header)
            self._received.append(Said(device, kind, header))
        if not worker.here:
            if kind == "beat" and worker.starting is None:  # it was frozen, or its engine was out of reach
                with suppress(FleetuneError):  # nothing leads to it since its new start, which failed
                    self._endpoint.send(device, Message("stop", {}))
        elif kind != "hello" or not worker.address:
            self._take_in(device, received)

    def _take_in(self, device: str, received: Received) -> None:
        """Handle a message of a device that is known and there."""
        kind, header = received.message.kind, received.message.header
        if kind == "beat":
            sent_s = self._liveness.record_beat(device, header, received.at_s)
            times = {"sent_s": sent_s, "came_s": received.at_s, "answered_s": time.monotonic()}
            self._endpoint.send(device, Message(BEAT_ACK, times))
            self._events.beat(device)
        elif kind == "failed":
            self._received.append(self._failed(device, header))
        elif kind in WORKER_MESSAGES:
            if kind == "hello":
                self._connect(device, header)
            if kind == "ready":
                rows, scores = received.message.parts[:1], received.message.parts[1:]
                header = {**header, "rows": decode_rows(device, rows), "scores": scores}
            if kind == "aborted":
                self._liveness.forgive(device, header.get("lost", {}))
            if kind == "moved" and device in self.plan_in_force().devices:
                self._workers[device].used = True
            if not self._is_old(said := Said(device, kind, header)):
                if kind == "ready":
                    check_report(device, header, [lane.name for lane in self.plan_in_force().lanes])
                self._received.append(said)
        else:
            raise Refused(f"device {device} sent {kind!r}, which is not a message of workers")

    def _connect(self, device: str, header: dict[str, Any]) -> None:
        """Connect to a worker by the address in its first message; Refused if the address is malformed."""
        if not self._workers[device].address:
            address = str(header.get("address"))
            self._endpoint.connect(device, address, self._public[device])
            self._workers[device].address = address
            self.exchange.split(device, PARCEL_BYTES)
            self._liveness.add_device(device)
            self._events.joined(device)

    def _welcome_back(self, device: str, header: dict[str, Any]) -> None:
        worker = self._workers[device]
        started, worker.starting = worker.starting, None
        assert started is not None, "it was started"
        self._adopt(device, started.result())
        self._connect(device, header)
        worker.returned, worker.used = True, False
        self.send([device], "welcome", {"addresses": self._addresses})

    def _announce_alive(self) -> None:
        """Send every worker a sign of life, without which it ends by itself; runs even while this process is busy."""
        for device in self._addresses:
            with suppress(FleetuneError):  # it was dismissed just now
                self._endpoint.send(device, Message(COORDINATOR_ALIVE, {}))

    def _failed(self, device: str, header: dict[str, Any]) -> Lost:
        """Return the loss of a device that no plan has used yet; else raise what it failed with, which ends all."""
        why, code = str(header.get("why"))[:MAX_REASON_CHARACTERS], header.get("exit_code")
        self._events.lost(device, why)
        said = f"device {device} failed: {why}; log: {self._commands.log(device)}"
        error = by_exit_code(code if isinstance(code, int) else TryAgain.exit_code, said)
        if not self._workers[device].used and isinstance(error, TryAgain):
            return Lost(device, f"failed: {why}", error)
        raise error

    def _losses(self) -> list[Found]:
        """Return what is lost or silent; a worker that has ended comes first, since other failures follow from it."""
        for device in self.living:
            code = self._job(device).poll()
            if code is not None:
                if code >= 0:
                    self._await_explanation()
                return [self._end_of(device, self._job(device), code)]
        down_s = self._endpoint.down_s
        for device in self._watch.answers():
            self._liveness.record_answer(device)
        found: list[Found] = [HeardAgain(device) for device in self._liveness.heard_again()]
        found += [FellSilent(device) for device in self._liveness.silent(down_s)]
        fault = self._liveness.find_fault(self._endpoint.lost_from, down_s)
        if fault is not None:
            found.append(MessageLost(*fault.link, fault.why) if fault.link is not None else self._lost(fault))
        return found

    def _await_explanation(self) -> None:
        """Handle messages until none has come for POLL_S: what an ended worker said of its end may still arrive."""
        began_s = heard_s = time.monotonic()
        while (now_s := time.monotonic()) < min(began_s + FINAL_MESSAGE_S, heard_s + POLL_S):
            if self._receive_all():
                heard_s = now_s

    def _end_of(self, device: str, job: Job, code: int) -> Lost:
        if job.out_of_memory:
            return self._out_of_memory(device, describe_used_memory(job))
        return Lost(device, describe_exit(code), self._device_lost(device, describe_exit(code)))

    def _out_of_memory(self, device: str, used: str) -> Lost:
        """Return the loss of a device, whose error names its memory, its use and the need by its profile."""
        memory = f"ran out of its {gigabytes(self._task.fleet.device(device).memory_bytes)}{used}"
        why = f"{memory} {describe_need(self._task, self.plan_in_force(), device)}"
        self._events.lost(device, why)
        return Lost(device, memory, Infeasible(f"device {device} {why}; log: {self._commands.log(device)}"))

    def _lost(self, fault: Fault) -> Lost:
        """Return the loss of a device; TryAgain for a fault of none."""
        if fault.device:
            return self.lost(fault.device, fault.why + describe_fullness(fault.device, self._job(fault.device)))
        self._events.lost("", fault.why)
        raise TryAgain(f"{fault.why}; run again to go on from the newest checkpoint")

    def _device_lost(self, device: str, why: str) -> TryAgain:
        self._events.lost(device, why)
        return TryAgain(
            f"device {device} {why}; run again to go on from the newest checkpoint; log: {self._commands.log(device)}"
        )

    def _log_refused(self, sentence: str) -> None:
        with (self._task.work / "refused.log").open("a", encoding="utf-8") as log:
            log.write(sentence + "\n")


Fields = Mapping[str, Any]


def check_report(device: str, header: Fields, lanes: Collection[str]) -> None:
    """Refuse a report whose fields cannot be read, or tell of lanes that the plan does not have."""
    try:
        _check_names(header["losses"], lanes)
        _check_names(header["norms"], lanes)
        _check_names(dict.fromkeys(header.get("overflowed", ())), lanes)
        total_norm(header["norms"].values())
        numbers = [header["peak_memory_bytes"], header.get("loss_scale", 1.0)]
        for number in (*numbers, *header["losses"].values(), *header["sent_bytes"].values()):
            if type(number) not in (int, float):
                raise TypeError(f"{str(number)[:40]!r} is no number")
            float(number)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise Refused(f"device {device} reports a round with fields that cannot be read ({error})") from None


def _check_names(found: Fields, known: Collection[str]) -> None:
    for name in found.keys() - set(known):
        raise ValueError(f"{str(name)[:40]!r} is not in its plan")


MEMORY_S, FULL = 0.3, 0.9
"""Longest wait for what the engine of a device that is given up tells of its memory; the share from which it is told.
"""


def describe_fullness(device: str, job: Job) -> str:
    """Return that a device's memory is full, as the end of a clause; empty if it is not, or its engine does not tell in
    time. Short of memory by little, a container reads its own code again and again, and says nothing.
    """
    told = list[float | None]()
    in_background(f"memory-of-{device}", lambda: told.append(job.memory_share())).join(MEMORY_S)
    share = told[0] if told else None
    return f", with {share:.0%} of its memory in use" if share is not None and share >= FULL else ""


def describe_need(task: TrainingTask, plan: Plan, device: str) -> str:
    """Return the end of a sentence about a device that lacks memory for its part of the plan in force."""
    seats = ", ".join(map(str, seats_of(plan, device))) or "no segment"
    needed = Clock(task.fleet, task.profile).memory_bytes(plan, device)
    return (
        f"while training {seats}: by its profile it needs {gigabytes(needed)}; lower training.micro_batch_samples, "
        "give it more memory or leave it out"
    )
