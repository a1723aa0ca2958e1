"""Images processed by the model's own image processor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoImageProcessor

from fleetune.errors import Refused
from tests.support.data.image_processors import model_folder, pictures, spec_for, stored
from tests.support.data.samples import prepared, whole

VIT = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 12, "width": 12},
    "resample": 3,
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.25, 0.3],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "bicubic, means by channel": VIT,
    "values as they are": {**VIT, "do_normalize": False, "do_rescale": False},
    "another scale": {**VIT, "rescale_factor": 1 / 127.5},
    "shortest edge, then a crop": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 14},
        "crop_size": {"height": 10, "width": 10},
    },
    "a share of the crop": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 16}},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_pixels_are_the_processors_own(case: str, tmp_path: Path) -> None:
    """Regression: preprocessor_config.json was ignored; pixels must equal those of the model's processor."""
    images = pictures(tmp_path / "set")
    folder = model_folder(tmp_path / "model", SETTINGS[case])
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(folder))
    for place in (folder, data.processing):
        processor = AutoImageProcessor.from_pretrained(place, backend="pil")
        wanted = processor([image.convert("RGB") for image in images.values()], return_tensors="np")["pixel_values"]
        assert stored(data) == {row.astype(np.float32).tobytes() for row in wanted}


@pytest.mark.parametrize("case", ["bicubic, means by channel", "shortest edge, then a crop", "a share of the crop"])
def test_request_changes_the_size_and_the_export_says_so(case: str, tmp_path: Path) -> None:
    """data.image_size overrides the processor's size, and the exported processor has that size."""
    images = pictures(tmp_path / "set")
    folder = model_folder(tmp_path / "model", SETTINGS[case])
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(folder), image_size=8)
    exported = AutoImageProcessor.from_pretrained(data.processing, backend="pil")
    wanted = exported([image.convert("RGB") for image in images.values()], return_tensors="np")["pixel_values"]
    assert wanted.shape[1:] == (3, 8, 8)
    assert stored(data) == {row.tobytes() for row in wanted}


@pytest.mark.parametrize(
    ("kind", "size", "crop", "scaled", "cropped"),
    [
        ("BitImageProcessor", {"shortest_edge": 32}, 28, {"shortest_edge": 16}, 14),  # DINOv2
        ("MobileNetV2ImageProcessor", {"shortest_edge": 32}, 28, {"shortest_edge": 16}, 14),
        ("DeiTImageProcessor", {"height": 32, "width": 32}, 28, {"height": 16, "width": 16}, 14),
        ("PerceiverImageProcessor", {"height": 28, "width": 28}, 32, {"height": 14, "width": 14}, 16),
        ("CLIPImageProcessor", {"shortest_edge": 28}, 28, {"shortest_edge": 14}, 14),
    ],
)
def test_another_size_crops_the_same_share(
    kind: str, size: dict[str, int], crop: int, scaled: dict[str, int], cropped: int, tmp_path: Path
) -> None:
    """Bug: resized to the size that was asked for, images lost no margin, which these models were trained without."""
    images = pictures(tmp_path / "set")
    square = {"height": crop, "width": crop}
    settings = {"image_processor_type": kind, "size": size, "crop_size": square, "do_center_crop": True}
    folder = model_folder(tmp_path / "model", {**settings, "do_resize": True, "resample": 3})
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(folder), image_size=14)
    own = AutoImageProcessor.from_pretrained(
        folder, backend="pil", size=scaled, crop_size={"height": cropped, "width": cropped}
    )
    wanted = own([image.convert("RGB") for image in images.values()], return_tensors="np")["pixel_values"]
    assert wanted.shape[1:] == (3, 14, 14)
    assert stored(data) == {row.astype(np.float32).tobytes() for row in wanted}


def test_a_model_without_a_processor_gets_one(tmp_path: Path) -> None:
    """The processor exported for a model without one reproduces the pixels up to a grey level."""
    images = pictures(tmp_path / "set")
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(None, image_size=9))
    exported = AutoImageProcessor.from_pretrained(data.processing, backend="pil")
    wanted = exported([image.convert("RGB") for image in images.values()], return_tensors="np")["pixel_values"]
    rows = [row for split in ("train", "test") for row in whole(data, split)["pixel_values"]]
    for row in wanted:
        assert min(float(np.abs(row - other).max()) for other in rows) <= 1 / 255 / 0.5


def test_a_pretrained_folder_without_a_processor_is_told(tmp_path: Path) -> None:
    """Its weights know images that were normalised in their own way, which nobody knows here; new ones know none."""
    pictures(tmp_path / "set")
    for pretrained in (True, False):
        data = prepared(
            tmp_path / f"d{pretrained}", tmp_path / "set", spec_for(None, image_size=9, pretrained=pretrained)
        )
        told = [note for note in data.info.notes if "no preprocessor_config.json" in note]
        assert len(told) == pretrained, data.info.notes


def test_grey_models_take_grey(tmp_path: Path) -> None:
    """A processor with one mean serves a model of one channel."""
    settings = {**VIT, "image_mean": [0.5], "image_std": [0.5]}
    data = prepared(
        tmp_path / "d", "digits", spec_for(model_folder(tmp_path / "m", settings), channels=1), train_samples=9
    )
    assert whole(data, "train")["pixel_values"].shape == (9, 1, 12, 12)


def test_images_of_several_shapes_are_refused_by_name(tmp_path: Path) -> None:
    """Images whose processed shapes differ cannot form a batch; the refusal names the row."""
    pictures(tmp_path / "set")
    settings = {**SETTINGS["shortest edge, then a crop"], "do_center_crop": False}
    folder = model_folder(tmp_path / "m", settings)
    with pytest.raises(Refused, match=r"line \d+: the model's image processor makes \[3, .* crop all images"):
        prepared(tmp_path / "d", tmp_path / "set", spec_for(folder))


@pytest.mark.parametrize("content", ["{", "{}", '{"image_processor_type": "NoSuchProcessor"}', '{"size": 3}'])
def test_a_damaged_processor_is_refused(content: str, tmp_path: Path) -> None:
    """A damaged processor config is refused by its file name, without a fallback."""
    pictures(tmp_path / "set")
    (model_folder(tmp_path / "m", VIT) / "preprocessor_config.json").write_text(content)
    with pytest.raises(Refused, match=r"preprocessor_config\.json: not a usable image processor"):
        prepared(tmp_path / "d", tmp_path / "set", spec_for(tmp_path / "m"))
