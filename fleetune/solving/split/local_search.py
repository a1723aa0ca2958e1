"""Local search over assignments: tabu search and large neighbourhood search.

Tabu search (F. Glover, "Tabu search, part I", ORSA Journal on Computing 1(3), 1989) moves clients out of late helpers,
alone or in exchange. The cost of an assignment is the total time by which its helpers exceed a target makespan; at cost
0 the target drops below the assignment's makespan. A helper's time is that of its best schedule (`ScheduleCache`).

Large neighbourhood search (P. Shaw, CP 1998) reassigns all clients of a late helper and a few others by the Benders
search of `benders`, which finds a shorter assignment or proves that there is none. Its cuts hold for the whole problem.
Groups of four helpers take a fraction of a second; groups grow once all of a size are tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

import numpy as np

from fleetune.solving.limits import Deadline
from fleetune.solving.split.benders import BendersMaster
from fleetune.solving.split.schedule_cache import ScheduleCache, clients_of

SAMPLE = 60
"""Moves examined per step."""
TENURE = 7
"""Minimum number of steps before a client may return."""
STALE = 400
"""Steps without improvement before the search restarts from the best assignment."""
PREFERRED, PREFERRED_SHARE = 3, 0.8
"""A client moves to one of its PREFERRED first preferences with probability PREFERRED_SHARE, else to any."""
RESTARTS = 4
"""Restarts per target."""


class Move(NamedTuple):
    """Client `out` moves from helper `a` to `b`; client `back`, if not -1, the other way."""

    a: int
    b: int
    out: int
    back: int


class TabuSearch:
    """Tabu search from one assignment; `masks` is the best one found, `value` its makespan."""

    def __init__(
        self, cache: ScheduleCache, masks: Sequence[int], seed: str, preferred: Sequence[Sequence[int]]
    ) -> None:
        """preferred: [client], helpers by preference."""
        self.cache, self.random = cache, Random(seed)
        self.preferred = [list(helpers[:PREFERRED]) for helpers in preferred]
        self.masks, self.value = list(masks), max(cache.makespans(masks))

    def run(self, *, effort: float, enough: int, deadline: Deadline) -> None:
        """Search until the makespan is at most `enough`, `effort` is spent or the deadline expires."""
        ends = self.cache.effort + effort
        while self.value > enough and self.cache.effort < ends and not deadline.expired:
            if not self._descend(self.value - 1, ends, deadline):
                return

    def _descend(self, target: int, ends: float, deadline: Deadline) -> bool:
        """Return True if an assignment within the target was found."""
        state = _TabuState(self, target)
        best, best_masks, since = state.cost(), list(state.masks), 0
        least, restarts = math.inf, 0
        while self.cache.effort < ends and restarts <= RESTARTS and not deadline.expired:
            if not state.step(least):
                return False
            self.cache.steps += SAMPLE
            if state.late == 0:
                self.masks, self.value = list(state.masks), max(state.values)
                return True
            cost = state.cost()
            least = min(least, cost)
            since += 1
            if cost < best:
                best, best_masks, since, restarts = cost, list(state.masks), 0, 0
            elif since >= STALE:
                state.restart(best_masks)
                since, least, restarts = 0, math.inf, restarts + 1
        return False


class _TabuState:
    """Current assignment of the search."""

    def __init__(self, search: TabuSearch, target: int) -> None:
        self.cache, self.target, self.random, self.preferred = search.cache, target, search.random, search.preferred
        self.steps = 0
        self.tabu_until: dict[tuple[int, int], int] = {}
        """(client, helper) -> first step at which the move is allowed again."""
        self.restart(search.masks, shake=0)

    def restart(self, masks: Sequence[int], shake: int = 3) -> None:
        """Continue from an assignment after a few random moves."""
        self.masks = list(masks)
        self.used = [sum(self.cache.memory[j] for j in clients_of(mask)) for mask in self.masks]
        self.values = self.cache.makespans(self.masks)
        for _ in range(shake):
            moves = self._moves(10)
            if moves:
                self._apply(moves[0])

    @property
    def late(self) -> int:
        """Total time beyond the target, over helpers."""
        return sum(max(0, value - self.target) for value in self.values)

    def cost(self) -> float:
        """Return the lateness, with the sum of makespans as a tie-breaker."""
        return self.late + sum(self.values) / (1e3 * len(self.values))

    def step(self, least: float) -> bool:
        """Take the best move that is not tabu or beats the aspiration level `least`; return False if there is none."""
        self.steps += 1
        best, chosen = math.inf, None
        now = self.cost()
        moves = self._moves(SAMPLE)
        # best bounds first, so that most other moves need no schedule
        for promise, _, move in sorted((self._change_bound(move), k, move) for k, move in enumerate(moves)):
            if now + promise >= best:
                break
            cost = now + self._cost_change(move, best - now)
            if cost < best and (cost < least or not self._is_tabu(move)):
                best, chosen = cost, move
        if chosen is None:
            chosen = moves[0] if moves else None
        if chosen is None:
            return False
        self._apply(chosen)
        return True

    def _moves(self, count: int) -> list[Move]:
        """Draw feasible moves out of late helpers."""
        cache, random = self.cache, self.random
        late = [i for i, value in enumerate(self.values) if value > self.target and self.masks[i]]
        late = late or [i for i, mask in enumerate(self.masks) if mask]
        others = len(self.masks)
        members = [clients_of(mask) for mask in self.masks]
        found: list[Move] = []
        for _ in range(4 * count):
            if len(found) == count or others < 2:
                break
            a = random.choice(late)
            out = random.choice(members[a])
            b = random.choice(self.preferred[out]) if random.random() < PREFERRED_SHARE else random.randrange(others)
            if b == a:
                continue
            back = -1
            if members[b] and random.random() < 0.7:
                suited = [j for j in members[b] if a in self.preferred[j]] if random.random() < PREFERRED_SHARE else []
                back = random.choice(suited or members[b])
                if not cache.allowed[a] >> back & 1:
                    continue
            if not cache.allowed[b] >> out & 1:
                continue
            shift = cache.memory[out] - (cache.memory[back] if back >= 0 else 0)
            if self.used[b] + shift <= cache.capacity[b] and self.used[a] - shift <= cache.capacity[a]:
                found.append(Move(a, b, out, back))
        return found

    def _masks_after(self, move: Move) -> tuple[int, int]:
        bits = 1 << move.out | (1 << move.back if move.back >= 0 else 0)
        return self.masks[move.a] ^ bits, self.masks[move.b] ^ bits

    def _change_bound(self, move: Move) -> float:
        """Return a lower bound on the change of cost."""
        mask_a, mask_b = self._masks_after(move)
        before = self._helper_cost(self.values[move.a]) + self._helper_cost(self.values[move.b])
        return (
            self._helper_cost(self.cache.lower_bound(move.a, mask_a))
            + self._helper_cost(self.cache.lower_bound(move.b, mask_b))
            - before
        )

    def _cost_change(self, move: Move, limit: float) -> float:
        """Return the change of cost, or a lower bound of at least `limit`."""
        mask_a, mask_b = self._masks_after(move)
        before = self._helper_cost(self.values[move.a]) + self._helper_cost(self.values[move.b])
        part = self._helper_cost(self.cache.find(move.b, mask_b).value) - before
        if part >= limit:
            return part
        return part + self._helper_cost(self.cache.find(move.a, mask_a).value)

    def _helper_cost(self, value: int) -> float:
        return max(0, value - self.target) + value / (1e3 * len(self.values))

    def _is_tabu(self, move: Move) -> bool:
        return self.tabu_until.get((move.out, move.b), 0) > self.steps or (
            move.back >= 0 and self.tabu_until.get((move.back, move.a), 0) > self.steps
        )

    def _apply(self, move: Move) -> None:
        a, b, out, back = move
        self.masks[a], self.masks[b] = self._masks_after(move)
        shift = self.cache.memory[out] - (self.cache.memory[back] if back >= 0 else 0)
        self.used[a] -= shift
        self.used[b] += shift
        self.values[a] = self.cache.find(a, self.masks[a]).value
        self.values[b] = self.cache.find(b, self.masks[b]).value
        until = self.steps + TENURE + self.random.randrange(TENURE)
        self.tabu_until[out, a] = until
        if back >= 0:
            self.tabu_until[back, b] = until


WORK = {3: 0.1, 4: 0.15, 5: 0.6}
"""Deterministic solver seconds per group, by group size."""
ROUNDS = 60
EFFORT_S = 3e-6
"""Approximate seconds per unit of the cache's effort."""


class LargeNeighbourhoodSearch:
    """Large neighbourhood search from one assignment; `masks` is the best one found, `value` its makespan."""

    def __init__(self, master: BendersMaster, masks: Sequence[int], seed: str) -> None:
        self.master, self.cache, self.random = master, master.cache, Random(seed)
        self.masks = list(masks)
        self.values = self.cache.makespans(self.masks)
        self._tried: set[tuple[tuple[int, int], ...]] = set()

    @property
    def value(self) -> int:
        """Makespan of `masks`."""
        return max(self.values)

    def run(self, *, work: float, enough: int, deadline: Deadline) -> None:
        """Search until the makespan is at most `enough`, all groups are tried, about `work` seconds are spent or the
        deadline expires."""
        ends = self._spent() + work
        while self.value > enough and self._spent() < ends and deadline.left_s() > 0:
            group = self._group()
            if group is None:
                return
            self._reassign(group, deadline)

    def _spent(self) -> float:
        return self.master.spent + EFFORT_S * self.cache.effort

    def _group(self) -> tuple[int, ...] | None:
        """Return an untried group of helpers that contains one with the largest makespan, or None."""
        late = [i for i, value in enumerate(self.values) if value == self.value]
        for size in WORK:
            groups = []
            for a in late:
                others = [i for i in range(len(self.masks)) if i != a]
                groups += [tuple(sorted((a, *some))) for some in combinations(others, size - 1)]
            self.random.shuffle(groups)
            for group in groups:
                if self._key(group) not in self._tried:
                    return group
        return None

    def _key(self, group: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        return tuple((i, self.masks[i]) for i in group)

    def _reassign(self, group: tuple[int, ...], deadline: Deadline) -> None:
        self._tried.add(self._key(group))
        among = np.zeros(self.master.instance.linked.shape, bool)
        clients = [j for i in group for j in clients_of(self.masks[i])]
        among[np.ix_(group, clients)] = True
        verdict = self.master.decide(
            self.value - 1, work=WORK[len(group)], rounds=ROUNDS, hint=self.masks, deadline=deadline, among=among
        )
        if verdict.masks is not None and verdict.meets_horizon:
            for i in group:
                self.masks[i] = verdict.masks[i]
            self.values = self.cache.makespans(self.masks)
