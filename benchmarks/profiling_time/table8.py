"""Times the profile stage on every device and compares the times with Table 8 of the Asteroid paper.

Holds the four models of the paper with data, three emulated devices, and the printed numbers.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from benchmarks import CONFIGS
from benchmarks.report import Figure, Sheet
from fleetune.contracts import json_io
from fleetune.contracts.fleet import IMAGE, PROCESS, Device, Fleet, Link
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.contracts.task import ignore_progress
from fleetune.contracts.training_request import TrainingRequest
from fleetune.formatting import seconds
from fleetune.launching import Sites
from fleetune.preparation.prepare import PreparationTask, prepare
from fleetune.profiling.profile import profile
from fleetune.profiling.task import ProfilingTask
from flows import yaml_file

MEMORY_BYTES = 6_000_000_000
CORES = {"edge-1.0": 1.0, "edge-0.6": 0.6, "edge-0.3": 0.3}
QUICK_CORES = {"edge-0.6": 0.6}


@dataclass(frozen=True)
class Model:
    """A model of the paper and the settings of its profile."""

    name: str
    """Name in the paper."""
    file: str
    """File in configs/models, without suffix."""
    data: DataRequest
    largest: int
    """Largest batch size; powers of two up to it are measured."""

    @property
    def request(self) -> ModelRequest:
        """The model section of a run file."""
        path = CONFIGS / "models" / f"{self.file}.yaml"
        return json_io.load(ModelRequest, yaml_file.read(path), str(path))


SMALL_IMAGES = DataRequest(source="digits", train_samples=256, test_samples=10)
LARGE_IMAGES = DataRequest(source="digits", image_size=224, train_samples=32, test_samples=10)
TEXTS = DataRequest(source="docstrings", max_length=32, train_samples=256, test_samples=16)

MODELS = (
    Model("EfficientNet-B1", "efficientnet-b1", SMALL_IMAGES, 256),
    Model("MobileNetV2", "mobilenet-v2", SMALL_IMAGES, 256),
    Model("Bert-small", "bert-small", TEXTS, 64),
    Model("ResNet50", "resnet-50", LARGE_IMAGES, 8),
)
QUICK_MODELS = (Model("MobileNetV2", "mobilenet-v2", SMALL_IMAGES, 16),)


def fleet(cores: dict[str, float], launcher: str = PROCESS, image: str = IMAGE) -> Fleet:
    """A fleet of emulated devices; profiling uses no link."""
    return Fleet(
        devices=tuple(
            Device(
                name=name,
                memory_bytes=MEMORY_BYTES,
                cores=share,
                launcher=launcher,
                fingerprint="benchmark",
                emulated=True,
            )
            for name, share in cores.items()
        ),
        links=tuple(Link(source=a, target=b, latency_s=0.0, bytes_per_s=1.0) for a, b in permutations(cores, 2)),
        image=image,
    )


PROFILING_S = {"Jetson Nano": 82 * 60.0, "Jetson TX2": 51 * 60.0, "Jetson NX": 25 * 60.0}
"""Table 8: profiling time of all four models together; the paper prints no times of single models."""
LARGEST_BATCH = {"EfficientNet-B1": 256, "MobileNetV2": 256, "Bert-small": 256, "ResNet50": 32}
"""Largest profiled batch size (the smallest is 1); the paper does not print the sizes between."""


SEED = 1


@dataclass(frozen=True)
class ProfilingTimes:
    """Profiling times of one model on all devices."""

    model: Model
    units: int
    batch_sizes: tuple[int, ...]
    profiling_s: dict[str, float]
    """device -> seconds at the emulated speed, from the first unit in memory to the last one measured"""
    wall_s: float
    """Wall time of everything: preparing data, recording, starting processes, measuring."""


def time_profiling(model: Model, fleet: Fleet, sites: Sites, folder: Path) -> ProfilingTimes:
    """Prepare and profile a model on a fleet whose sites are open, without a cache."""
    began_s = time.perf_counter()
    model_folder, data_folder = folder / "model", folder / "data"
    prepare(
        PreparationTask(
            model=model.request, data=model.data, seed=SEED, model_folder=model_folder, data_folder=data_folder
        )
    )
    made = profile(
        ProfilingTask(
            fleet=fleet,
            model=model.request,
            training=TrainingRequest(rounds=1, batch_samples=model.largest, micro_batch_samples=model.largest),
            seed=SEED,
            model_folder=model_folder,
            data_folder=data_folder,
            output=folder / "profile",
            work=folder / "work",
            sites=sites,
            progress=ignore_progress,
        )
    )
    wall_s = time.perf_counter() - began_s
    spent = {times.device: times.profiling_s or 0.0 for times in made.times}
    return ProfilingTimes(model, len(made.units), made.batch_sizes, spent, wall_s)


ALL = "all four"
TIME_DEFINITIONS = {
    True: "the processor time that measuring took, divided by its share of a core. The processes were not slowed down",
    False: "the processor time that measuring took, divided by its share of a core, to which its container was held",
}


def table8(found: Sequence[ProfilingTimes], fleet: Fleet) -> Sheet:
    """Table 8: a row per model, then the sums beside the paper's devices; cells without a measurement are empty."""
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
        *(_figure(f"profiling_all_{name}", total, _which_models(found)) for name, total in totals.items()),
        _figure("wall_all", wall_s, "data, recording and starting included; all devices at once"),
    ]
    return sheet


def _sizes(one: ProfilingTimes) -> str:
    return f"{one.batch_sizes[0]}-{one.batch_sizes[-1]} (1-{LARGEST_BATCH[one.model.name]})"


def _which_models(found: Sequence[ProfilingTimes]) -> str:
    return ALL if len(found) == len(LARGEST_BATCH) else f"of {', '.join(one.model.name for one in found)} only"


def _figure(name: str, value: float, about: str = "") -> Figure:
    return Figure(name=name, value=value, unit="s", better="lower", about=about)


def _remarks(found: Sequence[ProfilingTimes], fleet: Fleet) -> list[str]:
    """Remarks on emulation, smaller batches and missing models."""
    plain = all(device.launcher == PROCESS for device in fleet.devices)
    shares = ", ".join(f"{device.name} {device.cores:g}" for device in fleet.devices)
    fewer = [one.model.name for one in found if one.batch_sizes[-1] < LARGEST_BATCH[one.model.name]]
    two = [one.model.name for one in found if one.batch_sizes[0] > 1]
    lines = [
        f"Devices are emulated, on processors of this machine: shares of one core ({shares}), no GPU. A device's time "
        f"is {TIME_DEFINITIONS[plain]}.",
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


def _names(found: Sequence[ProfilingTimes]) -> set[str]:
    return {one.model.name for one in found}
