"""Messages of infeasible problems."""

from collections.abc import Iterable, Sequence

import numpy as np

from fleetune.errors import Infeasible, TryAgain
from fleetune.solving.limits import Deadline
from fleetune.solving.split.assignment import Undecided, find_assignment, largest_assignment
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.problem import MATRICES, Problem
from fleetune.solving.validation import plural

MAX_NAMED = 5
"""Items named in one sentence."""
MORE = "give a helper more memory, add one, or take part 2 of the clients smaller (other cut layers)"
NAMING_S = 0.1
"""Minimum seconds for naming the clients left over, after the deadline."""


def require_assignment(instance: Instance, problem: Problem, deadline: Deadline | None = None) -> list[int]:
    """Return a helper per client; Infeasible names who lacks what, unless all fit within links and memory.

    Tested in turn: a client without a link; a client that exceeds every linked helper's memory; total memory; else the
    clients left over when as many as possible are assigned. Raises TryAgain if time runs out before either is known.
    """
    deadline = deadline or Deadline(None)
    for client in np.flatnonzero(~instance.linked.any(axis=0)).tolist():
        raise Infeasible(_nowhere(problem, client))
    total, have = int(instance.client_memory.sum()), int(instance.helper_memory.sum())
    if total > have:
        need, room = sum(problem.client_memory), sum(problem.helper_memory)
        raise Infeasible(
            f"all helpers together lack {_number(need - room)} of memory ({_number(need)} of {_number(room)}); "
            f"{_extremes(problem)}; {MORE}"
        )
    try:
        placed = find_assignment(instance, deadline.left_s())
    except Undecided:
        if deadline.limited:
            raise TryAgain(
                "time limit: found neither an assignment of the clients that fits all memories, nor a proof that none "
                f"exists ({_extremes(problem)}); give more time, or no limit"
            ) from None
        raise Infeasible(
            f"found no assignment of the clients to helpers that fits all memories, and no proof that none exists "
            f"({_extremes(problem)}); {MORE}"
        ) from None
    if placed is None:
        raise Infeasible(_left_over(instance, problem, max(NAMING_S, deadline.left_s())))
    return placed


def _extremes(problem: Problem) -> str:
    """Name the helper with the most memory and the client that needs most."""
    helper, client = (max(range(len(x)), key=x.__getitem__) for x in (problem.helper_memory, problem.client_memory))
    return (
        f"helper {helper}, the roomiest, has {_number(problem.helper_memory[helper])}, "
        f"client {client}, the largest, needs {_number(problem.client_memory[client])}"
    )


def _nowhere(problem: Problem, client: int) -> str:
    given = [getattr(problem, field) for field in MATRICES]
    reached = [i for i in range(len(problem.helper_memory)) if all(rows[i][client] is not None for rows in given)]
    if not reached:
        return (
            f"client {client} has no link to any helper: each has null for it in some matrix; give the times of at "
            "least one, or leave the client out"
        )
    roomiest = max(reached, key=lambda i: problem.helper_memory[i])
    need, room = problem.client_memory[client], problem.helper_memory[roomiest]
    return (
        f"client {client} lacks {_number(need - room)} of memory on helper {roomiest}, the roomiest it has a link to "
        f"({_number(need)} of {_number(room)}); {MORE}"
    )


def _left_over(instance: Instance, problem: Problem, left_s: float) -> str:
    nearest = largest_assignment(instance, left_s)
    out = [j for j, i in enumerate(nearest.helper) if i < 0]
    left = list(problem.helper_memory)
    for j, i in enumerate(nearest.helper):
        if i >= 0:
            left[i] -= problem.client_memory[j]
    first = out[0]
    reached = np.flatnonzero(instance.linked[:, first]).tolist()
    roomiest = max(reached, key=lambda i: left[i])
    most = f"at most {len(nearest.helper) - len(out)} of {plural(len(nearest.helper), 'client')}"
    return (
        f"{most if nearest.proven else 'not all clients'} fit the memories and links together: without "
        f"{_named('client', out)}, helper {roomiest} has the most memory left of those that client {first} reaches, "
        f"and lacks {_number(problem.client_memory[first] - left[roomiest])} for it "
        f"({_number(problem.client_memory[first])} of {_number(left[roomiest])}); {MORE}"
    )


def _named(noun: str, indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"{noun} {indices[0]}"
    return f"{noun}s {_list(indices[:MAX_NAMED])}" + (" and others" if len(indices) > MAX_NAMED else "")


def _list(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))


def _number(value: float) -> str:
    """Format a number without rounding noise: `3`, `0.3`."""
    return f"{value:.12g}" if abs(value) < 1e12 else f"{value:.0f}"
