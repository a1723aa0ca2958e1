"""Fig. 15a and 15b: ablations of planning on environment C, and of schedules and warm-ups on three TX2."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.asteroid_tables.paper import (
    EFFICIENTNET,
    Model,
    default_problem,
    environment,
    hpp_problem,
    identical_devices,
)
from benchmarks.asteroid_tables.plans import PlanCosts, costs_of, require_plan
from benchmarks.report import Figure, Sheet, agreement
from fleetune.solving.hpp.draft import Draft, peak_bytes
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.problem import WARMUP_POLICIES, Problem, warmups

AMPLE_BYTES = 1 << 50
AMPLE_BYTES_PER_S = 1e15
PLANNING_REMARKS = (
    "Naive: the same planner, told that devices are all the average one, memory and bandwidth ample. + inter-stage: "
    "told their speeds and links; samples of a group dealt evenly, memory ignored. + intra-stage: told all. Bars of "
    "the paper are an image; its text says that each step adds throughput.",
    "Where the plan has next to no groups, as EfficientNet-B1's here, there is nothing inside a stage to be planned.",
)


def fig15a(models: Sequence[Model]) -> Sheet:
    """Fig. 15a: samples per second with naive, inter-stage and full planning; x marks plans that exceed memory."""
    columns = ("model", "naive", "+ inter-stage", "+ intra-stage", "search", "plans")
    sheet = Sheet("Fig. 15a: ablation of planning, environment C, samples/s", columns, remarks=list(PLANNING_REMARKS))
    agrees = []
    for model in models:
        problem = default_problem(model, environment("C"))
        naive, between = _naive(problem), _inter_stage(problem)
        whole, ours = require_plan(problem, "asteroid"), require_plan(problem, "search")
        steps = (naive, between, whole)
        agrees += [later.round_s < earlier.round_s for earlier, later in zip(steps, steps[1:], strict=False)]
        cells = [f"{model.mini_batch / p.round_s:.0f}" + ("" if p.fits else " x") for p in (*steps, ours)]
        sheet.rows.append((model.name, *cells, "\n".join(p.description for p in steps)))
    sheet.figures = [agreement("fig15a_steps", agrees, "steps that add throughput")]
    return sheet


def _naive(problem: Problem) -> PlanCosts:
    """Plans for identical devices with ample memory and bandwidth; costs are those on the real devices."""
    count = len(problem.devices)
    averaged = [mean_over_devices(table) for table in (problem.forward_s, problem.backward_s)]
    wide = tuple(tuple(AMPLE_BYTES_PER_S for _ in range(count)) for _ in range(count))
    uniform = replace(
        _with_ample_memory(problem),
        forward_s=(averaged[0],) * count,
        backward_s=(averaged[1],) * count,
        bandwidth_bytes_per_s=wide,
        latency_s=tuple((0.0,) * count for _ in range(count)),
    )
    return costs_of(Instance(problem), divided_evenly(_asteroid_draft(uniform)))


def _inter_stage(problem: Problem) -> PlanCosts:
    """Plans cuts and groups with ample memory and divides samples evenly."""
    return costs_of(Instance(problem), divided_evenly(_asteroid_draft(_with_ample_memory(problem))))


def _asteroid_draft(problem: Problem) -> Draft:
    return require_plan(problem, "asteroid").draft


def _with_ample_memory(problem: Problem) -> Problem:
    return replace(problem, devices=tuple(replace(d, memory_bytes=AMPLE_BYTES) for d in problem.devices))


def mean_over_devices(tables: tuple[tuple[tuple[float, ...], ...], ...]) -> tuple[tuple[float, ...], ...]:
    """Mean over devices, shape [layer][batch size]."""
    return tuple(
        tuple(sum(times) / len(times) for times in zip(*rows, strict=True)) for rows in zip(*tables, strict=True)
    )


def divided_evenly(draft: Draft) -> Draft:
    """The same groups with samples divided evenly in each."""
    stages = []
    for stage in draft.stages:
        each, over = divmod(sum(stage.samples), len(stage.devices))
        stages.append(stage._replace(samples=tuple(each + (k < over) for k in range(len(stage.devices)))))
    return draft._replace(stages=tuple(stages))


STAGES = 3
OURS = "2(P-p)-1"
SCHEDULE_REMARKS = (
    "One pipeline of three stages, planned with 2(P-p)-1 and then run with other warm-ups. Backward after forward "
    "(GPipe) keeps all micro-batches at once. Peaks are of the device that needs most; the paper's bars are an image.",
    "Data parallelism needs less than any pipeline where it too accumulates gradients over micro-batches; the paper's "
    "needs more, as it does with its whole share of the mini-batch at once.",
)


def fig15b(mini_batch: int = EFFICIENTNET.mini_batch, micro_batch: int = 64) -> Sheet:
    """Fig. 15b: peak memory and throughput of EfficientNet-B1 on three TX2 by schedule and warm-up policy."""
    micro_batches = mini_batch // micro_batch
    fleet = identical_devices("tx2", STAGES)
    problem = hpp_problem(EFFICIENTNET, fleet, micro_batch, micro_batches, tuple(warmups(OURS, STAGES, micro_batches)))
    base, dp = (
        require_plan(problem, "asteroid"),
        require_plan(hpp_problem(EFFICIENTNET, fleet, micro_batch, micro_batches), "dp"),
    )
    instance = Instance(problem)
    warmup_counts = {name: tuple(warmups(name, STAGES, micro_batches)) for name in WARMUP_POLICIES}
    warmup_counts["backward after forward"] = (micro_batches,) * STAGES
    rows = {name: costs_of(instance, base.draft._replace(warmups=k)) for name, k in warmup_counts.items()}
    columns = ("schedule", "K", "peak MB", "samples/s", "fits 6500 MB", "")
    sheet = Sheet(f"Fig. 15b: {micro_batches} micro-batches of {micro_batch}: {base.description}", columns)
    sheet.remarks = list(SCHEDULE_REMARKS)
    for name, found in {**rows, "data parallel": dp}.items():
        listed = ", ".join(map(str, warmup_counts.get(name, (1,))))
        speed = f"{mini_batch / found.round_s:.0f}"
        sheet.rows.append((name, listed, f"{found.peak_bytes / 1e6:.0f}", speed, "yes" if found.fits else "x", ""))
    undivided_bytes = peak_bytes(instance, dp.draft.stages[0], 1, -(-mini_batch // STAGES))
    fits = "yes" if undivided_bytes <= instance.memory_bytes[0] else "x"
    sheet.rows.append(("data parallel, no micro-batches", "1", f"{undivided_bytes / 1e6:.0f}", "", fits, ""))
    sheet.figures = _schedule_figures(rows, undivided_bytes)
    return sheet


def _schedule_figures(rows: dict[str, PlanCosts], dp_bytes: int) -> list[Figure]:
    ours, gpipe = rows[OURS], rows["backward after forward"]
    fastest_s = min(rows[name].round_s for name in ("2(P-p)", "2(P-p)+1"))
    peaks = min(rows[name].peak_bytes for name in ("2(P-p)", "2(P-p)+1"))
    return [
        Figure(
            name="fig15b_memory_over_gpipe",
            value=ours.peak_bytes / gpipe.peak_bytes,
            unit="of the peak",
            target=1.0,
            better="lower",
            about="1F1B beside backward after forward",
        ),
        Figure(
            name="fig15b_memory_over_dp",
            value=ours.peak_bytes / dp_bytes,
            unit="of the peak",
            target=1.0,
            better="lower",
            about="1F1B beside data parallelism with its share of the mini-batch at once",
        ),
        Figure(
            name="fig15b_throughput",
            value=fastest_s / ours.round_s,
            unit="of the fastest",
            target=0.99,
            better="higher",
            about="2(P-p)-1 beside 2(P-p) and 2(P-p)+1",
        ),
        Figure(
            name="fig15b_memory",
            value=ours.peak_bytes / peaks,
            unit="of the least",
            target=1.0,
            better="lower",
            about="2(P-p)-1 beside 2(P-p) and 2(P-p)+1",
        ),
    ]
