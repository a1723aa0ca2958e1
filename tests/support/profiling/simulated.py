"""A simulated device, and image models for it."""

import torch

from fleetune.contracts.fleet import Device, ModelSpeed, SimulatedDevice
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.graph import Graph
from fleetune.models.recorder import record_model
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable


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
