"""How few samples a model can be run on while it is trained."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook

from fleetune.models.graph import Graph, graph_text, parse_graph
from fleetune.models.segment import Segment
from fleetune.profiling.simulated import FEW, NOWHERE, empty


def least_samples(recorded: Graph, skeleton: nn.Module) -> int:
    """2 where a batch norm sees one value of a channel in each sample, and so would have no variance of one; else 1.

    `skeleton` is the whole model on the meta device; it is run there, without data.
    """
    if not any(isinstance(module, _BatchNorm) for module in skeleton.modules()):
        return 1
    graph = parse_graph(graph_text(recorded), "graph")  # as devices read it: free of the place it was recorded on
    found = [1]

    def hook(module: nn.Module, inputs: Any) -> None:
        if isinstance(module, _BatchNorm) and math.prod(inputs[0].shape[2:]) == 1:
            found.append(2)

    whole = Segment(graph, tuple(unit.name for unit in graph.units), skeleton, NOWHERE)
    handle = register_module_forward_pre_hook(hook)
    try:
        with torch.no_grad():
            whole.run({number: empty(graph, number, FEW) for number in graph.inputs.values()}, FEW)
    finally:
        handle.remove()
    return max(found)
