"""Four processes with the cores of environment D, on paced links, and a small BERT that they train."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.runtime.workload import BATCH_SAMPLES, MICRO_BATCH_SAMPLES, training
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet, Link
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import LinkUse, Plan, PlanResult
from fleetune.contracts.profile import DeviceTimes, Profile
from fleetune.contracts.run_config import DataRequest, Lora, ModelRequest
from fleetune.launching import Command, Job, LocalSites, ProcessLauncher, Sites
from fleetune.launching.placement import ListenSettings
from fleetune.monitoring import Event
from fleetune.planning import Problem, solve
from fleetune.preparation.prepare import PreparationTask, write_artifacts
from fleetune.profiling.profile import unit_sizes
from fleetune.profiling.simulated import unit_work
from fleetune.training.coordinator import train
from fleetune.training.task import TrainingTask

CORES = {"tx2-0": 0.5, "nano-0": 0.25, "nano-1": 0.25, "nano-2": 0.25}
"""Environment D of the Asteroid paper: a TX2 computes about twice as fast as a Nano."""
BYTES_PER_S, LATENCY_S = 12.5e6, 3e-4
FLOPS_PER_CORE_S = 2e10
"""Roughly a core's, for matrices of this size; plans need it for the balance between computing and sending."""
CONFIG = {
    "model_type": "bert", "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 300,
}  # fmt: skip
SEED = 1
PACED = 0.99
"""Share of a link that makes its sender keep to the link's rate: loopback is faster."""
Revise = Callable[[Problem, Plan, Collection[str]], PlanResult]


class PacedSites(LocalSites):
    """Processes whose messages to each other arrive after the latency of a link."""

    def listen_settings(self, device: str) -> ListenSettings:
        """Return the delays of what a device receives."""
        return ListenSettings(delays_s={other: LATENCY_S for other in CORES if other != device})


@dataclass(frozen=True)
class Workload:
    """A prepared model, and the problem of planning it on the four devices."""

    folder: Path
    model: ModelRequest
    problem: Problem

    def plan(self) -> PlanResult:
        """Return asteroid's plan with backups, on all devices."""
        return paced(solve("asteroid", replace(self.problem, options={**self.problem.options, "every_device": True})))

    def task(self, plan: PlanResult, rounds: int, name: str, **changes: Any) -> TrainingTask:
        """Return a training of a plan in a folder of this name."""
        return TrainingTask(
            plan=plan,
            fleet=self.problem.fleet,
            profile=self.problem.profile,
            model_folder=self.folder / "model",
            data_folder=self.folder / "data",
            model=self.model,
            training=training(rounds),
            seed=SEED,
            work=self.folder / name / "work",
            output=self.folder / name / "output",
            **{"sites": PacedSites(), **changes},
        )


def prepare_workload(folder: Path, lora: bool = False) -> Workload:
    """Write the model, with random weights, and its data; describe the devices by their stated cores."""
    folder.mkdir(parents=True)
    rows = [{"text": f"{k} " + f"{word} " * (1 + k % 7), "label": word} for k in range(40) for word in ("a", "b", "c")]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    adapters = Lora(targets=("query", "value")) if lora else None
    model = ModelRequest(task="sequence-classification", config=CONFIG, lora=adapters)
    data = DataRequest(source=str(folder / "rows.jsonl"), max_length=32)
    graph, module = write_artifacts(
        PreparationTask(model=model, data=data, seed=SEED, model_folder=folder / "model", data_folder=folder / "data")
    )
    work = unit_work(graph, module)
    sizes = (1, MICRO_BATCH_SAMPLES)

    def times(device: str, flops: Sequence[int]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(n * each / (FLOPS_PER_CORE_S * CORES[device]) for n in sizes) for each in flops)

    profile = Profile(
        model="bert",
        units=unit_sizes(
            graph,
            module,
            [each.activation_bytes for each in work],
            [each.forward_flops for each in work],
            MICRO_BATCH_SAMPLES,
        ),
        batch_sizes=sizes,
        times=tuple(
            DeviceTimes(
                device=device,
                runtime_bytes=1 << 29,
                forward_s=times(device, [each.forward_flops for each in work]),
                backward_s=times(device, [each.backward_flops for each in work]),
            )
            for device in CORES
        ),
    )
    problem = Problem(
        fleet=_fleet(),
        profile=profile,
        micro_batch_samples=MICRO_BATCH_SAMPLES,
        micro_batches=BATCH_SAMPLES // MICRO_BATCH_SAMPLES,
        seed=SEED,
        options={"backups": 1},
    )
    return Workload(folder, model, problem)


def paced(result: PlanResult) -> PlanResult:
    """Return the plan whose devices send at the links' rates."""
    links = tuple(LinkUse(source=a, target=b, share=PACED) for a in CORES for b in CORES if a != b)
    return replace(result, plan=replace(result.plan, links=links))


def _fleet() -> Fleet:
    devices = tuple(
        Device(name=name, memory_bytes=4 << 30, cores=cores, emulated=True, fingerprint="benchmark")
        for name, cores in CORES.items()
    )
    links = tuple(
        Link(source=a, target=b, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) for a in CORES for b in CORES if a != b
    )
    return Fleet(devices=devices, links=links)


@dataclass
class Injection:
    """Sends a signal to one device's process in the middle of a round; the launcher and the listener of a training."""

    device: str
    number: signal.Signals
    after_rounds: int
    at_s: float = 0.0
    """When it was sent, in seconds since 1970."""
    _jobs: dict[str, Job] = field(default_factory=dict)
    _committed_s: float = 0.0
    _begun: bool = False

    def start(self, command: Command) -> Job:
        """Start a worker."""
        job = ProcessLauncher().start(command)
        self._jobs[Path(command.arguments[1]).parent.name] = job
        return job

    def listen(self, what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
        """Take note of a commit; after enough of them send the signal a third of a round later."""
        now_s = time.monotonic()
        if done / BATCH_SAMPLES >= self.after_rounds and not self._begun:
            self._begun = True
            threading.Timer((now_s - self._committed_s) / 3, self._send).start()
        self._committed_s = now_s

    def _send(self) -> None:
        self.at_s = time.time()
        os.kill(self._jobs[self.device].pid, self.number)


@dataclass(frozen=True)
class Recovery:
    """What a training went through after it lost a device."""

    device: str
    detected_s: float
    """From the fault to its entry in the event log."""
    recovered_s: float
    """From there to the first round that is committed."""
    moved_bytes: int
    rounds_again: int
    """Rounds that were run again, beside the broken one."""
    round_s: float
    """Median round afterwards."""


def lose(
    workload: Workload, plan: PlanResult, injection: Injection, revise: Revise, name: str, sites: Sites | None = None
) -> Recovery:
    """Train, and lose a device on the way; return how the training went on. sites: None for processes."""
    task = workload.task(
        plan,
        injection.after_rounds + 4,
        name,
        sites=sites or PacedSites(injection),
        progress=injection.listen,
        revise=lambda before, lost: paced(revise(workload.problem, replace(before, links=()), lost)),
    )
    train(task)
    events = _events(task.output)
    at = next(k for k, event in enumerate(events) if event.event == "lost")
    lost, after = events[at], events[at:]
    assert lost.device == injection.device, f"{lost.device} was lost instead of {injection.device}: {lost.reason}"
    moved = next(event for event in reversed(after) if event.event == "resuming")
    commits_s = [event.at_s for event in after if event.event == "committed"]
    metrics = json_io.read(TrainingMetrics, task.output / "metrics" / "training.json")
    rounds_s = sorted(each.round_s for each in metrics.rounds[-3:])
    return Recovery(
        device=lost.device,
        detected_s=lost.at_s - injection.at_s,
        recovered_s=commits_s[0] - lost.at_s,
        moved_bytes=moved.moved_bytes,
        rounds_again=moved.rounds,
        round_s=rounds_s[1],
    )


def commit_intervals_s(workload: Workload, plan: PlanResult, rounds: int, name: str) -> list[float]:
    """Train; return the seconds from each commit to the next, without those of the first two and the last round."""
    task = workload.task(plan, rounds, name)
    train(task)
    commits_s = [event.at_s for event in _events(task.output) if event.event == "committed"]
    return [after - before for before, after in zip(commits_s[1:-2], commits_s[2:-1], strict=True)]


def _events(output: Path) -> list[Event]:
    lines = (output / "metrics" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [json_io.parse(Event, line, "events") for line in lines]
