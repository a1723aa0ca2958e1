"""Runs a recorded model on the meta device: shapes without data."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from fleetune.models.graph import Graph, graph_text, parse_graph
from fleetune.models.segment import SegmentRunner

META = torch.device("meta")
META_SAMPLES = 2
"""Smallest number of samples that is not broadcast like a single one."""


def run_on_meta(recorded: Graph, skeleton: nn.Module, seen: Callable[[nn.Module, Any], None]) -> None:
    """Run one forward of the whole model on the meta device, without data.

    skeleton: the whole model on the meta device. seen: is called with every module and its positional arguments.
    """
    graph = without_device(recorded)
    whole = SegmentRunner(graph, tuple(unit.name for unit in graph.units), skeleton, META)
    handle = register_module_forward_pre_hook(seen)
    try:
        with torch.no_grad():
            whole.run(
                {number: empty_input(graph, number, META_SAMPLES) for number in graph.inputs.values()}, META_SAMPLES
            )
    finally:
        handle.remove()


def without_device(recorded: Graph) -> Graph:
    """Return the graph as devices read it, without the device that it was recorded on."""
    return parse_graph(graph_text(recorded), "graph")


def empty_input(graph: Graph, number: int, samples: int) -> torch.Tensor:
    """Return an input of that many samples on the meta device."""
    value = graph.value(number)
    shape = [samples if size == graph.batch else int(size) for size in value.shape]
    return torch.empty(shape, dtype=getattr(torch, value.dtype), device=META)
