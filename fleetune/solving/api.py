"""Interface to all kinds of problems: read a file's text, select kind and method, solve, and convert the plan to
JSON."""

from collections.abc import Mapping
from typing import Any

from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.d2ft import D2FT
from fleetune.solving.deft import DEFT
from fleetune.solving.hpp import HPP
from fleetune.solving.kind import Kind, Solved
from fleetune.solving.opfence import OPFENCE
from fleetune.solving.split import SPLIT
from fleetune.solving.validation import validate_range

MAX_SEED = 2**32 - 1
"""Largest seed that the solvers' random generators accept."""


def kinds() -> dict[str, Kind]:
    """Return every kind by its name in problem files."""
    return {kind.name: kind for kind in (HPP, DEFT, SPLIT, D2FT, OPFENCE)}


def read(source: str | bytes, owner: str, known: Mapping[str, Kind]) -> tuple[Kind, Any]:
    """Return the kind and the validated problem in JSON text; `owner` (a file's name) opens the message of a
    Refused."""
    plain = json_io.parse(dict[str, Any], source, owner)
    name, allowed = plain.get("kind"), f"allowed are {', '.join(known)}"
    if name is None:
        raise Refused(f"{owner}: kind: this key is required; {allowed}")
    if not isinstance(name, str) or name not in known:
        raise Refused(f"{owner}: kind is {name!r}; {allowed}")
    return known[name], known[name].parse(plain, owner)


def solve(
    kind: Kind, problem: Any, *, method: str | None = None, time_limit_s: float | None = None, seed: int = 0
) -> Solved:
    """Return a plan by one of the kind's methods, or by its default.

    time_limit_s: None uses the method's own limit. Raises Refused for an unknown method, a time limit not above 0, or a
    seed outside 0..2^32-1; Infeasible if nothing satisfies the problem.
    """
    methods = kind.methods
    if method is None:
        method = next(iter(methods)) if kind.default is None else kind.default(problem)
    if method not in methods:
        raise Refused(f"method {method!r} is not known for kind {kind.name}; allowed are {', '.join(methods)}")
    if time_limit_s is not None and not 0 < time_limit_s < float("inf"):
        raise Refused(f"time limit: {time_limit_s} is not a number above 0; give seconds")
    validate_range("seed", seed, 0, MAX_SEED)
    return kind.solve(problem, method=method, time_limit_s=time_limit_s, seed=seed)


def document(plan: Solved) -> dict[str, Any]:
    """Return a plan as JSON values, keys in declared order, without optional keys that hold None or ""."""
    fields = type(plan).__dataclass_fields__  # type: ignore[attr-defined]
    neutral = {name for name, field in fields.items() if field.default in (None, "")}
    return {key: value for key, value in json_io.dump(plan).items() if key not in neutral or value not in (None, "")}
