"""Subnets of a profile: a model's attention heads with their scores and their shares of units.

Scores do not depend on the device, so only the device with the most memory computes them, after all timing; for
simulated devices this machine does. They depend on data and seed and are never cached.
"""

import psutil
from torch import nn

from fleetune.contracts.fleet import Device
from fleetune.contracts.subnet import Subnet
from fleetune.errors import Refused
from fleetune.launching import LocalSites
from fleetune.launching.running_jobs import RunningJobs
from fleetune.models import graph as g
from fleetune.models.attention_heads import AttentionHead, attention_heads, find_blocks
from fleetune.models.head_scores import trained_parameters
from fleetune.models.skeleton import saved_configuration
from fleetune.models.source import with_local_source
from fleetune.profiling.measuring_job import JobSpec, run_measuring_job
from fleetune.profiling.messages import SCORES, Scores, parse_scores
from fleetune.profiling.subnet_parts import SubnetParts
from fleetune.profiling.task import ProfilingTask, ScoringTask


def heads_to_score(task: ProfilingTask, graph: g.Graph, module: nn.Module) -> tuple[AttentionHead, ...]:
    """The model's heads. Raises Refused if there are none or none of their weights is trained."""
    found = attention_heads(find_blocks(graph, module, saved_configuration(task.model_folder / "model")))
    if not trained_parameters(found, dict(module.named_parameters())):
        raise Refused(
            "profile.scores: no weight of any head is trained, so none has a score; let model.freeze leave some of "
            "them, give model.lora targets among them, or leave profile.scores out"
        )
    return found


def scored_subnets(
    task: ProfilingTask, graph: g.Graph, module: nn.Module, found: tuple[AttentionHead, ...]
) -> tuple[tuple[Subnet, ...], tuple[int, ...]]:
    """Subnets of the profile, every head with its parts of units and its scores, and the rows that were scored."""
    parts, scores = SubnetParts(graph, module), _scores(task)
    scored = zip(found, scores.heads, strict=True)
    subnets = tuple(
        Subnet(
            name=head.name,
            parts=parts.of(head),
            weight_magnitude=one.weight_magnitude,
            gradient_magnitude=one.gradient_magnitude,
            fisher=one.fisher,
        )
        for head, one in scored
    )
    return subnets, scores.rows


def _scores(task: ProfilingTask) -> Scores:
    here = bool(task.fleet.simulated)
    device = _this_machine() if here else max(task.fleet.devices, key=lambda each: each.memory_bytes)
    launcher = (LocalSites() if here else task.sites).launcher(device.name)
    running, count = RunningJobs(), task.training.micro_batches

    def progress(share: float) -> None:
        task.progress("scoring", share * count, count, "micro-batches")

    try:
        message = run_measuring_job(task, _process_spec(task, device), launcher, running, progress)
    except BaseException:
        running.stop()
        raise
    found = parse_scores(message, f"answer of {device.name}")
    task.note(f"{device.name}: scored {len(found.heads)} heads on the {count} micro-batches of the first round")
    return found


def _process_spec(task: ProfilingTask, device: Device) -> JobSpec:
    measure_task = task.on_device(
        device,
        with_local_source(task.model),
        batch_sizes=(),
        passes=0,
        scoring=ScoringTask(
            seed=task.seed,
            batch_samples=task.training.batch_samples,
            micro_batch_samples=task.training.micro_batch_samples,
        ),
    )
    return JobSpec(
        device=device,
        task=measure_task,
        result_event=SCORES,
        activity="scoring",
        activity_past="scored",
        held_units="for the whole model",
        advice="give it more memory or lower training.micro_batch_samples",
    )


def _this_machine() -> Device:
    return Device(
        name="this-machine", memory_bytes=psutil.virtual_memory().total, cores=psutil.cpu_count() or 1, fingerprint=""
    )
