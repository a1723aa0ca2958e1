"""Weights in half precision for forward and backward, beside the float32 masters that training changes.

A model computes in bfloat16 or float16 as if it were loaded in that type: parameters and what they make are of it, but
those of batch norms, whose statistics need float32, and buffers. Frozen parameters are held in it alone. Of trained
ones the masters stay float32, and so do their gradients, sums of gradients and optimizer state; a copy in half
precision, made once after each step, serves all micro-batches of a round. The copy is a part of the graph, so that
autograd adds each micro-batch's gradient, which is of the half type, to the master's in float32.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

Place = tuple[nn.Module, str]
"""A module and the name of one of its own parameters."""


def computed_type(compute: str) -> torch.dtype | None:
    """Return torch's type of a graph's `compute`; None for a graph that computes in its weights' own type."""
    return getattr(torch, compute) if compute else None


def halved_parameters(model: nn.Module) -> frozenset[str]:
    """Return canonical names of the parameters that half precision applies to."""
    kept = {id(p) for module in model.modules() if isinstance(module, _NormBase) for p in module.parameters()}
    return frozenset(n for n, p in model.named_parameters() if p.is_floating_point() and id(p) not in kept)


def copy_bytes(skeleton: nn.Module, compute: str) -> dict[str, int]:
    """Return canonical name -> bytes of the copy that is held beside a trained parameter; empty without copies."""
    dtype = computed_type(compute)
    if dtype is None:
        return {}
    halved = halved_parameters(skeleton)
    return {
        name: p.numel() * dtype.itemsize
        for name, p in skeleton.named_parameters()
        if name in halved and p.dtype != dtype
    }


def in_type(value: Any, dtype: torch.dtype | None) -> Any:
    """Return a floating tensor in that type; other values, and all with None, as they are."""
    if dtype is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.to(dtype)


def master_of(weight: torch.Tensor) -> torch.Tensor:
    """Return the parameter that a copy in half precision was made of; a tensor that is no copy, as it is."""
    return weight if weight.grad_fn is None else weight.grad_fn.next_functions[0][0].variable


@contextmanager
def put_in_place(tensors: Iterable[tuple[Place, torch.Tensor]]) -> Iterator[None]:
    """Let modules read these tensors instead of their parameters."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for (module, name), tensor in tensors:
            own: dict[str, Any] = module._parameters
            before.append((own, name, own[name]))
            own[name] = tensor
        yield
    finally:
        for own, name, parameter in reversed(before):
            own[name] = parameter


class ComputeCopies:
    """The copies of a segment's weights; made when they are first read, and anew after `drop`."""

    def __init__(self, dtype: torch.dtype, names: Iterable[str], places: Mapping[str, list[Place]]) -> None:
        """names: parameters that half precision applies to. places: parameter -> the modules that read it."""
        self._dtype, self._names, self._places = dtype, frozenset(names), places
        self._copies: dict[str, torch.Tensor] = {}

    def drop(self) -> None:
        """Forget the copies, because the masters have changed."""
        self._copies = {}

    def of(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, torch.Tensor]:
        """Return name -> copy of these masters; parameters that are held in the type have none."""
        if not self._copies:
            with torch.enable_grad():
                self._copies = {
                    name: parameter.to(self._dtype)
                    for name, parameter in parameters.items()
                    if name in self._names and parameter.dtype != self._dtype
                }
        return self._copies

    @contextmanager
    def installed(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Let the segment's modules read the copies."""
        copies = self.of(parameters)
        with put_in_place((place, copy) for name, copy in copies.items() for place in self._places.get(name, ())):
            yield


@contextmanager
def computing_in(model: nn.Module, compute: str) -> Iterator[None]:
    """Let a whole model compute as the graph does that was recorded of it; its inputs are the caller's to convert."""
    dtype = computed_type(compute)
    if dtype is None:
        yield
        return
    named, halved = dict(model.named_parameters()), halved_parameters(model)
    copies = {id(named[name]): named[name].to(dtype) for name in halved}
    everywhere = list(model.named_parameters(remove_duplicate=False))
    with put_in_place((place(model, name), copies[id(p)]) for name, p in everywhere if id(p) in copies):
        yield


def place(module: nn.Module, name: str) -> Place:
    """Return the submodule that owns a parameter of this dotted name, and its name there."""
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last
