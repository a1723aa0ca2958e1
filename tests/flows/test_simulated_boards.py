"""The simulated boards of the configs are as fast as those of the paper."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleetune.contracts import json_io
from fleetune.contracts.run_config import ModelRequest
from fleetune.profiling.simulated import simulated_times, unit_work
from flows import configs, yaml_file
from tests.support.profiling.simulated import board, recorded

CONFIGS = Path(__file__).parents[2] / "configs"
MINUTES = 60.0
HOURS = 3600.0


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
