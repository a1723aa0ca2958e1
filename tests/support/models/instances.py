"""Tiny models of every family, recorded without data or files, and plain torch models that are hard to record."""

import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fleetune.contracts import json_io
from fleetune.contracts.run_config import ModelRequest
from fleetune.models.graph import Graph, graph_text, parse_graph
from fleetune.models.init_weights import initial_model, write_init_weights
from fleetune.models.randomness import RandomContext, unit_seed
from fleetune.models.segment import SegmentRunner
from fleetune.models.skeleton import skeleton
from fleetune.models.source import configuration
from fleetune.models.unit_graph import record_units
from fleetune.models.weights import WeightReader
from tests.support.made_once import made_once
from tests.support.training.model_families import IMAGE, LANGUAGE, Family, model_request

CPU = torch.device("cpu")
LABELS = ("a", "b", "c")
TOKENS = 10
RECORDED = 4


@dataclass(frozen=True)
class Recorded:
    """A recorded model with the file of its initial weights."""

    request: ModelRequest
    graph: Graph
    start: Path
    labels: tuple[str, ...]

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units in order."""
        return tuple(unit.name for unit in self.graph.units)

    def whole(self) -> nn.Module:
        """Return the unsplit model with the same weights."""
        return initial_model(configuration(self.request, self.labels), self.request, self.start)

    def segment(self, units: Sequence[str]) -> SegmentRunner:
        """Return some units with their weights."""
        config = configuration(self.request, self.labels)
        made = SegmentRunner(self.graph, tuple(units), skeleton(config, self.request), CPU)
        made.load(WeightReader(None, None, self.start))
        return made


def recorded(family: Family, folder: Path, granularity: str = "block", **changes: object) -> Recorded:
    """Record a family once; every batch size runs from this recording.

    What this run has recorded from the same request is taken again, with its initial weights copied.
    """
    request = model_request(family, dropout=True, granularity=granularity, **changes)
    labels = () if family.task == LANGUAGE else LABELS

    def record(making: Path) -> None:
        config = configuration(request, labels)
        samples = batch(family, RECORDED)
        made = record_units(skeleton(config, request), samples, granularity, compute=request.compute)
        (making / "graph.json").write_text(graph_text(made))
        write_init_weights(config, request, 3, making / "start.safetensors")

    made = made_once(f"recorded {family.task} {json_io.text(request)}", record)
    folder.mkdir(parents=True, exist_ok=True)
    start = Path(shutil.copy(made / "start.safetensors", folder))
    return Recorded(request, _parsed(made / "graph.json"), start, labels)


@functools.cache
def _parsed(path: Path) -> Graph:
    return parse_graph(path.read_bytes(), path.name)


def batch(family: Family, samples: int) -> dict[str, torch.Tensor]:
    """Return inputs with padding, or pixels."""
    drawn = torch.Generator().manual_seed(samples)
    if family.task == IMAGE:
        size = family.config.get("image_size", 32)
        return {"pixel_values": torch.randn(samples, 3, size, size, generator=drawn)}
    mask = torch.ones(samples, TOKENS, dtype=torch.long)
    mask[0, TOKENS - 3 :] = 0
    return {"input_ids": torch.randint(5, 300, (samples, TOKENS), generator=drawn), "attention_mask": mask}


def seed_like_units(model: nn.Module, units: Sequence[str], draws: RandomContext) -> None:
    """Seed an unsplit model's generator as a segment does: at the start, then after each unit's module.

    A module that runs twice (NAME and NAME@2) is followed by another unit each time.
    """

    def seed(unit: str) -> None:
        torch.manual_seed(unit_seed(draws.seed, draws.round, draws.micro_batch, unit))

    following: dict[str, list[str]] = {}
    for unit, after in zip(units, units[1:], strict=False):
        following.setdefault(unit.split("@")[0], []).append(after)
    for name, calls in following.items():
        waiting = iter(calls)
        model.get_submodule(name).register_forward_hook(lambda m, i, o, waiting=waiting: seed(next(waiting)))
    model.register_forward_pre_hook(lambda m, i: seed(units[0]))
