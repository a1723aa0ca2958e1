"""The heuristics of J. Tirana et al. (INFOCOM 2024): `balanced-greedy` (section VI), `random-fcfs` (section VII).

balanced-greedy, step 1: in the order of the clients, each goes to the helper with the fewest clients among those with a
link and enough memory left. Step 2: first come, first served, without interruptions. The paper does not say what
happens if no helper is left for a client; here the clients are then assigned so that the fullest helper has the fewest.

random-fcfs: clients in random order, each to any helper with memory left; started again if one finds none. If memory is
so scarce that this keeps failing: random moves and swaps from an assignment that fits.
"""

import random
from collections.abc import Sequence

import numpy as np

from fleetune.solving.limits import Deadline
from fleetune.solving.split.assignment import even_assignment, find_assignment
from fleetune.solving.split.instance import Instance
from fleetune.solving.split.schedule import Candidate, SearchOptions, first_come_first_served, schedule_helpers


def balanced_greedy(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return the heuristic's schedule. Deterministic, unless a time limit ends the search for an assignment."""
    deadline = Deadline(options.time_limit_s)
    helper = balanced_assignment(instance)
    deterministic = helper is not None or not deadline.limited
    if helper is None:
        feasible = even_assignment(instance, deadline.left_s()) or options.feasible or find_assignment(instance)
        helper = None if feasible is None else list(feasible)
    assert helper is not None, "only asked where everyone fits"
    return Candidate(helper, schedule_helpers(instance, helper, first_come_first_served), deterministic=deterministic)


def balanced_assignment(instance: Instance) -> list[int] | None:
    """Return step 1: a helper per client, ties to the first helper; None if a client finds no memory."""
    left, load = instance.helper_memory.copy(), np.zeros(instance.helpers, np.int64)
    helper = []
    for j in range(instance.clients):
        fitting = np.flatnonzero(instance.linked[:, j] & (left >= instance.client_memory[j]))
        if not fitting.size:
            return None
        i = int(fitting[np.argmin(load[fitting])])
        left[i] -= instance.client_memory[j]
        load[i] += 1
        helper.append(i)
    return helper


TRIES = 100
STEPS_PER_CLIENT = 50


def random_fcfs(instance: Instance, options: SearchOptions = SearchOptions()) -> Candidate:  # noqa: B008 - immutable
    """Return a random assignment, scheduled first come first served."""
    helper = random_assignment(instance, random.Random(options.seed), options.feasible)
    return Candidate(helper, schedule_helpers(instance, helper, first_come_first_served))


def random_assignment(instance: Instance, rng: random.Random, feasible: Sequence[int] | None = None) -> list[int]:
    """Draw an assignment within memory, for problems that have one. feasible: one, if known."""
    for _ in range(TRIES):
        helper = _random_greedy(instance, rng)
        if helper is not None:
            return helper
    found = feasible or find_assignment(instance)
    assert found is not None, "only asked where everyone fits"
    return _perturbed(instance, list(found), rng)


def _random_greedy(instance: Instance, rng: random.Random) -> list[int] | None:
    """Assign clients in random order, each to any helper with memory left; None if one finds none."""
    left = instance.helper_memory.copy()
    helper = [-1] * instance.clients
    for j in rng.sample(range(instance.clients), instance.clients):
        fitting = np.flatnonzero(instance.linked[:, j] & (left >= instance.client_memory[j])).tolist()
        if not fitting:
            return None
        helper[j] = rng.choice(fitting)
        left[helper[j]] -= instance.client_memory[j]
    return helper


def _perturbed(instance: Instance, helper: list[int], rng: random.Random) -> list[int]:
    """Apply random moves and swaps within memory and links."""
    left = instance.helper_memory.copy()
    np.subtract.at(left, helper, instance.client_memory)
    memory, linked = instance.client_memory, instance.linked
    for _ in range(STEPS_PER_CLIENT * instance.clients):
        j, k = rng.randrange(instance.clients), rng.randrange(instance.clients)
        a, to = helper[j], rng.randrange(instance.helpers)
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
