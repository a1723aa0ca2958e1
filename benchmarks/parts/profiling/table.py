"""Our profiling times beside the paper's Table 8, and what must be known to read them."""

from collections.abc import Sequence

from benchmarks.parts.asteroid.sheet import Sheet
from benchmarks.parts.profiling.paper import LARGEST_BATCH, PROFILING_S
from benchmarks.parts.profiling.timed import Timed
from benchmarks.report import Figure
from fleetune.contracts.fleet import PROCESS, Fleet
from fleetune.drawing.formatting import seconds

ALL = "all four"
HELD = {
    True: "the processor time that measuring took, divided by its share of a core. The processes were not slowed down",
    False: "the processor time that measuring took, divided by its share of a core, to which its container was held",
}


def table8(found: Sequence[Timed], fleet: Fleet) -> Sheet:
    """A row for every model, then all of them with the paper's devices beside; what nobody measured is left empty."""
    names = [device.name for device in fleet.devices]
    paper = [f"{name.removeprefix('Jetson ')} (paper)" for name in PROFILING_S]
    columns = ("model", "units", "batches (paper)", *names, "wall", *paper)
    sheet = Sheet("Table 8: profiling time of a device", columns, remarks=_remarks(found, fleet))
    nothing = [""] * len(paper)
    for one in found:
        spent = (seconds(one.profiling_s[name]) for name in names)
        sheet.rows.append((one.model.name, str(one.units), _sizes(one), *spent, seconds(one.wall_s), *nothing))
    totals = {name: sum(one.profiling_s[name] for one in found) for name in names}
    wall_s = sum(one.wall_s for one in found)
    theirs = [f"{total_s / 60:.0f} min" for total_s in PROFILING_S.values()]
    if len(found) < len(LARGEST_BATCH):
        sheet.rows.append((ALL, "", "", *[""] * len(names), "", *theirs))
    else:
        sheet.rows.append((ALL, "", "", *map(seconds, totals.values()), seconds(wall_s), *theirs))
    sheet.figures = [
        *(_figure(f"profiling_{one.model.file}_{name}", one.profiling_s[name]) for one in found for name in names),
        *(_figure(f"profiling_all_{name}", total, _all(found)) for name, total in totals.items()),
        _figure("wall_all", wall_s, "data, recording and starting included; all devices at once"),
    ]
    return sheet


def _sizes(one: Timed) -> str:
    return f"{one.batch_sizes[0]}-{one.batch_sizes[-1]} (1-{LARGEST_BATCH[one.model.name]})"


def _all(found: Sequence[Timed]) -> str:
    return ALL if len(found) == len(LARGEST_BATCH) else f"of {', '.join(one.model.name for one in found)} only"


def _figure(name: str, value: float, about: str = "") -> Figure:
    return Figure(name=name, value=value, unit="s", better="lower", about=about)


def _remarks(found: Sequence[Timed], fleet: Fleet) -> list[str]:
    """What is emulated, smaller or cannot be compared."""
    plain = all(device.launcher == PROCESS for device in fleet.devices)
    shares = ", ".join(f"{device.name} {device.cores:g}" for device in fleet.devices)
    fewer = [one.model.name for one in found if one.batch_sizes[-1] < LARGEST_BATCH[one.model.name]]
    two = [one.model.name for one in found if one.batch_sizes[0] > 1]
    lines = [
        f"Devices are emulated, on processors of this machine: shares of one core ({shares}), no GPU. A device's time "
        f"is {HELD[plain]}.",
        "The paper's are Jetson boards with GPUs, so the two cannot be compared: they stand beside each other for "
        "their order of magnitude. It prints only all four models together.",
        "We measure powers of two, each in 5 passes after one that warms up; which sizes the paper measures between "
        "the ends, and how often, it does not print.",
        "Wall is what all devices at once took on this machine, with data, recording and starting.",
        "Units are modules without children. Weights are random; images are digits enlarged to the paper's sizes, "
        "texts are docstrings of 32 tokens.",
    ]
    if fewer:
        lines.append(
            f"Smaller than in the paper: the largest batch of {', '.join(fewer)}. Nothing is scaled up for it."
        )
    if len(found) < len(LARGEST_BATCH):
        lines.append(f"Left out of the paper's four: {', '.join(sorted(set(LARGEST_BATCH) - _names(found)))}.")
    if two:
        lines.append(f"From 2 on: at 32 x 32 pixels batch norms of {', '.join(two)} cannot be trained on one sample.")
    return lines


def _names(found: Sequence[Timed]) -> set[str]:
    return {one.model.name for one in found}
