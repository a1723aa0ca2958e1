"""Fig. 18: up to eight Nanos at 100 Mbit/s, 32 samples of a micro-batch for each."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.parts.asteroid.paper import SCALING_OVER_DP
from benchmarks.parts.asteroid.planned import Planned, must
from benchmarks.parts.asteroid.setting import EFFICIENTNET, MOBILENET, alike, posed
from benchmarks.parts.asteroid.sheet import Sheet, share
from benchmarks.parts.asteroid.speedups import SHARED
from benchmarks.report import Figure

PER_DEVICE, MICRO_BATCHES = 32, 16
METHODS = ("dp", "pp", "asteroid", "search")
REMARKS = (
    "Samples per second; x: does not fit. 16 micro-batches a round: the paper prints 32 samples per device, not M.",
    "Over DP (EfficientNet-B1): the paper's all-reduces take about five times as long as the ring over links of their "
    "own (see Table 4); DP / 5 counts them so.",
    "PP: the paper's has less throughput with four stages than with two, for its cuts fall where more crosses; by our "
    "times, which follow FLOPs, they fall later, where less does (see Table 4).",
)


class Point(NamedTuple):
    """Plans for some Nanos."""

    count: int
    plans: dict[str, Planned]

    def per_s(self, method: str) -> float:
        """Samples per second."""
        return self.count * PER_DEVICE * MICRO_BATCHES / self.plans[method].round_s

    @property
    def over_dp(self) -> float:
        """Asteroid's throughput over that of data parallelism."""
        return self.per_s("asteroid") / self.per_s("dp")

    @property
    def over_shared_dp(self) -> float:
        """The same, all-reduces at a fifth of the bandwidth."""
        dp = self.plans["dp"]
        return (dp.round_s + (SHARED - 1) * dp.reduce_s) / self.plans["asteroid"].round_s


def fig18(counts: Sequence[int]) -> Sheet:
    """Throughputs of both models, and what the paper says of them."""
    columns = ("model", "Nanos", *METHODS, "over DP", "over DP / 5", "plan of asteroid")
    sheet = Sheet("Fig. 18: throughput on Nanos at 100 Mbit/s", columns, remarks=list(REMARKS))
    points = {}
    for model in (EFFICIENTNET, MOBILENET):
        points[model] = []
        for count in counts:
            problem = posed(model, alike("nano", count), PER_DEVICE * count, MICRO_BATCHES)
            point = Point(count, {method: must(problem, method) for method in METHODS})
            points[model].append(point)
            sheet.rows.append((model.name, str(count), *_cells(point)))
    sheet.figures = _figures(points[EFFICIENTNET], points[MOBILENET])
    return sheet


def _cells(point: Point) -> Sequence[str]:
    found = [f"{point.per_s(name):.1f}" + ("" if plan.fits else " x") for name, plan in point.plans.items()]
    return (*found, f"{point.over_dp:.2f}", f"{point.over_shared_dp:.2f}", point.plans["asteroid"].words)


def _figures(efficientnet: list[Point], mobilenet: list[Point]) -> list[Figure]:
    low, high = SCALING_OVER_DP
    several = [point for point in efficientnet if point.count > 1]
    last, first = mobilenet[-1], mobilenet[0]
    per_device = last.per_s("asteroid") / last.count / (first.per_s("asteroid") / first.count)
    pp = {point.count: point for point in efficientnet}
    return [
        share("fig18_over_dp", (low <= round(p.over_dp, 1) <= high for p in several), "EfficientNet-B1 within 1.3-2.2"),
        share(
            "fig18_over_dp_shared",
            (low <= round(p.over_shared_dp, 1) <= high for p in several),
            "the same, all-reduces at a fifth of the bandwidth",
        ),
        Figure(
            name="fig18_mobilenet_scaling",
            value=per_device,
            unit="of linear",
            target=0.9,
            better="higher",
            about=f"MobileNetV2, {last.count} Nanos beside {first.count}; the paper: near-linear",
        ),
        Figure(
            name="fig18_pp_4_over_2",
            value=pp[4].per_s("pp") / pp[2].per_s("pp"),
            unit="x",
            target=1.0,
            better="lower",
            about="PP with four stages beside two; the paper: less throughput",
        ),
        share(
            "fig18_pp_out_of_memory",
            [pp[count].plans["pp"].fits == (count < 6) for count in (2, 4, 6)],
            "PP of EfficientNet-B1 fits up to four Nanos, not six, as in the paper",
        ),
    ]
