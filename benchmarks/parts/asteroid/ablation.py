"""Fig. 15a: what inter-stage and intra-stage planning are worth on environment C."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.parts.asteroid.planned import Planned, costed, must
from benchmarks.parts.asteroid.setting import Model, environment, usual
from benchmarks.parts.asteroid.sheet import Sheet, share
from fleetune.solving.hpp.draft import Draft
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import Problem

AMPLE_BYTES = 1 << 50
AMPLE_BYTES_PER_S = 1e15
REMARKS = (
    "Naive: the same planner, told that devices are all the average one, memory and bandwidth ample. + inter-stage: "
    "told their speeds and links; samples of a group dealt evenly, memory ignored. + intra-stage: told all. Bars of "
    "the paper are an image; its text says that each step adds throughput.",
    "Where the plan has next to no groups, as EfficientNet-B1's here, there is nothing inside a stage to be planned.",
)


def fig15a(models: Sequence[Model]) -> Sheet:
    """Samples per second, x where memory is exceeded."""
    columns = ("model", "naive", "+ inter-stage", "+ intra-stage", "search", "plans")
    sheet = Sheet("Fig. 15a: ablation of planning, environment C, samples/s", columns, remarks=list(REMARKS))
    holds = []
    for model in models:
        problem = usual(model, environment("C"))
        naive, between = _naive(problem), _between_stages(problem)
        whole, ours = must(problem, "asteroid"), must(problem, "search")
        steps = (naive, between, whole)
        holds += [later.round_s < earlier.round_s for earlier, later in zip(steps, steps[1:], strict=False)]
        cells = [f"{model.mini_batch / p.round_s:.0f}" + ("" if p.fits else " x") for p in (*steps, ours)]
        sheet.rows.append((model.name, *cells, "\n".join(p.words for p in steps)))
    sheet.figures = [share("fig15a_steps", holds, "steps that add throughput")]
    return sheet


def _naive(problem: Problem) -> Planned:
    """Planned as if devices were alike and neither memory nor links mattered; costed as they are."""
    count = len(problem.devices)
    averaged = [_average(table) for table in (problem.forward_s, problem.backward_s)]
    wide = tuple(tuple(AMPLE_BYTES_PER_S for _ in range(count)) for _ in range(count))
    alike = replace(
        _roomy(problem),
        forward_s=(averaged[0],) * count,
        backward_s=(averaged[1],) * count,
        bandwidth_bytes_per_s=wide,
        latency_s=tuple((0.0,) * count for _ in range(count)),
    )
    return costed(Instance(problem), _evenly(_planned_for(alike)))


def _between_stages(problem: Problem) -> Planned:
    """Cuts and groups as the planner finds them with ample memory; samples dealt evenly."""
    return costed(Instance(problem), _evenly(_planned_for(_roomy(problem))))


def _planned_for(problem: Problem) -> Draft:
    return must(problem, "asteroid").draft


def _roomy(problem: Problem) -> Problem:
    return replace(problem, devices=tuple(replace(d, memory_bytes=AMPLE_BYTES) for d in problem.devices))


def _average(tables: tuple[tuple[tuple[float, ...], ...], ...]) -> tuple[tuple[float, ...], ...]:
    """[layer][batch size] over devices."""
    return tuple(
        tuple(sum(times) / len(times) for times in zip(*rows, strict=True)) for rows in zip(*tables, strict=True)
    )


def _evenly(draft: Draft) -> Draft:
    """The same groups, every device with the same share of samples."""
    stages = []
    for stage in draft.stages:
        each, over = divmod(sum(stage.samples), len(stage.devices))
        stages.append(stage._replace(samples=tuple(each + (k < over) for k in range(len(stage.devices)))))
    return draft._replace(stages=tuple(stages))
