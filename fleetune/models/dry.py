"""Runs a recorded model on tensors without data, to see which modules it calls, and on what."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from fleetune.models.graph import Graph, graph_text, parse_graph
from fleetune.models.segment import Segment

NOWHERE = torch.device("meta")
FEW = 2
"""Samples: as few as show what depends on their number."""


def dry_run(recorded: Graph, skeleton: nn.Module, seen: Callable[[nn.Module, Any], None]) -> None:
    """One forward of the whole model; `seen` is told every module that is called, with its positional arguments.

    `skeleton` is the whole model on the meta device.
    """
    graph = placeless(recorded)
    whole = Segment(graph, tuple(unit.name for unit in graph.units), skeleton, NOWHERE)
    handle = register_module_forward_pre_hook(seen)
    try:
        with torch.no_grad():
            whole.run({number: empty(graph, number, FEW) for number in graph.inputs.values()}, FEW)
    finally:
        handle.remove()


def placeless(recorded: Graph) -> Graph:
    """The graph as devices read it: free of the place it was recorded on."""
    return parse_graph(graph_text(recorded), "graph")


def empty(graph: Graph, number: int, samples: int) -> torch.Tensor:
    """An input of that many samples, without data."""
    value = graph.value(number)
    shape = [samples if size == graph.batch else int(size) for size in value.shape]
    return torch.empty(shape, dtype=getattr(torch, value.dtype), device=NOWHERE)
