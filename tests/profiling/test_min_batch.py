"""How few samples a model can be trained on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fleetune.contracts.run_config import ModelRequest, TrainingRequest
from fleetune.errors import Refused
from fleetune.models.graph import Graph
from fleetune.models.recorder import record_model
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable
from fleetune.profiling.min_batch import min_samples
from fleetune.profiling.profile import batch_sizes, profile
from fleetune.profiling.task import ProfilingTask
from tests.profiling.instances import Scripted, ScriptedJob, costs, profiling_task
from tests.training.model_families import BY_NAME, data_request, model_request

FAMILY = BY_NAME["mobilenet_v2"]
SMALL = model_request(FAMILY, dropout=True)


def recorded(request: ModelRequest, side: int) -> tuple[Graph, torch.nn.Module]:
    """An image model, and its graph."""
    module = skeleton(configuration(request, ("one", "other")), request)
    graph = record_model(
        module, {"pixel_values": torch.zeros(4, 3, side, side)}, leaf_modules(module, request.granularity)
    )
    return merge_uncuttable(fold_into_units(graph)), module


@pytest.mark.parametrize(
    ("name", "side", "granularity", "least"),
    [
        ("mobilenet_v2", 32, "layer", 1),
        ("mobilenet_v2", 8, "layer", 2),
        ("mobilenet_v2", 8, "block", 2),
        ("resnet", 32, "block", 1),
        ("vit", 16, "block", 1),
    ],
)
def test_a_batch_norm_over_single_values_needs_two_samples(name: str, side: int, granularity: str, least: int) -> None:
    """However deep inside a unit it is, on images so small that one pixel is left of them."""
    request = model_request(BY_NAME[name], dropout=True, granularity=granularity)
    graph, module = recorded(request, side)
    assert min_samples(graph, module) == least
    whole = module.to_empty(device="cpu")
    if least == 2:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            whole(pixel_values=torch.zeros(1, 3, side, side))
    else:
        whole(pixel_values=torch.zeros(1, 3, side, side))


def test_batch_sizes_begin_where_the_model_can() -> None:
    """At 2 as well as at 1."""
    assert batch_sizes(8, 2) == (2, 4, 8)
    assert batch_sizes(2, 2) == (2,)
    assert batch_sizes(3, 2) == (2, 3)


def small_images(folder: Path, launcher: Scripted, micro_batch_samples: int) -> ProfilingTask:
    """To profile a network that leaves one pixel of its images."""
    data = replace(data_request(FAMILY, folder), image_size=8)
    return replace(
        profiling_task(folder, launcher, ("ann",), SMALL, data),
        training=TrainingRequest(rounds=1, batch_samples=4, micro_batch_samples=micro_batch_samples),
    )


def test_devices_are_not_asked_for_what_cannot_be_trained(tmp_path: Path) -> None:
    """The profile has no such batch size."""
    units = len(recorded(SMALL, 8)[0].units)
    launcher = Scripted({"ann": ScriptedJob([costs(units, 1.0, (2, 4))], 0)})
    assert profile(small_images(tmp_path, launcher, 4)).batch_sizes == (2, 4)
    assert launcher.given["ann"].batch_sizes == (2, 4)


def test_micro_batches_that_cannot_be_trained_are_refused(tmp_path: Path) -> None:
    """Before any device is asked."""
    launcher = Scripted({})
    with pytest.raises(Refused, match="micro_batch_samples is 1, but a batch norm .* at least 2 samples; raise it"):
        profile(small_images(tmp_path, launcher, 1))
    assert not launcher.given
