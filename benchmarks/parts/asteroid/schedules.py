"""Fig. 15b: schedules and warm-up policies, and their memory, of EfficientNet-B1 on three TX2."""

from benchmarks.parts.asteroid.planned import Planned, costed, must
from benchmarks.parts.asteroid.setting import EFFICIENTNET, alike, posed
from benchmarks.parts.asteroid.sheet import Sheet
from benchmarks.report import Figure
from fleetune.solving.hpp.draft import peak_bytes
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.warmup import POLICIES, warmups

STAGES = 3
OURS = "2(P-p)-1"
REMARKS = (
    "One pipeline of three stages, planned with 2(P-p)-1 and then run with other warm-ups. Backward after forward "
    "(GPipe) keeps all micro-batches at once. Peaks are of the device that needs most; the paper's bars are an image.",
    "Data parallelism needs less than any pipeline where it too accumulates gradients over micro-batches; the paper's "
    "needs more, as it does with its whole share of the mini-batch at once.",
)


def fig15b(mini_batch: int = EFFICIENTNET.mini_batch, micro_batch: int = 64) -> Sheet:
    """Peak memory and throughput."""
    micro_batches = mini_batch // micro_batch
    fleet = alike("tx2", STAGES)
    problem = posed(EFFICIENTNET, fleet, micro_batch, micro_batches, tuple(warmups(OURS, STAGES, micro_batches)))
    base, dp = must(problem, "asteroid"), must(posed(EFFICIENTNET, fleet, micro_batch, micro_batches), "dp")
    instance = Instance(problem)
    kept = {name: tuple(warmups(name, STAGES, micro_batches)) for name in POLICIES}
    kept["backward after forward"] = (micro_batches,) * STAGES
    rows = {name: costed(instance, base.draft._replace(warmups=k)) for name, k in kept.items()}
    columns = ("schedule", "K", "peak MB", "samples/s", "fits 6500 MB", "")
    sheet = Sheet(f"Fig. 15b: {micro_batches} micro-batches of {micro_batch}: {base.words}", columns)
    sheet.remarks = list(REMARKS)
    for name, found in {**rows, "data parallel": dp}.items():
        keeps = ", ".join(map(str, kept.get(name, (1,))))
        speed = f"{mini_batch / found.round_s:.0f}"
        sheet.rows.append((name, keeps, f"{found.peak_bytes / 1e6:.0f}", speed, "yes" if found.fits else "x", ""))
    at_once = peak_bytes(instance, dp.draft.stages[0], 1, -(-mini_batch // STAGES))
    at_once_words = (f"{at_once / 1e6:.0f}", "", "yes" if at_once <= instance.memory_bytes[0] else "x", "")
    sheet.rows.append(("data parallel, no micro-batches", "1", *at_once_words))
    sheet.figures = _figures(rows, at_once)
    return sheet


def _figures(rows: dict[str, Planned], dp_bytes: int) -> list[Figure]:
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
