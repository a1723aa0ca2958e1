"""A training that a service runs, with all processes that it consists of, for tests that interrupt it."""

import datetime
import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
import yaml

from fleetune.filesystem import file_digest
from tests.support.flows.service.client import ENDED, ServiceClient

FLOW = "flow_process"
RETRIES = 3
ROUNDS_BEFORE = 4
"""Rounds that every training has committed before it is interrupted."""
LOOKS = 10
"""Looks at the files of a run, of which one asks the server too."""
ROUNDS = 60
"""Rounds of each training: some seconds are left when it is in its midst."""
SAMPLE, PAUSE_S = 1_000_000, 0.2
"""Numbers that are added up by a computation that shows how busy the machine is, and the pause between two of them."""
QUICKEST_S = [math.inf]
"""Processor time of that computation, the quickest of all so far."""
SAID_LINES = 40
"""Last lines of the server that are shown with a training that did not end in time: a locked file makes it wait."""
CONFIG: dict[str, Any] = {
    "name": "small",
    "seed": 4,
    "fleet": {"devices": [{"name": "a", "emulate": {"cores": 0.1}}, {"name": "b", "emulate": {"cores": 0.1}}]},
    "model": {
        "task": "sequence-classification",
        "config": {
            "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 128, "vocab_size": 300,
        },
    },
    "data": {"source": "rows.jsonl", "max_length": 32},
    "training": {"rounds": ROUNDS, "batch_samples": 16, "micro_batch_samples": 4, "checkpoint_every_rounds": 1000},
    "strategy": {"name": "pp"},
}  # fmt: skip


def write_run_file(folder: Path, **sections: Any) -> Path:
    """A run file, with its data beside it, of a training without checkpoints by the clock; sections replace its own."""
    rows = [{"text": f"{i} {word} " * (1 + i % 4), "label": word} for i in range(40) for word in ("red", "green")]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({**CONFIG, **sections}))
    return file


class Training:
    """A flow run in the middle of its training, with the processes that it consists of."""

    names: ClassVar[tuple[str, ...]] = (FLOW, "stages.train", "stages.monitor", "training.worker")
    """What the command lines of its processes hold."""

    def __init__(
        self,
        service: ServiceClient,
        config: Path,
        learning_rate: float,
        started: Callable[[str], object] = str,
        **parameters: Any,
    ) -> None:
        """Start it, and wait for some rounds; the learning rate makes it a training of its own.

        `started` is called with the flow run's id before the wait. `parameters`: others of the form.
        """
        self.service, self.port = service, service.record.address.rpartition(":")[2]
        before = set((service.root / "work").glob("*"))
        changes = [f"training.learning_rate={learning_rate}", *parameters.pop("changes", ())]
        self.run = service.start(base=str(config), changes=changes, **parameters)
        started(self.run)

        looks = itertools.count()

        def begun() -> Path | None:
            new = set((service.root / "work").glob("*")) - before
            found = next((folder for folder in new if committed_rounds(folder)), None)
            if found is None and next(looks) % LOOKS == 0:
                shown = service.flow_run(self.run)
                assert shown["state_type"] not in ENDED, shown["state"]
            return found

        self.work: Path = service.until(begun)
        self.processes = self.find_processes()
        service.until(lambda: self.rounds > ROUNDS_BEFORE)

    def find_processes(self) -> list[psutil.Process]:
        """Its processes; at least one of each name, as soon as these have begun."""

        def found() -> list[psutil.Process]:
            of_names = {name: self.find(name) for name in self.names}
            self.flow = {process.pid for process in of_names[FLOW]}
            return [each for processes in of_names.values() for each in processes] if all(of_names.values()) else []

        return self.service.until(found)  # type: ignore[no-any-return]

    @property
    def rounds(self) -> int:
        """The number of committed rounds."""
        return committed_rounds(self.work)

    @property
    def saved(self) -> list[int]:
        """The rounds of its complete checkpoints, ascending."""
        return saved_rounds(self.work)

    @property
    def alive(self) -> list[Any]:
        """What of it has not ended."""
        return list(psutil.wait_procs(self.processes, timeout=0)[1])

    def terminate_all(self) -> None:
        """SIGTERM to every process of the service and of the run at once, as from a machine that shuts down."""
        keeper = psutil.Process(self.service.record.keeper)
        for process in (keeper, *keeper.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.terminate()

    def cut_power(self) -> None:
        """kill -9 of every process of the service and of the run, of which none sees the end of another one."""
        keeper = psutil.Process(self.service.record.keeper)
        family = [keeper, *keeper.children(recursive=True)]
        for end in (psutil.Process.suspend, psutil.Process.kill):
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    end(process)
        psutil.wait_procs(family)

    def goes_on(self) -> None:
        """Retry as the UI does, and wait for a round of the next attempt."""
        before, looks = self.rounds, itertools.count()
        self._press_retry()

        def went_on() -> bool:
            if next(looks) % LOOKS == 0 and self.service.flow_run(self.run)["state_name"] == "Cancelled":
                self._press_retry()
            return self.rounds > before

        self.service.until(went_on)
        self.processes = self.find_processes()

    def up(self) -> None:
        """Wait for the end of the service, and start it again on its port."""
        self.service.until(lambda: not self.service.files.starting())
        self.service.command("up", "--port", self.port)

    def kill(self, name: str) -> int:
        """kill -9 of the service's process whose command line holds `name`; its process id."""
        return self._signal(name, signal.SIGKILL)

    def terminate(self, name: str) -> int:
        """SIGTERM to the service's process whose command line holds `name`; its process id."""
        return self._signal(name, signal.SIGTERM)

    def _signal(self, name: str, number: int) -> int:
        found = {process.pid: process for process in self.find(name)}
        (process,) = [one for one in found.values() if _parent(one) not in found]  # no child of it before its exec
        os.kill(process.pid, number)
        return process.pid

    def end_in_s(self, limit_s: float) -> None:
        """Wait until nothing of it is left, and check the seconds until its devices were free; what the server said
        tells why. The process of its flow brings its last logs to the server before it ends, which a locked file holds
        up.
        """
        try:
            end_in_s(lambda: [each for each in self.alive if getattr(each, "pid", 0) not in self.flow], limit_s)
        except AssertionError as late:
            said = (self.service.files.folder / "server.log").read_text().splitlines()[-SAID_LINES:]
            late.add_note("\n".join(["the run:", self.service.logs(self.run), "the server:", *said]))
            raise
        self.service.until(lambda: not self.alive)

    def pause(self) -> None:
        """Pause as the UI's dialog does."""
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=300)
        details = {"pause_timeout": until.isoformat(), "pause_reschedule": True}
        state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
        self.service.call("POST", f"/flow_runs/{self.run}/set_state", {"state": state, "force": True})

    def retried(self) -> str:
        """Retry as the UI does, and wait for the end; the digest of the trained model."""
        before = self.rounds if self.work.exists() else 0
        for _ in range(RETRIES):
            self._press_retry()
            if self.service.ended(self.run)["state_name"] != "Cancelled":
                break
        return self.finished(before)

    def _press_retry(self) -> None:
        """Retry as the UI does. Prefect's runner may just be ending the process of a cancelled run, and then its signal
        meets the new process, whose run reads Cancelled: Retry has to be pressed again, as docs/daily-use.md says.
        """
        self.service.set_state(self.run, "SCHEDULED", "AwaitingRetry")

    def finished(self, before: int) -> str:
        """Wait for the end of the run, whose training has resumed after `before` rounds; its model's digest."""
        assert self.service.ended(self.run)["state_name"] == "Completed"
        assert self.service.logged(self.run, f"goes on from round {before} of ")
        return self.model_of(self.run)

    def model_of(self, flow_run: str) -> str:
        """Digest of the weights that a flow run has trained."""
        run = self.service.flow_run(flow_run)["parameters"]["base"]
        stages = json.loads((self.service.root / "runs" / run / "run.json").read_text())["stages"]
        digest = next(stage["outputs"]["checkpoint"] for stage in stages if stage["stage"] == "train")
        return file_digest(self.service.root / "artifacts" / "checkpoint" / digest / "model" / "model.safetensors")

    def find(self, name: str) -> list[psutil.Process]:
        """Processes of the service whose command line holds `name`."""
        return self.service.find(name)


def committed_rounds(work: Path) -> int:
    """The number of committed rounds of the training in a work folder."""
    log = work / "commits.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def saved_rounds(work: Path) -> list[int]:
    """The rounds of the complete checkpoints in a work folder, ascending."""
    return sorted(int(mark.parent.name.removeprefix("round-")) for mark in work.glob("checkpoints/*/round.json"))


def end_in_s(alive: Callable[[], Collection[object]], limit_s: float) -> None:
    """Wait until nothing is alive, and check the seconds that it took.

    Where other programs take their share of the processor, or it is slower than it was, the limit is as much longer as
    a computation takes than when it was quickest.
    """
    began_s, samples, wall_s = time.monotonic(), 0, 0.0
    while left := alive():
        at_s, cpu_s = time.monotonic(), time.thread_time()
        assert sum(range(SAMPLE)) > 0
        QUICKEST_S[0] = min(QUICKEST_S[0], time.thread_time() - cpu_s)
        samples, wall_s = samples + 1, wall_s + time.monotonic() - at_s
        took_s, slowness = time.monotonic() - began_s, max(1.0, wall_s / (samples * QUICKEST_S[0]))
        assert took_s < limit_s * slowness, f"{left} after {took_s:.1f} s, {slowness:.1f} times slower"
        time.sleep(PAUSE_S)


def _parent(process: psutil.Process) -> int:
    """Id of the parent; of an ended process its own."""
    try:
        return process.ppid()
    except psutil.Error:
        return process.pid
