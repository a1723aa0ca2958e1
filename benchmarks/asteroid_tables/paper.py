"""The Asteroid paper (Ye, S. et al., MobiCom 2024, doi:10.1145/3636534.3649363): models, numbers, environments.

The models (recorded layers) on the environments (simulated devices) are problems of kind "hpp".
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import nn

from benchmarks import CONFIGS
from fleetune.contracts import json_io
from fleetune.contracts.fleet import Fleet
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.profile import Profile
from fleetune.contracts.run_config import ModelRequest
from fleetune.discovery.devices import simulated_fleet
from fleetune.models.graph import Graph
from fleetune.models.recorder import record_model
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable
from fleetune.planning.hpp_problem import to_hpp_problem
from fleetune.planning.strategy import Problem
from fleetune.preparation.step_comparison import RECORDED_SAMPLES
from fleetune.profiling.profile import unit_sizes
from fleetune.profiling.simulated import UnitWork, simulated_times, unit_work
from fleetune.solving.hpp.problem import Problem as Hpp
from flows import configs, yaml_file


@dataclass(frozen=True)
class Model:
    """A model of the paper and its batch sizes."""

    name: str
    file: str
    """File in configs/models, without suffix."""
    shape: tuple[int, ...]
    """Shape of a sample: (channels, height, width) or (tokens,)."""
    classes: int
    mini_batch: int
    """Samples per round, as in the paper."""
    micro_batch: int
    """Samples per micro-batch; our choice, since the paper does not print the number of micro-batches."""


EFFICIENTNET = Model("EfficientNet-B1", "efficientnet-b1", (3, 32, 32), 10, 2048, 128)
MOBILENET = Model("MobileNetV2", "mobilenet-v2", (3, 32, 32), 10, 2048, 128)
RESNET = Model("ResNet50", "resnet-50", (3, 224, 224), 64, 256, 16)
BERT = Model("Bert-small", "bert-small", (32,), 2, 2048, 64)
"""With 32 tokens of hidden size 512: 512 tokens at the paper's batch of 256 samples would take 46 GB."""
MODELS = (EFFICIENTNET, MOBILENET, RESNET, BERT)


class Volume(NamedTuple):
    """Table 2: MB sent between five Nanos in a mini-batch."""

    hdp: float
    hpp: float


VOLUMES = {
    EFFICIENTNET.name: Volume(171.4, 76.2),
    MOBILENET.name: Volume(98.0, 52.1),
    RESNET.name: Volume(576.2, 212.4),
}
VOLUME_RATIOS = (1.9, 2.7)


class SpeedUp(NamedTuple):
    """Table 4: throughput of Asteroid over the fastest device, data parallelism and pipeline parallelism."""

    device: float
    dp: float
    pp: float


Link = tuple[str, int]
"""Environment and Mbit/s."""
LINKS: tuple[Link, ...] = (("A", 100), ("B", 100), ("B", 1000))
SPEED_UPS: dict[str, dict[Link, SpeedUp]] = {
    EFFICIENTNET.name: dict(
        zip(LINKS, (SpeedUp(4.4, 2.1, 2.8), SpeedUp(3.0, 4.8, 9.7), SpeedUp(3.7, 2.1, 1.4)), strict=True)
    ),
    MOBILENET.name: dict(
        zip(LINKS, (SpeedUp(4.5, 1.5, 3.5), SpeedUp(3.2, 2.3, 11.2), SpeedUp(3.8, 1.2, 1.3)), strict=True)
    ),
    RESNET.name: dict(
        zip(LINKS, (SpeedUp(3.4, 3.6, 5.8), SpeedUp(1.5, 6.1, 12.2), SpeedUp(3.7, 2.9, 3.1)), strict=True)
    ),
    BERT.name: dict(zip(LINKS, (SpeedUp(3.5, 6.4, 1.0), SpeedUp(1.3, 6.8, 1.0), SpeedUp(3.9, 4.2, 1.3)), strict=True)),
}

PLANNING_S = {EFFICIENTNET.name: 480.0, MOBILENET.name: 261.0, RESNET.name: 192.0, BERT.name: 69.0}
"""Table 7: planning time for environment C on a Jetson NX."""
OVER_SYSTEMS = {"eddl": (1.6, 6.9), "pipedream": (1.3, 2.1), "dapple": (1.2, 1.8), "hetpipe": (1.2, 1.9)}
"""§5.3: smallest and largest throughput of Asteroid over each system on environments B and C, all models."""
SCALING_OVER_DP = (1.3, 2.2)
"""§5.6: EfficientNet-B1 on up to 8 Nanos at 100 Mbit/s."""


@cache
def environment(name: str, mbit_per_s: float = 100) -> Fleet:
    """Fleet of the paper's environment A, B, C or D (Table 6)."""
    return fleet_of(configs.load_fleet(CONFIGS / "fleets" / f"asteroid-{name.lower()}.yaml"), mbit_per_s)


@cache
def identical_devices(kind: str, count: int, mbit_per_s: float = 100) -> Fleet:
    """A fleet of `count` devices of one kind (nano, tx2, nx)."""
    request = configs.load_fleet(CONFIGS / "fleets" / "asteroid-c.yaml")
    one = next(device for device in request.devices if device.name.startswith(kind))
    devices = tuple(replace(one, name=f"{kind}-{number}") for number in range(count))
    return fleet_of(replace(request, devices=devices), mbit_per_s)


def fleet_of(request: FleetRequest, mbit_per_s: float) -> Fleet:
    """The simulated fleet of a request with all links at `mbit_per_s`."""
    assert request.links is not None
    return simulated_fleet(replace(request, links=replace(request.links, mbit_per_s=mbit_per_s)))


class RecordedModel(NamedTuple):
    """A model as the profile needs it."""

    model_type: str
    graph: Graph
    module: nn.Module
    unit_works: list[UnitWork]


@cache
def recorded(model: Model) -> RecordedModel:
    """Record a model on tensors without data."""
    path = CONFIGS / "models" / f"{model.file}.yaml"
    request = json_io.load(ModelRequest, yaml_file.read(path), str(path))
    config = configuration(request, tuple(map(str, range(model.classes))))
    module = skeleton(config, request)
    graph = merge_uncuttable(
        fold_into_units(record_model(module, _samples(model.shape), leaf_modules(module, request.granularity)))
    )
    return RecordedModel(str(config.model_type), graph, module, unit_work(graph, module))


def profile_of(model: Model, fleet: Fleet, micro_batch: int, by_bytes: bool = False) -> Profile:
    """The profile of a model on a simulated fleet; times are linear in the batch size, so two sizes suffice.

    Groups may share batch norms, as in the paper.
    by_bytes: the time of the whole model is divided among units by their activation bytes instead of their FLOPs.
    """
    model_type, graph, module, unit_works = recorded(model)
    timed = _by_bytes(unit_works) if by_bytes else unit_works
    kept, flops = [work.activation_bytes for work in unit_works], [work.forward_flops for work in unit_works]
    sizes = (1, micro_batch)
    return Profile(
        model=model_type,
        units=unit_sizes(graph, module, kept, flops, micro_batch),
        batch_sizes=sizes,
        times=tuple(simulated_times(device, model_type, timed, sizes) for device in fleet.devices),
    )


def _by_bytes(unit_works: list[UnitWork]) -> list[UnitWork]:
    kept = sum(work.activation_bytes for work in unit_works)
    forward, backward = sum(w.forward_flops for w in unit_works), sum(w.backward_flops for w in unit_works)
    return [
        replace(
            work,
            forward_flops=forward * work.activation_bytes // kept,
            backward_flops=backward * work.activation_bytes // kept,
        )
        for work in unit_works
    ]


@cache
def hpp_problem(
    model: Model,
    fleet: Fleet,
    micro_batch: int,
    micro_batches: int,
    warmup: str | tuple[int, ...] = "2(P-p)-1",
    by_bytes: bool = False,
) -> Hpp:
    """The problem that strategy `asteroid` solves, with cuts allowed between single layers."""
    problem = Problem(
        fleet=fleet,
        profile=profile_of(model, fleet, micro_batch, by_bytes),
        micro_batch_samples=micro_batch,
        micro_batches=micro_batches,
    )
    return to_hpp_problem(problem, [device.name for device in fleet.devices], warmup=warmup).problem


def default_problem(model: Model, fleet: Fleet) -> Hpp:
    """The problem with the model's own mini-batch and micro-batch sizes."""
    return hpp_problem(model, fleet, model.micro_batch, model.mini_batch // model.micro_batch)


def _samples(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Zero inputs for the recorder, which reads only their shapes."""
    if len(shape) == 3:
        return {"pixel_values": torch.zeros(RECORDED_SAMPLES, *shape)}
    tokens = torch.zeros(RECORDED_SAMPLES, *shape, dtype=torch.long)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
