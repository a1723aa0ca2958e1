"""§5.3 (Fig. 13): Asteroid's throughput over existing systems' on environments B and C."""

from collections.abc import Sequence

from benchmarks.parts.asteroid.paper import OVER_SYSTEMS
from benchmarks.parts.asteroid.planned import must
from benchmarks.parts.asteroid.setting import Model, environment, usual
from benchmarks.parts.asteroid.sheet import Sheet, share

ENVIRONMENTS = ("B", "C")
REMARKS = (
    "x: the plan does not fit (the paper has such cells too, in an image). Ranges are over all models and both "
    "environments.",
    "EDDL: as in Table 4, the paper's all-reduces take about five times the ring's time over links of their own.",
    "HetPipe: another kind of number. Its round has no filling, draining or barrier, its workers and its parameter "
    "server never wait for one another, and stale weights cost nothing: an upper bound of what it could reach, where "
    "the paper ran it.",
    "PipeDream and DAPPLE take all devices for the average one: on C, the most uneven, a Nano is their slowest stage.",
)


def systems(models: Sequence[Model]) -> Sheet:
    """Ratios of rounds for the paper's planner, and ours in brackets."""
    columns = ("model", "env", *(f"{name} {low:g}-{high:g}" for name, (low, high) in OVER_SYSTEMS.items()), "")
    sheet = Sheet(
        "§5.3: asteroid over existing systems at 100 Mbit/s (search over them)", columns, remarks=list(REMARKS)
    )
    holds: dict[str, list[bool]] = {name: [] for name in OVER_SYSTEMS}
    for model in models:
        for env in ENVIRONMENTS:
            problem = usual(model, environment(env))
            ours, best = must(problem, "asteroid"), must(problem, "search")
            cells = []
            for name, (low, high) in OVER_SYSTEMS.items():
                theirs = must(problem, name)
                ratio = theirs.round_s / ours.round_s
                if theirs.fits:
                    holds[name].append(low <= round(ratio, 1) <= high)
                cells.append(f"{ratio:.2f} ({theirs.round_s / best.round_s:.2f})" + ("" if theirs.fits else " x"))
            sheet.rows.append((model.name, env, *cells, ""))
    sheet.figures = [
        share(f"over_{name}", agree, f"asteroid over {name} within the paper's range, plans that fit")
        for name, agree in holds.items()
    ]
    return sheet
