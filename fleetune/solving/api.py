"""Interface to all kinds of problems: the `Kind` that each registers, reading a problem, solving it, and plans as JSON.

Each kind's package makes its `Kind`, and `fleetune.solving.kinds` lists them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from fleetune.contracts import json_io
from fleetune.errors import Refused
from fleetune.solving.validation import validate_range

MAX_SEED = 2**32 - 1
"""Largest seed that the solvers' random generators accept."""


class Solved(Protocol):
    """Fields of every plan record. The plan of a maximised objective has `upper_bound`."""

    @property
    def kind(self) -> str:
        """Kind of the problem."""

    @property
    def method(self) -> str:
        """Method that made the plan."""

    @property
    def feasible(self) -> bool:
        """False if a method that ignores a constraint violated it; `reason` says which."""

    @property
    def reason(self) -> str:
        """Empty unless infeasible."""

    @property
    def objective(self) -> float:
        """Value that was minimised or maximised."""

    @property
    def solve_s(self) -> float:
        """Solution time in seconds."""


class Solve(Protocol):
    """Solver of a kind."""

    def __call__(self, problem: Any, *, method: str, time_limit_s: float | None, seed: int) -> Solved:
        """Return a plan by one of the kind's methods; Infeasible names the binding constraint."""


class Kind(NamedTuple):
    """One kind of problem. Construction imports no solver; `solve` may."""

    name: str
    summary: str
    """One line."""
    objective: str
    """Name of the objective: `round`, `latency`, `makespan`."""
    unit: str
    """Unit of the objective; `s` is shown in readable seconds, anything else as a number and the unit."""
    parse: Callable[[Any, str], Any]
    """(JSON values, name for messages) -> validated problem; raises Refused."""
    methods: Mapping[str, str]
    """Method -> summary in one line; the first method is the default."""
    solve: Solve
    describe_plan: Callable[[Any], str]
    """Summarise a plan: `3 stages: nano-0+nano-1 | tx2 | nx`."""
    default: Callable[[Any], str] | None = None
    """problem -> default method, if it is not always the first."""


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
