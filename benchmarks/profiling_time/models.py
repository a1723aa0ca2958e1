"""The four models of the Asteroid paper with data, three emulated devices, and the paper's Table 8."""

from dataclasses import dataclass
from itertools import permutations

from benchmarks import CONFIGS
from fleetune.contracts import json_io
from fleetune.contracts.fleet import IMAGE, PROCESS, Device, Fleet, Link
from fleetune.contracts.run_config import DataRequest, ModelRequest
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
