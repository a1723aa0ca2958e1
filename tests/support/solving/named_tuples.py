"""Instances and kinds of problems are named tuples: copies of them with changes."""

from typing import Any, NamedTuple, TypeVar

Named = TypeVar("Named", bound=NamedTuple)


def changed(named: Named, **changes: Any) -> Named:
    """Return a copy with other values of some fields."""
    return named._replace(**changes)  # private: the name that Python documents; `copy.replace` comes with 3.13
