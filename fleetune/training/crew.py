"""The worker processes of a run: started together, heard one by one, ended together."""

import secrets
import time
from pathlib import Path
from typing import Any, Self

from fleetune.clock import Clock
from fleetune.contracts import wire
from fleetune.contracts.fleet import PROCESS
from fleetune.errors import Infeasible, TryAgain, by_exit_code
from fleetune.launching import KEEPS_MEMORY, Command, Job, exit_in_words
from fleetune.links.endpoint import Endpoint, Listen
from fleetune.links.keys import KeyPair, new_key_pair
from fleetune.links.message import Message
from fleetune.models.source import folders, settled
from fleetune.monitoring import EventLog, Watch
from fleetune.training.checkpoints import CHECKPOINTS, newest_whole
from fleetune.training.place import place_of
from fleetune.training.task import Secrets, TrainingTask, WorkerTask
from fleetune.training.worker import COORDINATOR

TASK = "task.json"
STARTING_S = 120.0
LOADING_S = 900.0  # weights of a large model come from a disk
SILENCE_S = 10.0
POLL_S = 0.2
LAST_WORDS_S = 1.0


class Crew:
    """Workers of every device in a plan, with the coordinator's end of their links."""

    def __init__(self, task: TrainingTask, first_round: int, events: EventLog) -> None:
        self._task, self._events = task, events
        self.devices = task.plan.plan.devices
        self._run = secrets.token_hex(8)
        self._first_round = first_round
        self._jobs: dict[str, Job] = {}
        self._kept: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        stuck_s = max(60.0, 50.0 * task.plan.objective)
        self._watch = Watch((), limit_s=SILENCE_S, clock=time.monotonic, stuck_limit_s=stuck_s)
        keys = {device: new_key_pair() for device in self.devices}
        self._keys = new_key_pair()
        self._public = {device: pair.public for device, pair in keys.items()}
        self._known: set[str] = set()
        listen = Listen(bind=task.sites.listen)
        self._endpoint = Endpoint(
            COORDINATOR, self._keys, self._public, run=self._run, listen=listen, note=self._refused
        )
        try:
            self._start(keys)
        except BaseException:
            self.end()
            raise

    def gather(self, kind: str, devices: tuple[str, ...], patience_s: float) -> dict[str, dict[str, Any]]:
        """The header of one message of this kind from each device; TryAgain when one fails or stays away."""
        found: dict[str, dict[str, Any]] = {}
        give_up_s = time.monotonic() + patience_s
        while len(found) < len(devices):
            for device in devices:
                for place, (other, header) in enumerate(self._kept.get(device, [])):
                    if other == kind and device not in found:
                        found[device] = header
                        self._kept[device].pop(place)
                        break
            if len(found) == len(devices):
                break
            self._hear()
            self._check_jobs()
            if time.monotonic() > give_up_s:
                late = [d for d in devices if d not in found]
                raise self._lost(late[0], f"did not say {kind!r} within {patience_s:.0f} s")
        return found

    def collect(self, devices: tuple[str, ...], folder: Path) -> None:
        """Have what these devices have written to a folder here."""
        for device in devices:
            self._jobs[device].collect(folder)

    def tell(self, kind: str, header: dict[str, Any]) -> None:
        """Send a control message to every worker."""
        for device in self.devices:
            self._endpoint.send(device, Message(kind, header))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop every worker and the coordinator's links; safe to repeat."""
        for device in self._known:
            if self._endpoint.connected(device):
                self._endpoint.send(device, Message("stop", {}))
        patience_s = time.monotonic() + 3.0
        for job in self._jobs.values():
            if job.wait(max(0.0, patience_s - time.monotonic())) is None:
                job.stop(grace_s=1.0)
        self._endpoint.close()

    def _start(self, keys: dict[str, KeyPair]) -> None:
        task = self._task
        found = newest_whole(task.work)
        state = found[0] if found else None
        read = [task.profile_folder, task.data_folder, *folders(task.model), *([state] if state else [])]
        task.work.joinpath(CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for device in self.devices:
            folder = task.work / "workers" / device
            wire.write(self._worker_task(device, state), folder / TASK)
            others = {name: pair.public.decode() for name, pair in keys.items() if name != device}
            line = Secrets(
                public=keys[device].public.decode(),
                secret=keys[device].secret.decode(),
                coordinator_address=self._endpoint.address,
                coordinator_public=self._keys.public.decode(),
                peers=others,
            )
            command = Command(
                module="fleetune.training.worker",
                arguments=("--task", str(folder / TASK)),
                first_line=wire.text(line).replace("\n", " ").encode(),
                environment=KEEPS_MEMORY,
                log=self._log(device),
                reads=(folder, *read),
                writes=(task.work / CHECKPOINTS,),
            )
            self._jobs[device] = task.sites.launcher(device).start(command)
        self._introduce()

    def _worker_task(self, device: str, state: Path | None) -> WorkerTask:
        task, facts, door = self._task, self._task.fleet.device(device), self._task.sites.door(device)
        return WorkerTask(
            device=device,
            run=self._run,
            plan=task.plan.plan,
            model=settled(task.model),
            training=task.training,
            seed=task.seed,
            profile_folder=str(task.profile_folder),
            data_folder=str(task.data_folder),
            work=str(task.work),
            accelerator=facts.accelerator,
            cores=facts.cores if facts.emulated and facts.launcher == PROCESS else None,
            first_round=self._first_round,
            state=str(state) if state else None,
            bind=door.bind,
            address=door.address,
            delays_s=dict(door.delays_s),
        )

    def _introduce(self) -> None:
        """Tell every worker where the others are."""
        addresses = {d: str(h["address"]) for d, h in self.gather("hello", self.devices, STARTING_S).items()}
        self.tell("welcome", {"addresses": addresses})
        self.gather("loaded", self.devices, LOADING_S)
        for job in self._jobs.values():
            job.hold()
        self.tell("begin", {"round": self._first_round})

    def _hear(self) -> bool:
        """Take one message; False when none came within POLL_S."""
        received = self._endpoint.receive(POLL_S)
        if received is None:
            return False
        device, kind, header = received.sender, received.message.kind, received.message.header
        if kind == "ping":
            self._answer(device, header)
        elif kind == "beat":
            if device not in self._watch.devices:
                self._watch.add(device)
            self._watch.beat(device, int(header["progress"]), bool(header["working"]))
            self._events.beat(device)
        elif kind == "failed":
            self._events.lost(device, str(header["why"]))
            raise by_exit_code(
                int(header["exit_code"]), f"device {device} failed: {header['why']}; log: {self._log(device)}"
            )
        else:
            self._kept.setdefault(device, []).append((kind, header))
        return True

    def _answer(self, device: str, header: dict[str, Any]) -> None:
        if device not in self._known:
            self._known.add(device)
            self._endpoint.connect(device, str(header["address"]), self._public[device])
            self._events.joined(device)
        self._endpoint.send(device, Message("pong", {"now_s": time.monotonic()}))

    def _check_jobs(self) -> None:
        for device, job in self._jobs.items():
            code = job.poll()
            if code is not None:
                until_s = time.monotonic() + LAST_WORDS_S  # its own explanation may still be on its way
                while time.monotonic() < until_s and self._hear():
                    pass
                raise self._too_small(device) if job.out_of_memory else self._lost(device, exit_in_words(code))
        for concern in self._watch.concerns():
            raise self._lost(concern.device, f"is {concern.kind} for {concern.since_s:.0f} s")

    def _too_small(self, device: str) -> Infeasible:
        """What ran out, of what, and for what."""
        task, place = self._task, place_of(self._task.plan.plan, device)
        needed = Clock(task.fleet, task.profile).memory_bytes(task.plan.plan, device)
        why = (
            f"ran out of its {task.fleet.device(device).memory_bytes / 1e9:.2f} GB while training segment "
            f"{place.index} ({len(place.segment.units)} units): by its profile it needs {needed / 1e9:.2f} GB; "
            "lower training.micro_batch_samples, give it more memory or leave it out"
        )
        self._events.lost(device, why)
        return Infeasible(f"device {device} {why}; log: {self._log(device)}")

    def _lost(self, device: str, why: str) -> TryAgain:
        self._events.lost(device, why)
        return TryAgain(
            f"device {device} {why}; run again to go on from the newest checkpoint; log: {self._log(device)}"
        )

    def _log(self, device: str) -> Path:
        return self._task.work / "workers" / device / "log"

    def _refused(self, sentence: str) -> None:
        with (self._task.work / "refused.log").open("a", encoding="utf-8") as log:
            log.write(sentence + "\n")
