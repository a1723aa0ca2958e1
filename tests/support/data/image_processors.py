"""Pictures, and models whose own image processors prepare them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fleetune.contracts.input_spec import InputSpec
from fleetune.data.prepared_data import PreparedData
from tests.support.data.samples import json_lines, whole


def model_folder(folder: Path, settings: dict[str, Any]) -> Path:
    """A folder with a preprocessor_config.json and nothing else."""
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def spec_for(folder: Path | None, **changes: Any) -> InputSpec:
    """Input specification of a model of colour images with that processor."""
    return InputSpec(task="image-classification", image_processor=folder, **changes)


def pictures(folder: Path) -> dict[str, Image.Image]:
    """Twelve PNG files of different shapes and modes with a table of them, by file name."""
    drawn, found = np.random.default_rng(3), {}
    folder.mkdir()
    for n in range(12):
        mode, channels = (("RGB", 3), ("L", 0), ("RGBA", 4))[n % 3]
        pixels = drawn.integers(0, 256, (18 + n, 30 - n, channels) if channels else (18 + n, 30 - n), dtype=np.uint8)
        found[f"{n}.png"] = Image.fromarray(pixels, mode)
        found[f"{n}.png"].save(folder / f"{n}.png")
    json_lines(folder / "train.jsonl", [{"image": name, "label": n % 2} for n, name in enumerate(found)])
    return found


def stored(data: PreparedData) -> set[bytes]:
    """Pixel bytes of every image of both splits."""
    return {row.tobytes() for split in ("train", "test") for row in whole(data, split)["pixel_values"]}
