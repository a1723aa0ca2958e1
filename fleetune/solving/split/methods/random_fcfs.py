"""The paper's baseline: J. Tirana et al., INFOCOM 2024, section VII: a random assignment within memory, then FCFS.

Clients in random order, each to any helper that still has room; begun again when one finds none. Where room is so
scarce that this keeps failing, random moves and swaps from some assignment that fits.
"""

import random
from collections.abc import Sequence

import numpy as np

from fleetune.solving.split.assignment import place
from fleetune.solving.split.case import Case
from fleetune.solving.split.dispatch import everywhere, first_come
from fleetune.solving.split.draft import Draft, Effort

TRIES = 100
STEPS_PER_CLIENT = 50


def plan(case: Case, effort: Effort = Effort()) -> Draft:  # noqa: B008 - immutable
    """Another schedule for another seed."""
    helper = drawn(case, random.Random(effort.seed), effort.placed)
    return Draft(helper, everywhere(case, helper, first_come))


def drawn(case: Case, rng: random.Random, placed: Sequence[int] | None = None) -> list[int]:
    """A random helper for each client so that all fit; for problems where some assignment does, as `placed` if
    known."""
    for _ in range(TRIES):
        helper = _dealt(case, rng)
        if helper is not None:
            return helper
    found = placed or place(case)
    assert found is not None, "only asked where everyone fits"
    return _shaken(case, list(found), rng)


def _dealt(case: Case, rng: random.Random) -> list[int] | None:
    left = case.helper_memory.copy()
    helper = [-1] * case.clients
    for j in rng.sample(range(case.clients), case.clients):
        fitting = np.flatnonzero(case.linked[:, j] & (left >= case.client_memory[j])).tolist()
        if not fitting:
            return None
        helper[j] = rng.choice(fitting)
        left[helper[j]] -= case.client_memory[j]
    return helper


def _shaken(case: Case, helper: list[int], rng: random.Random) -> list[int]:
    """Clients moved and swapped at random wherever memory and links allow it."""
    left = case.helper_memory.copy()
    np.subtract.at(left, helper, case.client_memory)
    memory, linked = case.client_memory, case.linked
    for _ in range(STEPS_PER_CLIENT * case.clients):
        j, k = rng.randrange(case.clients), rng.randrange(case.clients)
        a, to = helper[j], rng.randrange(case.helpers)
        if to != a and linked[to, j] and left[to] >= memory[j]:
            left[a] += memory[j]
            left[to] -= memory[j]
            helper[j] = to
            continue
        b, more = helper[k], memory[j] - memory[k]
        if a != b and linked[b, j] and linked[a, k] and left[b] >= more and left[a] >= -more:
            left[a] += more
            left[b] -= more
            helper[j], helper[k] = b, a
    return helper
