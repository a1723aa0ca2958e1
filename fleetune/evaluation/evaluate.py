"""Evaluation of a run: scores before and after training, the forecast beside the measurement, and their summary."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from fleetune.contracts import json_io
from fleetune.contracts.course import Course
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import DeviceAmount, EvaluationMetrics, Forecast, Score, TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.record import record
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.task import Progress, ignore_progress
from fleetune.data.prepared_data import PreparedData
from fleetune.data.seen_samples import seen_samples
from fleetune.drawing import ReportContent, report
from fleetune.errors import Refused
from fleetune.evaluation.trained_model import BETTER, Scores, ScoringOptions, load_result, result_folder, score
from fleetune.models.base_files import check_base_files
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model
from fleetune.models.skeleton import saved_configuration

PACKAGES = ("torch", "transformers", "peft")
"""Packages whose versions the report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """Input of the evaluate stage."""

    run: str
    """Name of the run, for the report's title."""
    fleet: Fleet
    profile: Profile
    plan: PlanResult
    forecast: Forecast
    training: TrainingMetrics
    model: ModelRequest
    model_folder: Path
    """Holds start.safetensors and model/config.json, from which training started."""
    data_folder: Path
    checkpoint_folder: Path
    """Holds model/ (a Hugging Face folder) or adapter/ (a PEFT folder)."""
    output: Path
    """Receives evaluation.json, summary.json and report.html."""
    batch_samples: int = 32
    accelerator: str = "cpu"
    """Device that scores the model: `cpu` or `cuda:N`."""
    facts: dict[str, str] = field(default_factory=dict)
    """Additional entries of the list at the report's end."""
    course: Course | None = None
    """Of a training that lost devices or messages, for the report."""
    settings: str = ""
    """The run's whole config as text, for the report."""
    trained_on: int | str | None = None
    """As in RunFacts."""
    continued: bool = False
    """As in RunFacts."""
    progress: Progress = ignore_progress
    note: Callable[[str], None] = lambda sentence: None


FORECAST = "forecast.json"
OF_EARLIER_RUN = "forecast and measured by the run that trained; devices or links were measured again since"


@record
class DeviceSummary:
    """Work and memory of one device in a round, measured and forecast."""

    device: str
    units: int
    """Number of the model's units that it ran, over all lanes; 0 if the plan left it out."""
    samples: int
    """Number of samples of every micro-batch; the largest if it has several shares."""
    busy_s: float
    forecast_busy_s: float
    peak_memory_bytes: float
    forecast_memory_bytes: float
    memory_bytes: int
    """Memory limit of the device."""


@record
class Summary:
    """Content of summary.json: a run in one table."""

    run: str
    model: str
    task: str
    strategy: str
    result: str
    """`model` or `adapter`: the folder of the checkpoint that holds the result."""
    rounds: int
    first_loss: float | None
    last_loss: float | None
    """Training losses; None if no round was run."""
    train_wall_s: float
    evaluation: EvaluationMetrics
    devices: tuple[DeviceSummary, ...]


def summarise(task: EvaluationTask, metrics: EvaluationMetrics) -> Summary:
    """Return the summary of an evaluated run, with a row for every device of the fleet."""
    rounds = task.training.rounds
    return Summary(
        run=task.run,
        model=task.profile.model,
        task=task.model.task,
        strategy=task.plan.plan.strategy,
        result=result_folder(task.checkpoint_folder).name,
        rounds=len(rounds),  # including those of earlier attempts
        first_loss=rounds[0].loss if rounds else None,
        last_loss=rounds[-1].loss if rounds else None,
        train_wall_s=task.training.wall_s,
        evaluation=metrics,
        devices=tuple(_device(task, device.name, device.memory_bytes) for device in task.fleet.devices),
    )


def _device(task: EvaluationTask, name: str, memory_bytes: int) -> DeviceSummary:
    own = [
        (segment, share)
        for lane in task.plan.plan.lanes
        for segment in lane.segments
        for share in segment.shares
        if share.device == name
    ]
    return DeviceSummary(
        device=name,
        units=len({unit for segment, _ in own for unit in segment.units}),
        samples=max((share.samples for _, share in own), default=0),
        busy_s=_amount(task.training.busy_s, name),
        forecast_busy_s=_amount(task.forecast.busy_s, name),
        peak_memory_bytes=_amount(task.training.peak_memory_bytes, name),
        forecast_memory_bytes=_amount(task.forecast.memory_bytes, name),
        memory_bytes=memory_bytes,
    )


def _amount(amounts: tuple[DeviceAmount, ...], device: str) -> float:
    return next((one.amount for one in amounts if one.device == device), 0.0)


def measured_forecast(plan_folder: Path, metrics_folder: Path) -> tuple[Forecast, dict[str, str]]:
    """Return the forecast that belongs to the measured times, and a note for the report if it is not this run's.

    A reused training was forecast and measured on the fleet of the run that trained, whose forecast its metrics keep.
    """
    planned = json_io.read(Forecast, plan_folder / FORECAST)
    trained = metrics_folder / FORECAST
    found = json_io.read(Forecast, trained) if trained.exists() else planned
    return found, {} if found == planned else {"times": OF_EARLIER_RUN}


def evaluate(task: EvaluationTask) -> EvaluationMetrics:
    """Score the weights before and after training on the test split and write evaluation.json, summary.json and
    report.html into `task.output`.

    Refused, with nothing written, if the checkpoint or the data cannot be read (the file is named) or the loss is not
    finite.
    """
    data = PreparedData(task.data_folder)
    if data.task != task.model.task:
        raise Refused(f"{task.data_folder}: prepared for {data.task}, but the model's task is {task.model.task}")
    scoring = ScoringOptions(
        batch_samples=task.batch_samples, accelerator=_available_accelerator(task.accelerator), progress=task.progress
    )
    # each is freed before the next one is loaded
    checkpoint = (task.checkpoint_folder, task.model_folder, task.model, task.note)
    after = score(load_result(*checkpoint), data, scoring, "trained model")
    before = score(_before(task), data, scoring, "untrained model")
    of_training = task.trained_on is None and not task.continued
    seen = seen_samples(data, data, task.progress) if of_training else task.trained_on
    metrics = replace(
        compare(task, before, after, data.size(scoring.split)),
        trained_on=seen if isinstance(seen, int) else None,
        sequences=data.packed and not data.info.local,
        chose=task.training.chosen and data.scored_while_training == scoring.split and task.trained_on is None,
    )
    if told := _trained_on(task, metrics):
        task.note(told)
    page = report(_content(task, metrics, data))
    task.output.mkdir(parents=True, exist_ok=True)
    json_io.write(metrics, task.output / "evaluation.json")
    json_io.write(summarise(task, metrics), task.output / "summary.json")
    (task.output / "report.html").write_text(page, encoding="utf-8")
    return metrics


def _trained_on(task: EvaluationTask, metrics: EvaluationMetrics) -> str:
    """A sentence if data that are not those of training have samples that were trained on, or may have."""
    if not task.trained_on:
        return ""
    if isinstance(task.trained_on, str):
        return f"whether the model was trained on samples that are scored is not known: {task.trained_on}"
    counted = "sequences" if metrics.sequences else "samples"
    return (
        f"{task.trained_on} of {metrics.samples} {counted} that are scored were trained on, so the scores look better "
        "than they are"
    )


def _energy_j(training: TrainingMetrics) -> float | None:
    """Return the joules of all rounds; None unless each of them is known."""
    found = [one.energy_j for one in training.rounds if one.energy_j is not None]
    return sum(found) if found and len(found) == len(training.rounds) else None


def compare(task: EvaluationTask, before: Scores, after: Scores, samples: int) -> EvaluationMetrics:
    """Return scores before and after training, and the forecast beside the measured round."""
    forecast_s, measured_s = task.forecast.round_s, task.training.median_round_s
    measured = {each.device for each in task.training.peak_memory_bytes}
    return EvaluationMetrics(
        scores=tuple(
            Score(name=name, before=before.values[name], after=after.values[name], better=better)
            for name, better in BETTER.items()
            if name in after.values
        ),
        classes=after.classes,
        samples=samples,
        forecast_round_s=forecast_s,
        measured_round_s=measured_s,
        forecast_error=(forecast_s - measured_s) / measured_s if measured_s else 0.0,
        forecast_interval=task.forecast.interval,
        energy_j=_energy_j(task.training),
        bytes_per_round=sum(link.bytes for link in task.training.link_bytes),
        forecast_bytes_per_round=sum(link.bytes for link in task.forecast.link_bytes),
        peak_memory_bytes=task.training.peak_memory_bytes,
        forecast_memory_bytes=tuple(each for each in task.forecast.memory_bytes if each.device in measured),
    )


def _before(task: EvaluationTask) -> nn.Module:
    """Return the model with exactly the weights that training started from."""
    if task.model.lora is None:  # an adapter's base was checked with the trained model
        check_base_files(task.model, task.model_folder, task.note)
    config = saved_configuration(task.model_folder / "model")
    return initial_model(config, task.model, task.model_folder / INIT_WEIGHTS)


def _content(task: EvaluationTask, metrics: EvaluationMetrics, data: PreparedData) -> ReportContent:
    sizes = data.describe_sizes() if task.trained_on is None else f"{data.describe_size('test')} to test on"
    seen = _trained_on(task, metrics)
    return ReportContent(
        title=task.run,
        fleet=task.fleet,
        profile=task.profile,
        plan=task.plan,
        forecast=task.forecast,
        training=task.training,
        evaluation=metrics,
        course=task.course,
        facts={
            "model": task.model.source or f"{task.profile.model}, from random weights",
            "task": task.model.task,
            "data": f"{data.info.source}: {sizes}",
            **({"trained on": seen} if seen else {}),
            "content of the data": data.info.digest,
            **({"odd about the data": "; ".join(data.info.notes)} if data.info.notes else {}),
            "seed": str(data.info.seed),
            **{package: version(package) for package in PACKAGES},
            **task.facts,
        },
        settings=task.settings,
    )


def _available_accelerator(accelerator: str) -> str:
    """Return the accelerator if this process can use it, else `cpu`: the GPU may be in another machine."""
    number = accelerator.removeprefix("cuda:")
    return accelerator if number.isdecimal() and int(number) < torch.cuda.device_count() else "cpu"
