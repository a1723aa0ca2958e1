"""Problems to try: tiny ones for brute force, and larger ones in the style of the paper's scenarios."""

import random

from fleetune.solving.split.problem import Problem

Matrix = tuple[tuple[int | None, ...], ...]


def random_problem(seed: int, clients: int, helpers: int, *, preemptive: bool, **how: float) -> Problem:
    """A random problem that need not be feasible.

    how: `longest` task (default 3) and `delay` (default 3), chance of a missing `link` (default 0), `room` of all
    helpers together relative to what the clients need (default 2), most `switch` cost (default 0).
    """
    r = random.Random(f"{seed} {clients} {helpers}")
    longest, delay = int(how.get("longest", 3)), int(how.get("delay", 3))
    missing = [[r.random() < how.get("link", 0.0) for _ in range(clients)] for _ in range(helpers)]

    def matrix(least: int, most: int) -> Matrix:
        return tuple(tuple(None if gone else r.randint(least, most) for gone in row) for row in missing)

    memory = tuple(float(r.randint(1, 4)) for _ in range(clients))
    room = how.get("room", 2.0) * sum(memory) / helpers
    return Problem(
        release=matrix(0, delay),
        forward=matrix(1, longest),
        turnaround_forward=matrix(0, delay),
        turnaround_backward=matrix(0, delay),
        backward=matrix(1, longest),
        tail=matrix(0, delay),
        helper_memory=tuple(float(round(room * r.uniform(0.7, 1.3))) for _ in range(helpers)),
        client_memory=memory,
        preemptive=preemptive,
        switch_cost=tuple(r.randint(0, int(how.get("switch", 0))) for _ in range(helpers)),
    )


def tiny_problem(seed: int, *, preemptive: bool, **how: float) -> Problem:
    """2 or 3 clients on 1 or 2 helpers, for brute force."""
    clients, helpers = 2 + seed % 2, 1 + seed // 2 % 2
    if preemptive:
        how = {"longest": 2, "delay": 2} | how
    return random_problem(seed, clients, helpers, preemptive=preemptive, **how)


def scenario_problem(seed: int, clients: int, helpers: int, *, preemptive: bool = True, slot_ms: int = 180) -> Problem:
    """In the style of the paper's scenario 2: uneven devices, links and cut layers; feasible by construction."""
    r = random.Random(f"scenario {seed} {clients} {helpers}")
    speed = [r.uniform(0.8, 3.0) for _ in range(helpers)]
    link = [r.uniform(0.3, 1.0) for _ in range(clients)]
    local = [r.choice([1.0, 2.0, 8.0]) * r.uniform(0.7, 1.3) for _ in range(clients)]
    cut = [r.uniform(0.6, 1.0) for _ in range(clients)]

    def matrix(ms_of: list[list[float]]) -> Matrix:
        return tuple(tuple(max(1, round(ms / slot_ms)) for ms in row) for row in ms_of)

    def pairs(base: float, of: list[float]) -> Matrix:
        return matrix([[base * x * r.uniform(0.9, 1.1) for x in of] for _ in range(helpers)])

    def work(base: float) -> Matrix:
        return matrix([[base * s * c * r.uniform(0.95, 1.05) for c in cut] for s in speed])

    memory = tuple(round(0.5 + 1.5 * c, 1) for c in cut)
    shares = [r.uniform(0.6, 1.6) for _ in range(helpers)]
    most = max(memory)
    room = tuple(round(1.4 * sum(memory) * share / sum(shares) + most, 1) for share in shares)
    return Problem(
        release=pairs(2500, [a + b for a, b in zip(local, link, strict=True)]),
        forward=work(700),
        turnaround_forward=pairs(600, link),
        turnaround_backward=pairs(800, link),
        backward=work(1200),
        tail=pairs(1500, local),
        helper_memory=room,
        client_memory=memory,
        preemptive=preemptive,
        switch_cost=(0,) * helpers,
    )


def with_memory(
    helpers: tuple[float, ...], clients: tuple[float, ...], missing: tuple[tuple[int, int], ...] = ()
) -> Problem:
    """Return a problem with tasks of one unit, without a link between the (helper, client) in `missing`."""
    matrix = tuple(tuple(None if (i, j) in missing else 1 for j in range(len(clients))) for i in range(len(helpers)))
    return Problem(
        release=matrix,
        forward=matrix,
        turnaround_forward=matrix,
        turnaround_backward=matrix,
        backward=matrix,
        tail=matrix,
        helper_memory=helpers,
        client_memory=clients,
        preemptive=False,
        switch_cost=(0,) * len(helpers),
    )
