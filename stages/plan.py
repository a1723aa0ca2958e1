"""plan: fleet, profile -> plan, what the clock forecasts of it, and a report of both."""

from fleetune import clock, planning
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import StrategyRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.drawing import ReportContent, report
from fleetune.jit import told_of_compilation
from fleetune.planning.strategy import Problem
from stages.entry_point import StageContext, main

COMPILING = "the planners are compiled, once after each change of their code: some 20 s"


def plan(context: StageContext) -> None:
    """Solve the planning problem of fleet and profile with the configured strategy."""
    strategy = json_io.load(StrategyRequest, context.task.config["strategy"], "strategy")
    training = json_io.load(TrainingRequest, {"rounds": 1, **context.task.config["training"]}, "training")
    fleet = json_io.read(Fleet, context.input("fleet") / "fleet.json")
    profile = json_io.read(Profile, context.input("profile") / "profile.json")
    problem = Problem(
        fleet=fleet,
        profile=profile,
        micro_batch_samples=training.micro_batch_samples,
        micro_batches=training.micro_batches,
        seed=context.task.seed,
        owners=tuple(context.task.config.get("data", {}).get("local", {})),
        options=strategy.options,
        recompute=training.recompute,
    )
    with told_of_compilation(lambda: context.channel.note(COMPILING)):
        result = planning.solve(strategy.name, problem)
        forecast = clock.forecast(result.plan, fleet, profile)
    if said := clock.describe_averages(forecast):
        context.channel.note(said)
    json_io.write(result, context.output("plan") / "plan.json")
    json_io.write(forecast, context.output("plan") / "forecast.json")
    content = ReportContent(
        title=f"{context.task.facts.name or context.task.run}: a plan",
        fleet=fleet,
        profile=profile,
        plan=result,
        forecast=forecast,
        facts={**context.task.facts.listed(context.task.run), "seed": str(context.task.seed)},
        settings=context.task.facts.settings,
    )
    (context.output("plan") / "report.html").write_text(report(content), encoding="utf-8")


if __name__ == "__main__":
    main(plan)
