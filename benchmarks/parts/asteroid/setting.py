"""The Asteroid paper's models on its environments, as problems: recorded layers, simulated devices."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

from fleetune.contracts import wire
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
from fleetune.planning.parts.hpp_problem import problem_of
from fleetune.planning.problem import Problem
from fleetune.preparation.step_comparison import RECORDED_SAMPLES
from fleetune.profiling.simulated import Work, simulated_times, works
from fleetune.profiling.units import unit_sizes
from fleetune.solving.hpp.problem import Problem as Hpp
from flows import configs, yaml_file

CONFIGS = Path(__file__).parents[3] / "configs"


@dataclass(frozen=True)
class Model:
    """A model of the paper, and the batches that we train it with."""

    name: str
    file: str
    """Of configs/models."""
    shape: tuple[int, ...]
    """Of a sample: pixels, or tokens."""
    classes: int
    mini_batch: int
    """Samples of a round, as in the paper."""
    micro_batch: int
    """Ours: the paper does not print how many micro-batches there are."""


EFFICIENTNET = Model("EfficientNet-B1", "efficientnet-b1", (3, 32, 32), 10, 2048, 128)
MOBILENET = Model("MobileNetV2", "mobilenet-v2", (3, 32, 32), 10, 2048, 128)
RESNET = Model("ResNet50", "resnet-50", (3, 224, 224), 64, 256, 16)
BERT = Model("Bert-small", "bert-small", (32,), 2, 2048, 64)
"""32 tokens of hidden size 512: profiled with up to 256 samples, as in the paper, 512 tokens would take 46 GB."""
MODELS = (EFFICIENTNET, MOBILENET, RESNET, BERT)


@cache
def environment(name: str, mbit_per_s: float = 100) -> Fleet:
    """Environment A, B, C or D."""
    return fleet_of(configs.fleet(CONFIGS / "fleets" / f"asteroid-{name.lower()}.yaml"), mbit_per_s)


@cache
def alike(kind: str, count: int, mbit_per_s: float = 100) -> Fleet:
    """`count` devices of a kind (nano, tx2, nx)."""
    request = configs.fleet(CONFIGS / "fleets" / "asteroid-c.yaml")
    one = next(device for device in request.devices if device.name.startswith(kind))
    devices = tuple(replace(one, name=f"{kind}-{number}") for number in range(count))
    return fleet_of(replace(request, devices=devices), mbit_per_s)


def fleet_of(request: FleetRequest, mbit_per_s: float) -> Fleet:
    """A simulated fleet at another bandwidth."""
    assert request.links is not None
    return simulated_fleet(replace(request, links=replace(request.links, mbit_per_s=mbit_per_s)))


@cache
def recorded(model: Model) -> tuple[str, Graph, nn.Module, list[Work]]:
    """model_type, graph and modules, and the work of every unit, counted on tensors without data."""
    path = CONFIGS / "models" / f"{model.file}.yaml"
    request = wire.load(ModelRequest, yaml_file.read(path), str(path))
    config = configuration(request, tuple(map(str, range(model.classes))))
    module = skeleton(config, request)
    graph = merge_uncuttable(
        fold_into_units(record_model(module, _samples(model.shape), leaf_modules(module, request.granularity)))
    )
    return str(config.model_type), graph, module, works(graph, module)


def profile_of(model: Model, fleet: Fleet, micro_batch: int, by_bytes: bool = False) -> Profile:
    """What the profile stage works out; times are straight lines, so two batch sizes say all.

    `by_bytes`: the model as a whole takes the same time, but its units by the bytes they keep instead of their FLOPs.
    """
    model_type, graph, module, of_units = recorded(model)
    timed = _by_bytes(of_units) if by_bytes else of_units
    kept, flops = [work.activation_bytes for work in of_units], [work.forward_flops for work in of_units]
    sizes = (1, micro_batch)
    return Profile(
        model=model_type,
        units=unit_sizes(graph, module, kept, flops, micro_batch),
        batch_sizes=sizes,
        times=tuple(simulated_times(device, model_type, timed, sizes) for device in fleet.devices),
    )


def _by_bytes(of_units: list[Work]) -> list[Work]:
    kept = sum(work.activation_bytes for work in of_units)
    forward, backward = sum(w.forward_flops for w in of_units), sum(w.backward_flops for w in of_units)
    return [
        replace(
            work,
            forward_flops=forward * work.activation_bytes // kept,
            backward_flops=backward * work.activation_bytes // kept,
        )
        for work in of_units
    ]


@cache
def posed(
    model: Model,
    fleet: Fleet,
    micro_batch: int,
    micro_batches: int,
    warmup: str | tuple[int, ...] = "2(P-p)-1",
    by_bytes: bool = False,
) -> Hpp:
    """The problem that strategy `asteroid` would solve, single layers to be cut apart."""
    problem = Problem(
        fleet=fleet,
        profile=profile_of(model, fleet, micro_batch, by_bytes),
        micro_batch_samples=micro_batch,
        micro_batches=micro_batches,
    )
    return problem_of(problem, [device.name for device in fleet.devices], warmup=warmup).problem


def usual(model: Model, fleet: Fleet) -> Hpp:
    """The problem with the model's own mini-batch and micro-batch."""
    return posed(model, fleet, model.micro_batch, model.mini_batch // model.micro_batch)


def _samples(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Inputs for the recorder; their values do not matter."""
    if len(shape) == 3:
        return {"pixel_values": torch.zeros(RECORDED_SAMPLES, *shape)}
    tokens = torch.zeros(RECORDED_SAMPLES, *shape, dtype=torch.long)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
