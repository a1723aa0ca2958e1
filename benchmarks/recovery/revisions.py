"""Light and heavy plans after each loss on the paper's environment D, and light ones for sixteen devices."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import cycle, islice
from typing import NamedTuple

from benchmarks import CONFIGS
from benchmarks.asteroid_tables.paper import EFFICIENTNET, MOBILENET, Model, environment, fleet_of, profile_of
from benchmarks.report import Figure, Sheet, median_and_spread
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.plan import Plan, PlanResult
from fleetune.planning import Problem, solve
from fleetune.planning.revision import copies, heavy, light
from flows import configs

PAPERS_THROUGHPUT = 0.90
"""Light keeps at least so much of heavy's throughput in the paper."""
LIMIT_S = 0.1
Revise = Callable[[Problem, Plan, Collection[str]], PlanResult]


class Revised(NamedTuple):
    """A revised plan, and what it costs."""

    result: PlanResult
    revise_s: float
    moved_bytes: int


def revisions(quick: bool) -> Sheet:
    """Return the table of environment D at 100 Mbit/s."""
    columns = ("model", "lost", "round before", "light", "heavy", "throughput", "plan in", "moved", "groups before")
    sheet = Sheet("Environment D: plans after a loss, light / heavy", columns)
    kept, faster, light_s = [], [], []
    for model in (MOBILENET,) if quick else (EFFICIENTNET, MOBILENET):
        problem = _problem(model, environment("D"))
        before = solve("asteroid", problem)
        for device in problem.fleet.devices:
            easy = _revised(light, problem, before.plan, [device.name])
            hard = _revised(heavy, problem, before.plan, [device.name])
            kept.append(hard.result.objective / easy.result.objective)
            faster.append(hard.revise_s / easy.revise_s)
            light_s.append(easy.revise_s)
            groups = " | ".join(" + ".join(segment.devices) for segment in before.plan.lanes[0].segments)
            sheet.rows.append((
                model.name, device.name, f"{before.objective:.2f} s", f"{easy.result.objective:.2f} s",
                f"{hard.result.objective:.2f} s", f"{kept[-1]:.3f}",
                f"{easy.revise_s * 1e3:.0f} / {hard.revise_s * 1e3:.0f} ms",
                f"{easy.moved_bytes / 1e6:.1f} / {hard.moved_bytes / 1e6:.1f} MB", groups,
            ))  # fmt: skip
    sheet.remarks = [
        "Throughput: of light over heavy, by the clock. Moved: weights of units that a device did not run before. On "
        "light's time one must add that of moving; detection is the same for both.",
    ]
    sheet.figures = [
        Figure(name="light_over_heavy_throughput_least", value=min(kept), unit="x", target=PAPERS_THROUGHPUT,
               better="higher", about="the paper's: 0.90"),
        Figure(name="heavy_over_light_planning_time", **median_and_spread(faster), unit="x", better="higher",
               about="of planning alone; the paper's 14 x is of the whole recovery"),
        Figure(name="light_planning_time", **median_and_spread(light_s), unit="s", target=LIMIT_S, better="lower"),
    ]  # fmt: skip
    return sheet


def sixteen_devices(quick: bool) -> list[Figure]:
    """Return the time of light plans for sixteen devices in eight groups, of which one is lost."""
    request = configs.load_fleet(CONFIGS / "fleets" / "asteroid-c.yaml")
    many = tuple(replace(one, name=f"device-{k}") for k, one in enumerate(islice(cycle(request.devices), 16)))
    problem = _problem(EFFICIENTNET, fleet_of(replace(request, devices=many), 100))
    groups = [[device.name for device in many[k : k + 2]] for k in range(0, 16, 2)]
    before = solve("pp", replace(problem, options={"groups": groups})).plan
    lost = [many[0].name, many[5].name] if quick else [device.name for device in many]
    times = [_revised(light, problem, before, [name]).revise_s for name in lost]
    return [
        Figure(name="light_planning_time_16_devices", **median_and_spread(times), unit="s", target=LIMIT_S,
               better="lower", about=f"{EFFICIENTNET.name}, {len(problem.profile.units)} units")
    ]  # fmt: skip


def _problem(model: Model, fleet: Fleet) -> Problem:
    return Problem(
        fleet=fleet,
        profile=profile_of(model, fleet, model.micro_batch),
        micro_batch_samples=model.micro_batch,
        micro_batches=model.mini_batch // model.micro_batch,
    )


def _revised(revise: Revise, problem: Problem, before: Plan, lost: Collection[str]) -> Revised:
    started_s = time.perf_counter()
    result = revise(problem, before, lost)
    taken_s = time.perf_counter() - started_s
    sizes = {unit.name: unit.param_bytes for unit in problem.profile.units}
    return Revised(result, taken_s, sum(sizes[copy.unit] for copy in copies(before, result.plan)))
