"""Table 2 (volume), Table 7 (planning time), §5.3 (existing systems), and `search` beside the paper's planner."""

from collections.abc import Sequence

from benchmarks.asteroid_tables.paper import (
    EFFICIENTNET,
    LINKS,
    MOBILENET,
    OVER_SYSTEMS,
    PLANNING_S,
    VOLUME_RATIOS,
    VOLUMES,
    Model,
    default_problem,
    environment,
    hpp_problem,
)
from benchmarks.asteroid_tables.plans import SEARCH_ALL_DEVICES, plan_costs, require_plan
from benchmarks.report import Figure, Sheet, agreement

VOLUME_REMARKS = (
    "Eq. (1) with HetPipe's allocation, eq. (2) with Asteroid's plan, MB of a mini-batch (the paper's). No planner "
    "minimises its volume: a plan may send more because the links have time for it.",
    "EfficientNet-B1: HetPipe's best is a single pipeline of all five Nanos, for which eq. (1) has no 2GP; the paper's "
    "has several. ResNet50: its features cross cuts that the paper's plan does not make.",
)


def table2(models: Sequence[Model]) -> Sheet:
    """Table 2: bytes between five Nanos in a mini-batch, hybrid data against hybrid pipeline parallelism."""
    columns = ("model", "HDP MB", "HPP MB", "HDP / HPP", "HPP of search MB", "weights MB", "HetPipe | Asteroid")
    sheet = Sheet("Table 2: communication volume, five Nanos at 100 Mbit/s", columns, remarks=list(VOLUME_REMARKS))
    agrees = []
    for model in (model for model in models if model.name in VOLUMES):
        problem = default_problem(model, environment("A"))
        hdp, hpp, ours = (require_plan(problem, name) for name in ("hetpipe", "asteroid", "search"))
        paper = VOLUMES[model.name]
        ratio = hdp.volume_bytes / hpp.volume_bytes
        agrees.append(VOLUME_RATIOS[0] <= round(ratio, 1) <= VOLUME_RATIOS[1])
        sheet.rows.append(
            (
                model.name,
                f"{hdp.volume_bytes / 1e6:.1f} ({paper.hdp})",
                f"{hpp.volume_bytes / 1e6:.1f} ({paper.hpp})",
                f"{ratio:.2f} ({paper.hdp / paper.hpp:.2f})",
                f"{ours.volume_bytes / 1e6:.1f}",
                f"{sum(layer.trainable_bytes or 0 for layer in problem.layers) / 1e6:.1f}",
                f"{hdp.description}\n{hpp.description}",
            )
        )
    sheet.figures = [agreement("table2_hdp_over_hpp", agrees, "ratios of volumes within the paper's 1.9-2.7")]
    return sheet


TIME_REMARKS = (
    "The paper planned on a Jetson NX, 213 layers of EfficientNet-B1 and 56 of BERT; ours are every module without "
    "children (activations and dropout among them). Compiled before it is timed.",
)


def table7(models: Sequence[Model]) -> Sheet:
    """Table 7: planning time of `asteroid` and of `search` on environment C."""
    columns = ("model", "layers", "asteroid (paper's)", "search", "round of search / asteroid", "")
    sheet = Sheet("Table 7: planning time on environment C", columns, remarks=list(TIME_REMARKS))
    for method in ("asteroid", "search"):  # a smaller problem compiles them
        require_plan(hpp_problem(MOBILENET, environment("D"), 16, 4), method)
    for model in models:
        problem = default_problem(model, environment("C"))
        theirs, ours = require_plan(problem, "asteroid"), require_plan(problem, "search")
        sheet.rows.append(
            (
                model.name,
                str(len(problem.layers)),
                f"{theirs.solve_s:.2f} s ({PLANNING_S[model.name]:.0f} s)",
                f"{ours.solve_s:.2f} s",
                f"{ours.round_s / theirs.round_s:.3f}",
                "",
            )
        )
        if model == EFFICIENTNET:
            about = f"EfficientNet-B1, {len(problem.layers)} layers on six devices; the paper: 480 s"
            pairs = (("asteroid", theirs.solve_s), ("search", ours.solve_s))
            sheet.figures += [
                Figure(name=f"table7_{name}", value=solve_s, unit="s", target=480, better="lower", about=about)
                for name, solve_s in pairs
            ]
    return sheet


ENVIRONMENTS = ("B", "C")
SYSTEM_REMARKS = (
    "x: the plan does not fit (the paper has such cells too, in an image). Ranges are over all models and both "
    "environments.",
    "EDDL: as in Table 4, the paper's all-reduces take about five times the ring's time over links of their own.",
    "HetPipe: another kind of number. Its round has no filling, draining or barrier, its workers and its parameter "
    "server never wait for one another, and stale weights cost nothing: an upper bound of what it could reach, where "
    "the paper ran it.",
    "PipeDream and DAPPLE take all devices for the average one: on C, the most uneven, a Nano is their slowest stage.",
)


def existing_systems(models: Sequence[Model]) -> Sheet:
    """§5.3: rounds of existing systems on environments B and C over the round of `asteroid` (of `search`)."""
    columns = ("model", "env", *(f"{name} {low:g}-{high:g}" for name, (low, high) in OVER_SYSTEMS.items()), "")
    sheet = Sheet(
        "§5.3: asteroid over existing systems at 100 Mbit/s (search over them)", columns, remarks=list(SYSTEM_REMARKS)
    )
    agrees: dict[str, list[bool]] = {name: [] for name in OVER_SYSTEMS}
    for model in models:
        for env in ENVIRONMENTS:
            problem = default_problem(model, environment(env))
            ours, best = require_plan(problem, "asteroid"), require_plan(problem, "search")
            cells = []
            for name, (low, high) in OVER_SYSTEMS.items():
                theirs = require_plan(problem, name)
                ratio = theirs.round_s / ours.round_s
                if theirs.fits:
                    agrees[name].append(low <= round(ratio, 1) <= high)
                cells.append(f"{ratio:.2f} ({theirs.round_s / best.round_s:.2f})" + ("" if theirs.fits else " x"))
            sheet.rows.append((model.name, env, *cells, ""))
    sheet.figures = [
        agreement(f"over_{name}", agree, f"asteroid over {name} within the paper's range, plans that fit")
        for name, agree in agrees.items()
    ]
    return sheet


def search_over_asteroid(models: Sequence[Model], forced: bool) -> Sheet:
    """Rounds of `asteroid` over those of `search` on all problems of Tables 2 to 7; above 1 `search` is faster.

    forced: also compares with `search` that must use every device.
    """
    links = (*LINKS, ("C", 100), ("D", 100))
    columns = ("model", *(f"{env} {speed}" for env, speed in links), "")
    title = "asteroid's round over search's" + (" (over search!'s, which leaves no device out)" if forced else "")
    sheet = Sheet(title, columns)
    over_asteroid, over_forced = [], []
    for model in models:
        cells = []
        for link in links:
            problem = default_problem(model, environment(*link))
            ours, theirs = require_plan(problem, "search"), plan_costs(problem, "asteroid")
            cell = "-" if theirs is None else f"{theirs.round_s / ours.round_s:.3f}"
            over_asteroid += [] if theirs is None else [theirs.round_s / ours.round_s]
            constrained = plan_costs(problem, SEARCH_ALL_DEVICES) if forced else None
            if constrained is not None:
                over_forced.append(constrained.round_s / ours.round_s)
                cell += f" ({(theirs or constrained).round_s / constrained.round_s:.3f})"
            cells.append(cell)
        sheet.rows.append((model.name, *cells, ""))
    sheet.figures = [_lowest_ratio("search_over_asteroid", over_asteroid, "asteroid's round over search's")]
    if forced:
        sheet.figures.append(_lowest_ratio("search_over_forced", over_forced, "search!'s round over search's"))
    return sheet


def _lowest_ratio(name: str, ratios: list[float], about: str) -> Figure:
    return Figure(
        name=name,
        value=min(ratios),
        unit="x",
        target=1.0,
        better="higher",
        spread=(min(ratios), max(ratios)),
        about=f"the least {about}",
    )
