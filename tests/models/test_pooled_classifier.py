"""Classifiers of backbones that transformers has no classifier of: DINOv3 and others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, PretrainedConfig

from benchmarks.families.small_configs import small_config
from benchmarks.families.trial import BITWISE, BOUND, try_family
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.evaluation.trained_model import load_trained_model
from fleetune.models import pooled_classifier
from fleetune.models.export import export_model
from fleetune.models.init_weights import INIT_WEIGHTS, initial_model, write_init_weights
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.unit_graph import record_units
from tests.support.models.instances import LABELS

TASK = "image-classification"
DINO = ("dinov3_vit", "dinov3_convnext")


def backbone_of(model_type: str, folder: Path) -> Any:
    """Save a small random backbone as the hub has it, without a head, and return it."""
    changes = small_config(model_type)
    changes.pop("model_type")
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **changes)).eval()
    model.save_pretrained(folder)
    return model


def started(folder: Path, **changes: Any) -> tuple[PretrainedConfig, ModelRequest, Path]:
    """Write the weights that training starts from."""
    request = ModelRequest(task=TASK, source=str(folder), **changes)
    config = configuration(request, LABELS)
    write_init_weights(config, request, 3, folder / INIT_WEIGHTS)
    return config, request, folder / INIT_WEIGHTS


def images(samples: int = 3) -> torch.Tensor:
    """Random pixels."""
    return torch.randn(samples, 3, 32, 32, generator=torch.Generator().manual_seed(samples))


@pytest.mark.parametrize("model_type", [*DINO, "siglip_vision_model", "aimv2_vision_model"])
def test_it_trains_as_the_plain_model_does(model_type: str) -> None:
    """Cut between all units, two steps, random moves of DINOv3's positions included: all bits, or within rounding."""
    assert try_family(TASK, small_config(model_type)).status in (BITWISE, BOUND)


def test_a_recording_leaves_nothing_behind_in_the_model(tmp_path: Path) -> None:
    """Bug: DINOv3 keeps the places of patches for later calls, and had those of the recording's fake tensors then."""
    request = ModelRequest(task=TASK, config=small_config("dinov3_vit"))
    config = configuration(request, LABELS)
    odd = torch.randn(2, 3, 24, 24)  # a size that nothing else in this process has, so that no call was kept before
    record_units(skeleton(config, request), {"pixel_values": odd}, "block")
    write_init_weights(config, request, 3, tmp_path / INIT_WEIGHTS)
    assert initial_model(config, request, tmp_path / INIT_WEIGHTS)(odd).logits.isfinite().all()


@pytest.mark.parametrize("model_type", DINO)
def test_a_folder_of_the_backbone_is_the_start_and_gets_a_head(model_type: str, tmp_path: Path) -> None:
    """Its logits are a linear layer on what the backbone of the folder pools, so that no weight of it is drawn anew."""
    backbone = backbone_of(model_type, tmp_path)
    model: Any = initial_model(*started(tmp_path))
    with torch.no_grad():
        assert torch.equal(model(images()).logits, model.classifier(backbone(images()).pooler_output))
    assert model.classifier.out_features == len(LABELS)


@pytest.mark.parametrize("model_type", DINO)
def test_an_exported_folder_is_read_by_transformers_and_by_us(model_type: str, tmp_path: Path) -> None:
    """`AutoModel` finds the whole backbone in it; here it is loaded with its head, and trained on with its classes."""
    backbone_of(model_type, tmp_path)
    config, request, start = started(tmp_path)
    folder = export_model(config, request, start, {}, tmp_path / "out")
    model: Any = load_trained_model(folder, TASK)
    backbone, told = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    with torch.no_grad():
        wanted = model(images()).logits
        assert torch.equal(wanted, model.classifier(backbone.eval()(images()).pooler_output))
    again = ModelRequest(task=TASK, source=str(folder))
    assert configuration(again).id2label == dict(enumerate(LABELS))
    write_init_weights(configuration(again, LABELS), again, 9, tmp_path / "again")
    with torch.no_grad():
        assert torch.equal(
            initial_model(configuration(again, LABELS), again, tmp_path / "again")(images()).logits, wanted
        )


def test_a_backbone_that_pools_nothing_is_refused(tmp_path: Path) -> None:
    """Masked autoencoders have no feature of the whole image; the message says so, and no traceback."""
    request = ModelRequest(task=TASK, config=small_config("vit_mae"))
    config = configuration(request, LABELS)
    write_init_weights(config, request, 3, tmp_path / INIT_WEIGHTS)
    with pytest.raises(Refused, match="ViTMAEModel pools no features of an image"):
        initial_model(config, request, tmp_path / INIT_WEIGHTS)(images())


def test_other_names_are_no_attributes() -> None:
    """Only names of classifiers are made up."""
    assert pooled_classifier.DINOv3ViTForImageClassification.__name__ == "DINOv3ViTForImageClassification"
    with pytest.raises(AttributeError, match="no attribute DINOv3"):
        pooled_classifier.DINOv3  # noqa: B018
