"""Images of any shape for a model that takes patches: those of the model's own processor, whatever their shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import AutoImageProcessor

from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.job import Preparation, SharedChoices
from fleetune.data.local_data import prepare, report_digest
from fleetune.data.prepared_data import PATCH_GRID, PATCH_MASK, PIXELS, PreparedData
from fleetune.data.unlabelled import asked_images
from fleetune.evaluation.prediction import Predictor
from tests.support.data.image_processors import model_folder, pictures, spec_for
from tests.support.data.samples import prepared, whole

SETTINGS = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 4, "max_num_patches": 20}
NAMES = (PIXELS, PATCH_MASK, PATCH_GRID)


def rows_of(found: Any) -> set[bytes]:
    """All images of arrays by name, each as the bytes of what belongs to it."""
    arrays = [np.asarray(found[name]).astype(np.float32) for name in NAMES]
    return {b"".join(each[row].tobytes() for each in arrays) for row in range(len(arrays[0]))}


def stored(data: PreparedData) -> set[bytes]:
    """The same of prepared data."""
    return rows_of(whole(data, "train")) | rows_of(whole(data, "test"))


@pytest.mark.parametrize("side, patches", [(None, 20), (16, 16)])
def test_arrays_are_those_of_the_models_own_processor(side: int | None, patches: int, tmp_path: Path) -> None:
    """Wide and high images side by side, padded to one number of patches, which data.image_size changes to that of a
    square image; what is saved with the data makes the same of an image.
    """
    images = pictures(tmp_path / "set")
    folder = model_folder(tmp_path / "model", SETTINGS)
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(folder), **({"image_size": side} if side else {}))
    assert data.shape(PIXELS) == (patches, 4 * 4 * 3)
    processor = AutoImageProcessor.from_pretrained(data.processing, backend="pil")
    wanted = processor([image.convert("RGB") for image in images.values()], return_tensors="np")
    assert stored(data) == rows_of(wanted)
    grids = whole(data, "train")[PATCH_GRID]
    assert len(np.unique(grids, axis=0)) > 1
    assert (grids.prod(axis=1) == whole(data, "train")[PATCH_MASK].sum(axis=1)).all()


def test_a_model_of_random_weights_gets_the_processor_of_its_patches(tmp_path: Path) -> None:
    """The model's configuration says how large and how many patches are, and the processor is saved with the data."""
    pictures(tmp_path / "set")
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(None, patches=(4, 20)))
    again = prepared(tmp_path / "e", tmp_path / "set", spec_for(data.processing))
    assert stored(data) == stored(again)


def test_devices_that_prepare_their_own_images_agree_on_the_patches(tmp_path: Path) -> None:
    """What a device is told of the shape that all have leads it to arrays of that shape, which are then accepted."""
    pictures(tmp_path / "set")
    spec, request = spec_for(None, patches=(4, 20)), DataRequest(source=str(tmp_path / "set"))
    common = prepared(tmp_path / "d", tmp_path / "set", spec)
    (shape,) = {array.shape[-2:] for split in common.info.splits for array in split.arrays if array.name == PIXELS}
    asked = Preparation(
        request=request,
        spec=spec,
        seed=0,
        expected_digest=report_digest(request, spec.task),
        shared=SharedChoices(label_ids={"0": 0, "1": 1}, labels=common.labels, image_shape=(shape[0], shape[1])),
    )
    assert prepare(asked, tmp_path / "own").samples == 12
    assert rows_of(whole(PreparedData(tmp_path / "own"), "train")) == stored(common)


class Rows(nn.Module):
    """Logits of two classes: how many rows and how many columns of patches an image has."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = nn.Parameter(torch.ones(1))

    def forward(self, pixel_values: Any, pixel_attention_mask: Any, spatial_shapes: Any) -> Any:
        assert pixel_values.dtype == torch.float32
        assert pixel_attention_mask.dtype == spatial_shapes.dtype == torch.int64
        return type("Output", (), {"logits": spatial_shapes * self.unit})


def test_predictions_are_of_images_in_their_own_shape(tmp_path: Path) -> None:
    """A high and a wide picture reach the model with their own rows and columns of patches."""
    pictures(tmp_path / "set")
    data = prepared(tmp_path / "d", tmp_path / "set", spec_for(None, patches=(4, 20)))
    for name, size in (("high", (10, 60)), ("wide", (60, 10))):
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    asked = asked_images([tmp_path / "high.png", tmp_path / "wide.png"])
    assert [each.label for each in Predictor(model=Rows(), data=data).predictions(asked)] == ["0", "1"]


def test_other_models_are_told_nothing_of_patches(tmp_path: Path) -> None:
    """A model of square images has pixels alone, as before."""
    pictures(tmp_path / "set")
    data = prepared(tmp_path / "d", tmp_path / "set", InputSpec(task="image-classification", image_size=8))
    assert set(whole(data, "train")) == {PIXELS, "labels"}
