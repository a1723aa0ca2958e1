"""The whole of evaluation: score before and after, compare with the forecast, write it all down."""

from importlib.metadata import version

import torch
from torch import nn

from fleetune.contracts import wire
from fleetune.contracts.metrics import EvaluationMetrics, Score
from fleetune.data import PreparedData
from fleetune.drawing import ReportContent, report
from fleetune.errors import Refused
from fleetune.evaluation.checkpoint import ADAPTER, base_model, result_folder, trained_model, with_adapter
from fleetune.evaluation.scores import BETTER, Scores, Scoring, score
from fleetune.evaluation.summary import summarise
from fleetune.evaluation.task import EvaluationTask
from fleetune.models.skeleton import saved_configuration
from fleetune.models.start import START, initial_model

PACKAGES = ("torch", "transformers", "peft")
"""Named in the report."""


def evaluate(task: EvaluationTask) -> EvaluationMetrics:
    """Score the weights before and after training on the test split and write evaluation.json, summary.json and
    report.html into `task.output`.

    Refused, with nothing written, where the checkpoint or the data cannot be read (the file is named) or the loss is
    no number.
    """
    data = PreparedData(task.data_folder)
    if data.task != task.model.task:
        raise Refused(f"{task.data_folder}: prepared for {data.task}, but the model's task is {task.model.task}")
    scoring = Scoring(batch_samples=task.batch_samples, accelerator=_here(task.accelerator), progress=task.progress)
    after = score(_after(task), data, scoring, "trained model")
    before = score(_before(task), data, scoring, "untrained model")
    metrics = compare(task, before, after, data.size(scoring.split))
    page = report(_content(task, metrics, data))
    task.output.mkdir(parents=True, exist_ok=True)
    wire.write(metrics, task.output / "evaluation.json")
    wire.write(summarise(task, metrics), task.output / "summary.json")
    (task.output / "report.html").write_text(page, encoding="utf-8")
    return metrics


def compare(task: EvaluationTask, before: Scores, after: Scores, samples: int) -> EvaluationMetrics:
    """Scores side by side, and the forecast beside what training measured."""
    forecast_s, measured_s = task.forecast.round_s, task.training.median_round_s
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
        bytes_per_round=sum(link.bytes for link in task.training.link_bytes),
        peak_memory_bytes=task.training.peak_memory_bytes,
    )


def _before(task: EvaluationTask) -> nn.Module:
    """The model with exactly the weights that training started from."""
    config = saved_configuration(task.profile_folder / "model")
    return initial_model(config, task.model, task.profile_folder / START)


def _after(task: EvaluationTask) -> nn.Module:
    """The model of the checkpoint; an adapter goes onto its base, read anew."""
    folder = result_folder(task.checkpoint_folder)
    if folder.name != ADAPTER:
        return trained_model(folder, task.model.task)
    if task.model.source is None:  # random weights have no files of their own: the start is the base
        return with_adapter(_before(task).unload(), folder)
    return with_adapter(base_model(saved_configuration(task.profile_folder / "model"), task.model, folder), folder)


def _content(task: EvaluationTask, metrics: EvaluationMetrics, data: PreparedData) -> ReportContent:
    return ReportContent(
        title=task.run,
        fleet=task.fleet,
        profile=task.profile,
        plan=task.plan,
        forecast=task.forecast,
        training=task.training,
        evaluation=metrics,
        facts={
            "model": task.model.source or f"{task.profile.model}, from random weights",
            "task": task.model.task,
            "data": f"{data.info.source}: {data.size('train')} samples to train on, {data.size('test')} to test on",
            "content of the data": data.info.digest,
            **({"odd about the data": "; ".join(data.info.notes)} if data.info.notes else {}),
            "seed": str(data.info.seed),
            **{package: version(package) for package in PACKAGES},
            **task.facts,
        },
        settings=task.settings,
    )


def _here(accelerator: str) -> str:
    """The accelerator where this process has it: a device's GPU may be in another machine, or outside a container."""
    return accelerator if accelerator == "cpu" or torch.cuda.is_available() else "cpu"
