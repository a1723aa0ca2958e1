"""Times of simulated devices."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.run_config import ModelRequest
from fleetune.errors import Refused
from fleetune.profiling.profile import batch_sizes, profile
from fleetune.profiling.simulated import UnitWork, simulated_times, unit_work
from tests.support.profiling.instances import Scripted, profiling_task
from tests.support.profiling.simulated import board, recorded


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
