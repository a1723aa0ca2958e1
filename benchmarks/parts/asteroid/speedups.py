"""Table 4: Asteroid over one device, data and pipeline parallelism."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.parts.asteroid.paper import LINKS, SPEED_UPS, Link
from benchmarks.parts.asteroid.planned import FORCED, Planned, must, planned
from benchmarks.parts.asteroid.setting import EFFICIENTNET, Model, environment, posed, usual
from benchmarks.parts.asteroid.sheet import Sheet, beside, near, share
from benchmarks.report import Figure

SHARED = 5
"""Devices that share one link's bandwidth in an all-reduce, if the paper's numbers are to be explained."""
REMARKS = (
    "Ours (the paper's); x: does not fit. search!: no device may be left out. DP / 5: all-reduces at a fifth of the "
    "link's bandwidth. Ring: Mbit/s that the paper's own speed-ups leave for the all-reduce of eq. (5).",
    "Over DP: at 100 Mbit/s the paper's all-reduces ran at 14-28, as if its five devices shared one link. In the "
    "contract's simulation every device has its own, so DP loses less; with a fifth it loses about as much.",
    "Over PP: cuts by time alone may fall where much crosses, so it is as uncertain as the time of single layers. Our "
    "devices take time by FLOPs; where they take it by bytes (below), the small networks come closer to the paper.",
    "BERT: PP cuts attention and feed-forward blocks apart, where two to four times as much crosses as between blocks; "
    "the paper's PP does not, and equals Asteroid's plan. On B at 100 Mbit/s what crosses between blocks takes 10.9 s "
    "a round; the paper's 1.3x needs an NX that takes longer than ours, whose speed at BERT is inferred.",
)


class Cell(NamedTuple):
    """One environment of a model."""

    model: Model
    link: Link
    asteroid: Planned
    device: Planned
    dp: Planned
    pp: Planned | None

    @property
    def dp_shared_s(self) -> float:
        """The round of data parallelism whose all-reduce takes SHARED times as long."""
        return self.dp.round_s + (SHARED - 1) * self.dp.reduce_s

    @property
    def ring_mbit_per_s(self) -> float:
        """Bandwidth at which the all-reduce of eq. (5) takes what the paper's DP takes beyond our computing."""
        paper = SPEED_UPS[self.model.name][self.link]
        dp_s = self.device.round_s / paper.device * paper.dp
        return self.link[1] * self.dp.reduce_s / (dp_s - (self.dp.round_s - self.dp.reduce_s))


def cells(models: Sequence[Model]) -> list[Cell]:
    """Every environment of every model."""
    found = []
    for model in models:
        for link in LINKS:
            problem = usual(model, environment(*link))
            sure = (must(problem, name) for name in ("asteroid", "single", "dp"))
            found.append(Cell(model, link, *sure, planned(problem, "pp")))
    return found


def table4(models: Sequence[Model], searches: Sequence[str] = ("search", FORCED)) -> Sheet:
    """Speed-ups by the paper's planner beside the paper's; by ours below."""
    columns = ("model", "env", "planner", "over device", "over DP", "DP / 5", "ring", "over PP", "round", "plan")
    sheet = Sheet("Table 4: speed-up of Asteroid at the same mini-batch", columns, remarks=list(REMARKS))
    found = cells(models)
    for cell in found:
        problem = usual(cell.model, environment(*cell.link))
        sheet.rows.append(_row(cell, "asteroid", cell.asteroid, compared=True))
        for name in searches:
            sheet.rows.append(_row(cell, name, must(problem, name)))
    sheet.figures = _figures(found)
    return sheet


def _row(cell: Cell, planner: str, ours: Planned, compared: bool = False) -> Sequence[str]:
    paper = SPEED_UPS[cell.model.name][cell.link] if compared else None
    pp = "-" if cell.pp is None else beside(cell.pp.round_s / ours.round_s, paper.pp if paper else None)
    return (
        cell.model.name if compared else "",
        f"{cell.link[0]} {cell.link[1]}" if compared else "",
        planner,
        beside(cell.device.round_s / ours.round_s, paper.device if paper else None),
        beside(cell.dp.round_s / ours.round_s, paper.dp if paper else None),
        beside(cell.dp_shared_s / ours.round_s),
        f"{cell.ring_mbit_per_s:.0f}" if compared else "",
        pp + ("" if cell.pp is None or cell.pp.fits else " x"),
        f"{ours.round_s:.2f} s",
        ours.words,
    )


def _figures(found: Sequence[Cell]) -> list[Figure]:
    def agree(name: str, about: str, seconds: str, of: str) -> Figure:
        pairs = [(getattr(cell, seconds), cell) for cell in found]
        ratios = [(value if isinstance(value, float) else value.round_s, cell) for value, cell in pairs if value]
        return share(
            name,
            (near(s / c.asteroid.round_s, getattr(SPEED_UPS[c.model.name][c.link], of)) for s, c in ratios),
            f"{about} within a quarter of the paper's",
        )

    return [
        agree("table4_over_device", "speed-ups over the best device", "device", "device"),
        agree("table4_over_dp", "speed-ups over data parallelism", "dp", "dp"),
        agree("table4_over_dp_shared", "the same, all-reduce at a fifth of the bandwidth,", "dp_shared_s", "dp"),
        agree("table4_over_pp", "speed-ups over pipeline parallelism", "pp", "pp"),
    ]


def by_bytes(models: Sequence[Model]) -> Sheet:
    """Table 4 over PP once more, with layers that take time by the bytes they keep instead of their FLOPs."""
    sheet = Sheet("Table 4 over PP, layers taking time by bytes", ("model", *(f"{e} {s}" for e, s in LINKS), ""))
    holds = []
    for model in models:
        cells_of = []
        for link in LINKS:
            count = model.mini_batch // model.micro_batch
            problem = posed(model, environment(*link), model.micro_batch, count, by_bytes=True)
            ratio, paper = (
                must(problem, "pp").round_s / must(problem, "asteroid").round_s,
                SPEED_UPS[model.name][link].pp,
            )
            holds.append(near(ratio, paper))
            cells_of.append(beside(ratio, paper))
        sheet.rows.append((model.name, *cells_of, ""))
    about = "speed-ups over PP within a quarter of the paper's, layers taking time by bytes"
    sheet.figures = [share("table4_over_pp_by_bytes", holds, about)]
    return sheet


def micro_batches(sizes: Sequence[int]) -> Sheet:
    """How much Table 4 depends on the size of micro-batches, which the paper does not print."""
    columns = ("micro-batch", *(f"{env} {speed}" for env, speed in LINKS), "plan on B at 100")
    sheet = Sheet("Table 4, EfficientNet-B1 over device by the size of micro-batches", columns)
    for size in sizes:
        problems = [posed(EFFICIENTNET, environment(*link), size, EFFICIENTNET.mini_batch // size) for link in LINKS]
        ratios, words = [], ""
        for problem, link in zip(problems, LINKS, strict=True):
            ours, device = must(problem, "asteroid"), must(problem, "single")
            paper = SPEED_UPS[EFFICIENTNET.name][link].device
            ratios.append(beside(device.round_s / ours.round_s, paper))
            words = ours.words if link == ("B", 100) else words
        sheet.rows.append((f"{size} x {EFFICIENTNET.mini_batch // size}", *ratios, words))
    return sheet
