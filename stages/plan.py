"""plan: fleet, profile -> plan, what the clock forecasts of it, and a report of both."""

from fleetune import clock, planning
from fleetune.contracts import wire
from fleetune.contracts.config.run import StrategyRequest
from fleetune.contracts.config.training import TrainingRequest
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.profile import Profile
from fleetune.drawing import ReportContent, report
from fleetune.planning.problem import Problem
from stages.entry import Desk, main


def plan(desk: Desk) -> None:
    """Have the strategy of the config solve the problem that fleet and profile pose."""
    strategy = wire.load(StrategyRequest, desk.task.config["strategy"], "strategy")
    training = wire.load(TrainingRequest, {"rounds": 1, **desk.task.config["training"]}, "training")
    fleet = wire.read(Fleet, desk.input("fleet") / "fleet.json")
    profile = wire.read(Profile, desk.input("profile") / "profile.json")
    problem = Problem(
        fleet=fleet,
        profile=profile,
        micro_batch_samples=training.micro_batch_samples,
        micro_batches=training.micro_batches,
        seed=desk.task.seed,
        options=strategy.options,
    )
    result = planning.solve(strategy.name, problem)
    forecast = clock.forecast(result.plan, fleet, profile)
    wire.write(result, desk.output("plan") / "plan.json")
    wire.write(forecast, desk.output("plan") / "forecast.json")
    content = ReportContent(
        title=f"{desk.task.facts.name or desk.task.run}: a plan",
        fleet=fleet,
        profile=profile,
        plan=result,
        forecast=forecast,
        facts={**desk.task.facts.listed(desk.task.run), "seed": str(desk.task.seed)},
        settings=desk.task.facts.settings,
    )
    (desk.output("plan") / "report.html").write_text(report(content), encoding="utf-8")


if __name__ == "__main__":
    main(plan)
