"""The torch functions that a graph may name: pure functions of tensors, and factories of new ones.

The list is made from what torch itself declares replaceable by tensor-like types, less everything that changes a
tensor in place, reaches memory, files or other devices, or installs code. torch.load, torch.hub, torch.jit and their
like were never on it.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from fleetune.errors import Refused

Function = Callable[..., Any]
FACTORIES = (
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "normal", "ones", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "scalar_tensor", "tensor", "tril_indices",
    "triu_indices", "zeros", "as_strided",
    "Tensor.new_empty", "Tensor.new_full", "Tensor.new_ones", "Tensor.new_tensor", "Tensor.new_zeros",
)  # fmt: skip
ROOMS = (
    "torch", "torch.functional", "torch.nn.functional", "torch.Tensor", "torch.linalg", "torch.fft", "torch.special",
)  # fmt: skip
TWO_SIDED = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
ONE_SIDED = ("getitem", "invert", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "div")
OPERATORS = {f"__{name}__" for name in (*TWO_SIDED, *(f"r{name}" for name in TWO_SIDED), *ONE_SIDED)}
NEVER = {
    "backward", "const_data_ptr", "cpu", "cuda", "data_ptr", "ipu", "item", "module_load", "mtia", "numpy",
    "pin_memory", "record_stream", "register_hook", "register_post_accumulate_grad_hook", "resize", "resize_as",
    "retain_grad", "storage", "storage_type", "tolist", "untyped_storage", "xpu",
}  # fmt: skip


def function(name: str) -> Function:
    """The torch function of a dotted name; Refused for everything that is not on the list."""
    found = _allowed().get(name)
    if found is None:
        raise Refused(
            f"graph: {name!r} is not a torch function that a graph may name; allowed are pure functions of tensors"
        )
    return found


def is_allowed(name: str) -> bool:
    """Whether `function` would give one."""
    return name in _allowed()


@functools.cache
def _allowed() -> dict[str, Function]:
    found: dict[str, Function] = {}
    for functions in get_overridable_functions().values():
        for made in functions:
            name = resolve_name(made)
            if name is not None and callable(made) and not isinstance(made, type) and _is_pure(name):
                found[name] = made
    for factory in FACTORIES:
        owner: Any = torch
        for part in factory.split("."):
            owner = getattr(owner, part)
        found[f"torch.{factory}"] = owner
    return found


def _is_pure(name: str) -> bool:
    room, last = name.rsplit(".", 1)
    if last.startswith("__"):
        return room == "torch.Tensor" and last in OPERATORS
    return room in ROOMS and not last.startswith("_") and not last.endswith("_") and last not in NEVER
