"""evaluate: everything before it -> evaluation (scores, summary.json, report.html)."""

from fleetune import evaluation
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.metrics import TrainingMetrics
from fleetune.contracts.plan import PlanResult
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import ModelRequest
from fleetune.monitoring import EventSummary
from stages.entry_point import StageContext, main


def evaluate(context: StageContext) -> None:
    """Score the model before and after training, and compare the forecast with what was measured."""
    config = context.task.config
    forecast, note = evaluation.measured_forecast(context.input("plan"), context.input("metrics"))
    fleet = json_io.read(Fleet, context.input("fleet") / "fleet.json")
    training = json_io.read(TrainingMetrics, context.input("metrics") / "training.json")
    events = json_io.read(EventSummary, context.input("events") / "events.json")
    evaluation.evaluate(
        evaluation.EvaluationTask(
            run=config["name"],
            fleet=fleet,
            profile=json_io.read(Profile, context.input("profile") / "profile.json"),
            plan=json_io.read(PlanResult, context.input("plan") / "plan.json"),
            forecast=forecast,
            training=training,
            model=json_io.load(ModelRequest, config["model"], "model"),
            model_folder=context.input("model"),
            data_folder=context.input("data"),
            checkpoint_folder=context.input("checkpoint"),
            output=context.output("evaluation"),
            accelerator=next((d.accelerator for d in fleet.devices if d.accelerator != "cpu"), "cpu"),
            facts={
                **context.task.facts.listed(context.task.run),
                "training ended": events.ended,
                "failures": "; ".join((*events.failures, *events.recoveries)) or "none",
                **_earlier_rounds(training),
                **note,
            },
            course=events.course,
            settings=context.task.facts.settings,
            trained_on=context.task.facts.trained_on,
            continued=context.task.facts.continued,
            progress=context.channel.progress,
            note=context.channel.note,
        )
    )


def _earlier_rounds(training: TrainingMetrics) -> dict[str, str]:
    """Return a note for the report if the first rounds were trained by another plan or on other measurements."""
    first = training.plan_from_round
    said = f"rounds before {first} were trained by another plan, or before devices and links were measured again"
    return {"plans": f"{said}; times and bytes are of those from {first} on"} if first else {}


if __name__ == "__main__":
    main(evaluate)
