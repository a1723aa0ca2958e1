"""Compiling functions of numbers to machine code; the machine code is kept beside the source between processes."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The same function, compiled at its first call. Where no folder for the cache can be written (a read-only
    container without a home), it is compiled anew in every process."""
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError:
        return cast(F, numba.njit(function))
