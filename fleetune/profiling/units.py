"""Sizes of units: bytes of parameters, of buffers and of the tensors that cross each cut."""

import math

import torch
from torch import nn

from fleetune.contracts.profile import Unit
from fleetune.models.graph import Graph
from fleetune.models.units import crossing_values, is_cuttable, state_by_unit, tied_parameters_by_unit


def unit_sizes(
    graph: Graph, skeleton: nn.Module, activation_bytes: list[int], flops: list[int], micro_batch_samples: int
) -> tuple[Unit, ...]:
    """The profile's units. activation_bytes, flops: per sample, in the order of units.

    A value without a batch dimension (such as rotary angles) crosses a cut once per micro-batch; per sample it counts
    1 / micro_batch_samples of its size.
    """
    parameters, buffers = dict(skeleton.named_parameters()), dict(skeleton.named_buffers())
    state, tied = state_by_unit(graph, skeleton), tied_parameters_by_unit(graph, skeleton)
    made = []
    for place, unit in enumerate(graph.units):
        held = [parameters[n] for n in state[unit.name] if n in parameters]
        crossing_now = crossing_values(graph, unit.nodes[-1]) if unit is not graph.units[-1] else ()
        made.append(
            Unit(
                name=unit.name,
                param_bytes=sum(_bytes(p) for p in held),
                trainable_bytes=sum(_bytes(p) for p in held if p.requires_grad),
                buffer_bytes=sum(_bytes(buffers[n]) for n in state[unit.name] if n in buffers),
                activation_bytes=activation_bytes[place],
                output_bytes=sum(_value_bytes(graph, n, micro_batch_samples) for n in crossing_now),
                gradient_bytes=sum(
                    _value_bytes(graph, n, micro_batch_samples) for n in crossing_now if graph.value(n).gradient
                ),
                flops=flops[place],
                cut_after=unit is not graph.units[-1] and is_cuttable(graph, unit.nodes[-1]),
                tied=tied[unit.name],
            )
        )
    return tuple(made)


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _value_bytes(graph: Graph, number: int, micro_batch_samples: int) -> int:
    """Bytes of a value per sample."""
    value = graph.value(number)
    sizes = [int(s) for s in value.shape if s != graph.batch]
    size_bytes = math.prod(sizes) * int(torch.empty(0, dtype=getattr(torch, value.dtype)).element_size())
    return size_bytes if graph.batched(number) else math.ceil(size_bytes / micro_batch_samples)
