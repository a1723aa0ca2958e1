"""Table 7: how long the paper's planner takes on environment C."""

from collections.abc import Sequence

from benchmarks.parts.asteroid.paper import PLANNING_S
from benchmarks.parts.asteroid.planned import must
from benchmarks.parts.asteroid.setting import EFFICIENTNET, MOBILENET, Model, environment, posed, usual
from benchmarks.parts.asteroid.sheet import Sheet
from benchmarks.report import Figure

REMARKS = (
    "The paper planned on a Jetson NX, 213 layers of EfficientNet-B1 and 56 of BERT; ours are every module without "
    "children (activations and dropout among them). Compiled before it is timed.",
)


def table7(models: Sequence[Model]) -> Sheet:
    """Seconds of `asteroid` and of `search`."""
    columns = ("model", "layers", "asteroid (paper's)", "search", "round of search / asteroid", "")
    sheet = Sheet("Table 7: planning time on environment C", columns, remarks=list(REMARKS))
    for method in ("asteroid", "search"):  # compiled by a smaller problem
        must(posed(MOBILENET, environment("D"), 16, 4), method)
    for model in models:
        problem = usual(model, environment("C"))
        theirs, ours = must(problem, "asteroid"), must(problem, "search")
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
                Figure(name=f"table7_{name}", value=spent_s, unit="s", target=480, better="lower", about=about)
                for name, spent_s in pairs
            ]
    return sheet
