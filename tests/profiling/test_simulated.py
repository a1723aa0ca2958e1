"""Times of simulated devices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Device, Fleet, ModelSpeed, SimulatedDevice
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.models.graph import Graph
from fleetune.models.recorder import record_model
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable
from fleetune.profiling.profile import batch_sizes, profile
from fleetune.profiling.simulated import UnitWork, simulated_times, unit_work
from flows import configs, yaml_file
from tests.support.profiling.instances import Scripted, profiling_task

CONFIGS = Path(__file__).parents[2] / "configs"
MINUTES = 60.0
HOURS = 3600.0


def board(**speeds: float) -> Device:
    """A simulated device."""
    simulated = SimulatedDevice(memory_bytes=1 << 30, speeds=(ModelSpeed(**speeds),))  # type: ignore[arg-type]
    return Device(name="board", memory_bytes=1 << 30, cores=1, fingerprint="f", simulated=simulated)


def recorded(request: ModelRequest, side: int) -> tuple[Graph, torch.nn.Module]:
    """An image model for ten classes, and its graph."""
    config = configuration(request, tuple("0123456789"))
    module = skeleton(config, request)
    graph = record_model(
        module,
        {"pixel_values": torch.zeros(4, 3, side, side)},
        leaf_modules(module, request.granularity),
        compute=request.compute,
    )
    return merge_uncuttable(fold_into_units(graph)), module


def test_times_are_fixed_per_layer_and_grow_with_flops() -> None:
    """A pass takes layers · layer_s + samples · FLOPs / flops_per_s, and nothing where no gradient passes."""
    both = [
        UnitWork(layers=2, activation_bytes=0, forward_flops=100, backward_flops=200, backward=True),
        UnitWork(layers=1, activation_bytes=0, forward_flops=50, backward_flops=0, backward=False),
    ]
    times = simulated_times(board(flops_per_s=1000, layer_s=0.5), "bert", both, (1, 4))
    assert times.forward_s == ((1.1, 1.4), (0.55, 0.7))
    assert times.backward_s == ((1.2, 1.8), (0.0, 0.0))
    assert times.simulated and times.runtime_bytes == 0


def test_a_model_without_a_speed_is_refused_by_name() -> None:
    """The refusal lists the models that have a speed."""
    only = board(model="resnet", flops_per_s=1)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="device board: it is simulated and has speeds for resnet, none for 'bert'"):
        simulated_times(only, "bert", [], (1,))


def test_work_does_not_depend_on_how_fine_the_units_are() -> None:
    """FLOPs, layers and activations have the same sums for layers as for blocks; backward costs twice the forward,
    except for the first convolution, whose input needs no gradient."""
    config = {"model_type": "mobilenet_v2", "image_size": 32, "depth_multiplier": 0.5}
    totals = []
    for granularity in ("layer", "block"):
        request = ModelRequest(task="image-classification", config=config, granularity=granularity)
        found = unit_work(*recorded(request, 32))
        counted = ("activation_bytes", "forward_flops", "backward_flops", "layers")
        totals.append([sum(getattr(work, name) for work in found) for name in counted])
    assert totals[0] == totals[1]
    kept, forward, backward, layers = totals[0]
    stem = 2 * 16 * 3 * 9 * 16 * 16  # 16 channels from 3, filters of 3 x 3, 16 x 16 outputs
    assert backward == 2 * forward - stem
    assert kept > 0 and layers == 142


def test_frozen_layers_cost_no_weight_gradients() -> None:
    """There is no backward below the first trained parameter."""
    config = {"model_type": "mobilenet_v2", "image_size": 32, "depth_multiplier": 0.5}
    request = ModelRequest(task="image-classification", config=config, freeze=("mobilenet_v2",))
    found = unit_work(*recorded(request, 32))
    assert [work.backward for work in found] == [False] * (len(found) - 1) + [True]
    assert found[-1].backward_flops == found[-1].forward_flops


@pytest.mark.parametrize("mixed", [None, "bf16"])
def test_what_a_backward_leaves_out_costs_nothing(mixed: str | None) -> None:
    """Where all is trained, half of a backward's FLOPs are gradients of weights, and half of inputs; the first unit's
    inputs get none anyway. A layer's fixed time stays."""
    config = {"model_type": "mobilenet_v2", "image_size": 32, "depth_multiplier": 0.5}
    request = ModelRequest(task="image-classification", config=config, mixed_precision=mixed)
    found = unit_work(*recorded(request, 32), partial=True)
    assert found[0].lowest_flops == found[0].backward_flops
    for work in found[1:]:
        assert 2 * work.passed_flops == 2 * work.forward_flops == work.backward_flops
        assert work.lowest_flops < work.backward_flops or not work.backward_flops
    passed = simulated_times(board(flops_per_s=1e9), "mobilenet_v2", found, (1, 4), partial=True).partial
    slow = simulated_times(board(flops_per_s=1e9, layer_s=1.0), "mobilenet_v2", found, (1, 4), partial=True).partial
    assert passed is not None and slow is not None
    assert passed.passed[-1] == pytest.approx(0.5) and slow.passed[-1] == pytest.approx(1.0, abs=1e-3)


def test_a_simulated_fleet_is_profiled_without_a_process(tmp_path: Path) -> None:
    """Profiling a simulated fleet starts no process; times are marked as simulated and are in the ratio of the
    speeds."""
    task = profiling_task(tmp_path, Scripted({}), ("ann", "bob"))
    speeds = {"ann": 1e9, "bob": 2e9}
    devices = tuple(replace(board(flops_per_s=speed), name=name) for name, speed in speeds.items())
    made = profile(replace(task, fleet=Fleet(devices=devices, links=task.fleet.links)))
    assert [times.simulated for times in made.times] == [True, True]
    np.testing.assert_allclose(made.times_of("ann").forward_s, np.multiply(made.times_of("bob").forward_s, 2))
    assert made.batch_sizes == batch_sizes(6)
    assert sum(unit.flops for unit in made.units) > 0 and sum(unit.activation_bytes for unit in made.units) > 0
    assert json_io.read(type(made), tmp_path / "profile" / "profile.json") == made


@pytest.mark.parametrize(
    ("model", "side", "batch", "samples", "epochs_s"),
    [
        ("efficientnet-b1", 32, 32, 50_000, {"nano": 26.7 * MINUTES, "tx2": 11.2 * MINUTES}),
        ("mobilenet-v2", 32, 32, 50_000, {"nano": 22 * MINUTES, "tx2": 8.5 * MINUTES}),
        ("resnet-50", 224, 8, 38_400, {"nano": 3.48 * HOURS, "tx2": 1.14 * HOURS}),
    ],
)
def test_simulated_jetsons_take_the_epochs_of_the_paper(
    model: str, side: int, batch: int, samples: int, epochs_s: dict[str, float]
) -> None:
    """Epochs are within half a per cent of Asteroid, Table 1; an NX is inferred to be 2.04 times as fast as a TX2
    (Table 8)."""
    request = json_io.load(ModelRequest, yaml_file.read(CONFIGS / "models" / f"{model}.yaml"), model)
    graph, module = recorded(replace(request, granularity="block"), side)  # the same work, counted sooner
    found = unit_work(graph, module)
    model_type = str((request.config or {})["model_type"])
    by_kind = {}
    for device in configs.load_fleet(CONFIGS / "fleets" / "asteroid-c.yaml").devices:
        assert device.simulated is not None
        there = board(flops_per_s=1)
        times = simulated_times(replace(there, simulated=device.simulated), model_type, found, (batch,))
        by_kind[device.name.partition("-")[0]] = np.sum([times.forward_s, times.backward_s]) * samples / batch
    for kind, epoch_s in epochs_s.items():
        assert by_kind[kind] == pytest.approx(epoch_s, rel=5e-3)
    assert by_kind["nx"] == pytest.approx(by_kind["tx2"] * 25 / 51, rel=5e-3)
