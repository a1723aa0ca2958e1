"""What starts a worker: its task file, and a command whose first line carries the keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleetune.contracts import json_io
from fleetune.launching import MALLOC_ENVIRONMENT, Command, thread_environment
from fleetune.links.authentication import KeyPair
from fleetune.models.source import local_folders, with_local_source
from fleetune.training.checkpoints import CHECKPOINTS, SAVING
from fleetune.training.task import TrainingTask, WorkerKeys, WorkerTask
from fleetune.training.worker_modules import WORKER_MODULES

WORKER = "fleetune.training.worker"
TASK = "task.json"


@dataclass(frozen=True, kw_only=True)
class WorkerCommands:
    """The commands of one run's workers; a device keeps its keys when its worker is started again."""

    task: TrainingTask
    run: str
    keys: Mapping[str, KeyPair]
    """Device -> its keys."""
    coordinator_address: str
    coordinator_public: bytes

    def log(self, device: str) -> Path:
        """Return the file that a device's worker writes its errors to."""
        return self.task.work / "workers" / device / "log"

    def of(self, device: str, state: Path | None = None, returns: bool = False) -> Command:
        """Write a device's task file, and return what starts its worker.

        state: folder of the checkpoint that it will read. returns: the others train on until it is loaded.
        """
        task, keys = self.task, self.keys
        folder = task.work / "workers" / device
        json_io.write(self._task(device, returns), folder / TASK)
        line = WorkerKeys(
            public=keys[device].public.decode(),
            secret=keys[device].secret.decode(),
            coordinator_address=self.coordinator_address,
            coordinator_public=self.coordinator_public.decode(),
            peers={name: pair.public.decode() for name, pair in keys.items() if name != device},
        )
        read = [task.model_folder, *local_folders(task.model), *([state] if state else [])]
        return Command(
            module=WORKER,
            arguments=("--task", str(folder / TASK)),
            preloads=WORKER_MODULES,
            watched=False,
            first_line=json_io.text(line).replace("\n", " ").encode(),
            environment={**MALLOC_ENVIRONMENT, **thread_environment(task.fleet.device(device).threads)},
            log=self.log(device),
            reads=(folder, *read, *(() if device in task.local else (task.data_folder,))),
            live_reads=(task.work / CHECKPOINTS,),
            writes=(task.work / SAVING / device,),
            device_writes=(task.local[device].folder.parent,) if device in task.local else (),
        )

    def _task(self, device: str, returns: bool = False) -> WorkerTask:
        task, facts, listen = self.task, self.task.fleet.device(device), self.task.sites.listen_settings(device)
        return WorkerTask(
            device=device,
            run=self.run,
            plan=task.plan.plan,
            dealt=task.dealt,
            model=with_local_source(task.model),
            training=task.training,
            seed=task.seed,
            model_folder=str(task.model_folder),
            data_folder=str(task.local[device].folder if device in task.local else task.data_folder),
            local_samples={owner: data.samples for owner, data in task.local.items()},
            work=str(task.work),
            accelerator=facts.accelerator,
            memory_bytes=facts.memory_bytes,
            cores=facts.cores if facts.emulated and facts.accelerator == "cpu" else None,
            threads=facts.threads,
            returns=returns,
            bind=listen.bind,
            address=listen.address,
            delays_s=dict(listen.delays_s),
        )
