"""Compiling functions of numbers to machine code; the machine code is kept beside the source between processes."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The same function, compiled at its first call."""
    return cast(F, _kept(function))


def inner(function: F) -> F:
    """Compiled to be called by compiled functions only: without what Python needs to call it, compiling is quicker.
    A literal among the arguments makes a version of its own; give a variable where that is not worth its compiling."""
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))


def signed(signature: str) -> Callable[[F], F]:
    """Compiled for these types only, at once: literals make no versions."""

    def decorate(function: F) -> F:
        return cast(F, _kept(function, signature))

    return decorate


def _kept(function: Callable[..., object], *signature: str) -> Any:
    """With a cache; where no folder for it can be written (a read-only container without a home), compiled anew in
    every process."""
    try:
        return numba.njit(*signature, cache=True)(function)
    except RuntimeError:
        return numba.njit(*signature)(function)
