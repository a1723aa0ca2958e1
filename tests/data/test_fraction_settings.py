"""DINOv3's image processor, which makes fractions of pixels before it resizes; transformers' needs torchvision."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from fleetune.data.fraction_settings import MEAN, STD, fraction_settings
from fleetune.errors import Refused
from tests.support.data.image_processors import model_folder, pictures, spec_for, stored
from tests.support.data.samples import prepared

DINOV3 = {
    "image_processor_type": "DINOv3ViTImageProcessorFast",
    "size": {"height": 12, "width": 12},
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "do_center_crop": None,
}


def wanted(image: Any, side: int) -> np.ndarray:
    """The processor's steps one by one: fractions, torch's bilinear resizing with antialiasing, normalisation."""
    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None].double() / 255
    resized = interpolate(pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False)[0]
    mean, std = torch.tensor(MEAN).double()[:, None, None], torch.tensor(STD).double()[:, None, None]
    return ((resized - mean) / std).float().numpy()


@pytest.mark.parametrize("side", [None, 8])
def test_pixels_are_those_of_its_steps_one_by_one(side: int | None, tmp_path: Path) -> None:
    """Pictures of several shapes and modes, at the file's size and at another one that the run asks for."""
    images = pictures(tmp_path / "set")
    folder = model_folder(tmp_path / "model", DINOV3)
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(folder), **({"image_size": side} if side else {}))
    found = [np.frombuffer(row, dtype=np.float32) for row in stored(data)]
    for image in images.values():
        row = wanted(image, side or 12).ravel()
        assert min(float(np.abs(row - other).max()) for other in found) < 1e-6


def test_what_is_saved_makes_the_same_again(tmp_path: Path) -> None:
    """The exported folder has the processor's own type, the size that was asked for, and the means that were used."""
    pictures(tmp_path / "set")
    folder = model_folder(tmp_path / "model", DINOV3)
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(folder), image_size=8)
    assert data.processing is not None, "images have a processor"
    saved = json.loads((data.processing / "preprocessor_config.json").read_text())
    assert saved["image_processor_type"] == "DINOv3ViTImageProcessorFast"
    assert saved["size"] == {"height": 8, "width": 8} and saved["image_mean"] == MEAN
    assert stored(prepared(tmp_path / "e", tmp_path / "set", spec_for(data.processing))) == stored(data)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"resample": 3}, "resample is 3, of which only 2 is implemented"),
        ({"do_center_crop": True}, "do_center_crop is True"),
        ({"rescale_factor": 0.5}, "rescale_factor is 0.5"),
        ({"size": {"shortest_edge": 12}}, "give a height and a width that are the same"),
        ({"size": {"height": 12, "width": 8}}, "give a height and a width that are the same"),
        ({"size": 12}, "give a height and a width that are the same"),
    ],
)
def test_other_settings_are_refused_by_name(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Pixels that the model was not made for would be worse than no training."""
    with pytest.raises(Refused, match=says):
        fraction_settings(model_folder(tmp_path / "model", {**DINOV3, **change}))


def test_other_files_are_left_to_transformers(tmp_path: Path) -> None:
    """Other types, and damaged or missing files."""
    assert fraction_settings(model_folder(tmp_path / "a", {"image_processor_type": "ViTImageProcessor"})) is None
    assert fraction_settings(tmp_path / "none") is None
    (model_folder(tmp_path / "b", {}) / "preprocessor_config.json").write_text("{")
    assert fraction_settings(tmp_path / "b") is None
