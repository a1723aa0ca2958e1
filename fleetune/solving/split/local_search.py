"""Tabu search over assignments: clients leave overloaded helpers, alone or in exchange, until none is too late.

For a target makespan T the cost of an assignment is how far its helpers end beyond T together; an assignment of cost 0
lowers T to just below its own makespan. Every helper's time is that of its own best schedule (`ScheduleCache`), so a move is
judged as what it is. F. Glover, "Tabu search, part I", ORSA Journal on Computing 1(3), 1989.

Some helpers' clients dealt out among them anew, exactly: what single moves and exchanges do not find.

Large neighbourhood search (P. Shaw, CP 1998): a helper that ends last and some others give up their clients, and the
Benders search of `master` looks for an assignment of these to those that ends sooner, or proves that there is none.
Rows and cuts that it learns hold for the whole problem, so that neither is lost. With four helpers a group is decided
in a fraction of a second; once no group of that size is left to try, groups are larger by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple

import numpy as np

from fleetune.solving.deadline import Deadline
from fleetune.solving.split.benders import BendersMaster
from fleetune.solving.split.schedule_cache import ScheduleCache, clients_of

SAMPLE = 60
"""Moves looked at in a step."""
TENURE = 7
"""Steps, at least, that a client does not go back."""
STALE = 400
"""Steps without a better cost before the search goes back to the best assignment and shakes it."""
NEAREST, NEAR = 3, 0.8
"""How often a client goes to one of how many helpers that suit it best, rather than to any."""
RESTARTS = 4
"""Times it does so for one target."""


class Move(NamedTuple):
    """Client `out` from helper `a` to `b`, and `back`, if not -1, the other way."""

    a: int
    b: int
    out: int
    back: int


class TabuSearch:
    """From one assignment; `masks` is the best one found, `value` its makespan."""

    def __init__(self, cache: ScheduleCache, masks: Sequence[int], seed: str, near: Sequence[Sequence[int]]) -> None:
        """near: of each client, the helpers that suit it, best first."""
        self.cache, self.random = cache, Random(seed)
        self.near = [list(helpers[:NEAREST]) for helpers in near]
        self.masks, self.value = list(masks), max(cache.makespans(masks))

    def run(self, *, effort: float, enough: int, deadline: Deadline) -> None:
        """Search until the makespan is at most `enough`, so much work is done, or time is over."""
        ends = self.cache.effort + effort
        while self.value > enough and self.cache.effort < ends and not deadline.expired:
            if not self._descend(self.value - 1, ends, deadline):
                return

    def _descend(self, target: int, ends: float, deadline: Deadline) -> bool:
        """Whether an assignment within the target was found."""
        walk = _TabuState(self, target)
        best, best_masks, since = walk.cost(), list(walk.masks), 0
        least, restarts = math.inf, 0
        while self.cache.effort < ends and restarts <= RESTARTS and not deadline.expired:
            if not walk.step(least):
                return False
            self.cache.steps += SAMPLE
            if walk.late == 0:
                self.masks, self.value = list(walk.masks), max(walk.values)
                return True
            cost = walk.cost()
            least = min(least, cost)
            since += 1
            if cost < best:
                best, best_masks, since, restarts = cost, list(walk.masks), 0, 0
            elif since >= STALE:
                walk.restart(best_masks)
                since, least, restarts = 0, math.inf, restarts + 1
        return False


class _TabuState:
    """The assignment where the search is."""

    def __init__(self, search: TabuSearch, target: int) -> None:
        self.cache, self.target, self.random, self.near = search.cache, target, search.random, search.near
        self.steps = 0
        self.barred: dict[tuple[int, int], int] = {}
        """(client, helper) -> the step until which it may not go there."""
        self.restart(search.masks, shake=0)

    def restart(self, masks: Sequence[int], shake: int = 3) -> None:
        """Go on from there, some random moves away."""
        self.masks = list(masks)
        self.used = [sum(self.cache.memory[j] for j in clients_of(mask)) for mask in self.masks]
        self.values = self.cache.makespans(self.masks)
        for _ in range(shake):
            moves = self._moves(10)
            if moves:
                self._take(moves[0])

    @property
    def late(self) -> int:
        """Time units beyond the target, of all helpers together."""
        return sum(max(0, value - self.target) for value in self.values)

    def cost(self) -> float:
        """What a step lowers: lateness, and a little of the second latest when it is equal."""
        return self.late + sum(self.values) / (1e3 * len(self.values))

    def step(self, least: float) -> bool:
        """Take the best move that is not barred, or one to a cost never seen; False: there is none."""
        self.steps += 1
        best, chosen = math.inf, None
        now = self.cost()
        moves = self._moves(SAMPLE)
        # those that promise most first: most others then need no schedule
        for promise, _, move in sorted((self._promise(move), k, move) for k, move in enumerate(moves)):
            if now + promise >= best:
                break
            cost = now + self._change(move, best - now)
            if cost < best and (cost < least or not self._barred(move)):
                best, chosen = cost, move
        if chosen is None:
            chosen = moves[0] if moves else None
        if chosen is None:
            return False
        self._take(chosen)
        return True

    def _moves(self, count: int) -> list[Move]:
        """Random moves out of late helpers that links and memory allow."""
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
            b = random.choice(self.near[out]) if random.random() < NEAR else random.randrange(others)
            if b == a:
                continue
            back = -1
            if members[b] and random.random() < 0.7:
                suited = [j for j in members[b] if a in self.near[j]] if random.random() < NEAR else []
                back = random.choice(suited or members[b])
                if not cache.allowed[a] >> back & 1:
                    continue
            if not cache.allowed[b] >> out & 1:
                continue
            shift = cache.memory[out] - (cache.memory[back] if back >= 0 else 0)
            if self.used[b] + shift <= cache.capacity[b] and self.used[a] - shift <= cache.capacity[a]:
                found.append(Move(a, b, out, back))
        return found

    def _after(self, move: Move) -> tuple[int, int]:
        bits = 1 << move.out | (1 << move.back if move.back >= 0 else 0)
        return self.masks[move.a] ^ bits, self.masks[move.b] ^ bits

    def _promise(self, move: Move) -> float:
        """No less than this is the change of the cost, by bounds on both helpers."""
        mask_a, mask_b = self._after(move)
        before = self._part(self.values[move.a]) + self._part(self.values[move.b])
        return self._part(self.cache.least(move.a, mask_a)) + self._part(self.cache.least(move.b, mask_b)) - before

    def _change(self, move: Move, limit: float) -> float:
        """Of the cost; not worked out to the end where it cannot be below the limit."""
        mask_a, mask_b = self._after(move)
        before = self._part(self.values[move.a]) + self._part(self.values[move.b])
        part = self._part(self.cache.find(move.b, mask_b).value) - before
        if part >= limit:
            return part
        return part + self._part(self.cache.find(move.a, mask_a).value)

    def _part(self, value: int) -> float:
        return max(0, value - self.target) + value / (1e3 * len(self.values))

    def _barred(self, move: Move) -> bool:
        return self.barred.get((move.out, move.b), 0) > self.steps or (
            move.back >= 0 and self.barred.get((move.back, move.a), 0) > self.steps
        )

    def _take(self, move: Move) -> None:
        a, b, out, back = move
        self.masks[a], self.masks[b] = self._after(move)
        shift = self.cache.memory[out] - (self.cache.memory[back] if back >= 0 else 0)
        self.used[a] -= shift
        self.used[b] += shift
        self.values[a] = self.cache.find(a, self.masks[a]).value
        self.values[b] = self.cache.find(b, self.masks[b]).value
        until = self.steps + TENURE + self.random.randrange(TENURE)
        self.barred[out, a] = until
        if back >= 0:
            self.barred[back, b] = until


WORK = {3: 0.1, 4: 0.15, 5: 0.6}
"""Of the solver for one group, in deterministic seconds, by its size."""
ROUNDS = 60
EFFORT_S = 3e-6
"""Of a unit of the book's effort."""


class LargeNeighbourhoodSearch:
    """From one assignment; `masks` is the best one found, `value` its makespan."""

    def __init__(self, master: BendersMaster, masks: Sequence[int], seed: str) -> None:
        self.master, self.cache, self.random = master, master.cache, Random(seed)
        self.masks = list(masks)
        self.values = self.cache.makespans(self.masks)
        self._tried: set[tuple[tuple[int, int], ...]] = set()

    @property
    def value(self) -> int:
        """The makespan."""
        return max(self.values)

    def run(self, *, work: float, enough: int, deadline: Deadline) -> None:
        """Until the makespan is at most `enough`, all groups are tried, about so many seconds' work is done, or none is
        left."""
        ends = self._spent() + work
        while self.value > enough and self._spent() < ends and deadline.left_s() > 0:
            group = self._group()
            if group is None:
                return
            self._deal(group, deadline)

    def _spent(self) -> float:
        return self.master.spent + EFFORT_S * self.cache.effort

    def _group(self) -> tuple[int, ...] | None:
        """Helpers not tried together with these clients, one that ends last among them; None: there are none."""
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

    def _deal(self, group: tuple[int, ...], deadline: Deadline) -> None:
        self._tried.add(self._key(group))
        among = np.zeros(self.master.instance.linked.shape, bool)
        clients = [j for i in group for j in clients_of(self.masks[i])]
        among[np.ix_(group, clients)] = True
        verdict = self.master.decide(
            self.value - 1, work=WORK[len(group)], rounds=ROUNDS, hint=self.masks, deadline=deadline, among=among
        )
        if verdict.masks is not None and verdict.kept:
            for i in group:
                self.masks[i] = verdict.masks[i]
            self.values = self.cache.makespans(self.masks)
