"""Over all problems of Tables 2 to 7: `search` beside the paper's planner and beside itself with all devices."""

from collections.abc import Sequence

from benchmarks.parts.asteroid.paper import LINKS
from benchmarks.parts.asteroid.planned import FORCED, must, planned
from benchmarks.parts.asteroid.setting import Model, environment, usual
from benchmarks.parts.asteroid.sheet import Sheet
from benchmarks.report import Figure


def fair(models: Sequence[Model], forced: bool) -> Sheet:
    """Ratios of rounds above 1 say that search is faster."""
    links = (*LINKS, ("C", 100), ("D", 100))
    columns = ("model", *(f"{env} {speed}" for env, speed in links), "")
    title = "asteroid's round over search's" + (" (over search!'s, which leaves no device out)" if forced else "")
    sheet = Sheet(title, columns)
    over_asteroid, over_forced = [], []
    for model in models:
        cells = []
        for link in links:
            problem = usual(model, environment(*link))
            ours, theirs = must(problem, "search"), planned(problem, "asteroid")
            cell = "-" if theirs is None else f"{theirs.round_s / ours.round_s:.3f}"
            over_asteroid += [] if theirs is None else [theirs.round_s / ours.round_s]
            everybody = planned(problem, FORCED) if forced else None
            if everybody is not None:
                over_forced.append(everybody.round_s / ours.round_s)
                cell += f" ({(theirs or everybody).round_s / everybody.round_s:.3f})"
            cells.append(cell)
        sheet.rows.append((model.name, *cells, ""))
    sheet.figures = [_least("search_over_asteroid", over_asteroid, "asteroid's round over search's")]
    if forced:
        sheet.figures.append(_least("search_over_forced", over_forced, "search!'s round over search's"))
    return sheet


def _least(name: str, ratios: list[float], about: str) -> Figure:
    return Figure(
        name=name,
        value=min(ratios),
        unit="x",
        target=1.0,
        better="higher",
        spread=(min(ratios), max(ratios)),
        about=f"the least {about}",
    )
