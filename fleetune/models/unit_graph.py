"""Records a model as a graph of units, of the requested size or, where blocks cannot be recorded, of layers."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from fleetune.errors import Refused
from fleetune.models.graph import Graph, graph_text
from fleetune.models.recorder import record_model
from fleetune.models.units import fold_into_units, leaf_modules, merge_uncuttable

BLOCK, LAYER = "block", "layer"


def record_units(
    model: nn.Module,
    samples: Mapping[str, torch.Tensor],
    granularity: str,
    note: Callable[[str], None] = lambda sentence: None,
    compute: str = "",
) -> Graph:
    """Return the model as units between any two of which it can be cut.

    samples, compute: see `record_model`. note: is told when layers are the units though blocks were asked for, because
    a block reads or changes more than the tensors that it is given. Refused for a model that has no graph of either
    kind.
    """
    try:
        return _recorded(model, samples, granularity, compute)
    except Refused as refused:
        refusal = refused
    if granularity != BLOCK:
        raise refusal
    try:
        graph = _recorded(model, samples, LAYER, compute)
    except Refused:
        raise refusal from None
    note(f"{type(model).__name__} is divided into layers, because its blocks cannot be units of their own ({refusal})")
    return graph


def _recorded(model: nn.Module, samples: Mapping[str, torch.Tensor], granularity: str, compute: str) -> Graph:
    graph = fold_into_units(record_model(model, samples, leaf_modules(model, granularity), compute))
    graph_text(graph)  # refuses arguments that cannot travel
    return merge_uncuttable(graph)
