"""Tabu search over assignments: clients leave overloaded helpers, alone or in exchange, until none is too late.

For a target makespan T the cost of an assignment is how far its helpers end beyond T together; an assignment of cost 0
lowers T to just below its own makespan. Every helper's time is that of its own best schedule (`Book`), so a move counts
as what it is. F. Glover, "Tabu search, part I", ORSA Journal on Computing 1(3), 1989.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from fleetune.solving.split.book import Book, clients_of

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


class LocalSearch:
    """From one assignment; `masks` is the best one found, `value` its makespan."""

    def __init__(self, book: Book, masks: Sequence[int], seed: str, near: Sequence[Sequence[int]]) -> None:
        """near: of each client, the helpers that suit it, best first."""
        self.book, self.random = book, Random(seed)
        self.near = [list(helpers[:NEAREST]) for helpers in near]
        self.masks, self.value = list(masks), max(book.values(masks))

    def run(self, *, effort: float, enough: int, over: Callable[[], bool]) -> None:
        """Search until the makespan is at most `enough`, so much work is done, or time is over."""
        ends = self.book.effort + effort
        while self.value > enough and self.book.effort < ends and not over():
            if not self._descend(self.value - 1, ends, over):
                return

    def _descend(self, target: int, ends: float, over: Callable[[], bool]) -> bool:
        """Whether an assignment within the target was found."""
        walk = _Walk(self, target)
        best, best_masks, since = walk.cost(), list(walk.masks), 0
        least, restarts = math.inf, 0
        while self.book.effort < ends and restarts <= RESTARTS and not over():
            if not walk.step(least):
                return False
            self.book.steps += SAMPLE
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


class _Walk:
    """The assignment where the search is."""

    def __init__(self, search: LocalSearch, target: int) -> None:
        self.book, self.target, self.random, self.near = search.book, target, search.random, search.near
        self.steps = 0
        self.barred: dict[tuple[int, int], int] = {}
        """(client, helper) -> the step until which it may not go there."""
        self.restart(search.masks, shake=0)

    def restart(self, masks: Sequence[int], shake: int = 3) -> None:
        """Go on from there, some random moves away."""
        self.masks = list(masks)
        self.used = [sum(self.book.memory[j] for j in clients_of(mask)) for mask in self.masks]
        self.values = self.book.values(self.masks)
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
        book, random = self.book, self.random
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
                if not book.allowed[a] >> back & 1:
                    continue
            if not book.allowed[b] >> out & 1:
                continue
            shift = book.memory[out] - (book.memory[back] if back >= 0 else 0)
            if self.used[b] + shift <= book.room[b] and self.used[a] - shift <= book.room[a]:
                found.append(Move(a, b, out, back))
        return found

    def _after(self, move: Move) -> tuple[int, int]:
        bits = 1 << move.out | (1 << move.back if move.back >= 0 else 0)
        return self.masks[move.a] ^ bits, self.masks[move.b] ^ bits

    def _promise(self, move: Move) -> float:
        """No less than this is the change of the cost, by bounds on both helpers."""
        mask_a, mask_b = self._after(move)
        before = self._part(self.values[move.a]) + self._part(self.values[move.b])
        return self._part(self.book.least(move.a, mask_a)) + self._part(self.book.least(move.b, mask_b)) - before

    def _change(self, move: Move, limit: float) -> float:
        """Of the cost; not worked out to the end where it cannot be below the limit."""
        mask_a, mask_b = self._after(move)
        before = self._part(self.values[move.a]) + self._part(self.values[move.b])
        part = self._part(self.book.find(move.b, mask_b).value) - before
        if part >= limit:
            return part
        return part + self._part(self.book.find(move.a, mask_a).value)

    def _part(self, value: int) -> float:
        return max(0, value - self.target) + value / (1e3 * len(self.values))

    def _barred(self, move: Move) -> bool:
        return self.barred.get((move.out, move.b), 0) > self.steps or (
            move.back >= 0 and self.barred.get((move.back, move.a), 0) > self.steps
        )

    def _take(self, move: Move) -> None:
        a, b, out, back = move
        self.masks[a], self.masks[b] = self._after(move)
        shift = self.book.memory[out] - (self.book.memory[back] if back >= 0 else 0)
        self.used[a] -= shift
        self.used[b] += shift
        self.values[a] = self.book.find(a, self.masks[a]).value
        self.values[b] = self.book.find(b, self.masks[b]).value
        until = self.steps + TENURE + self.random.randrange(TENURE)
        self.barred[out, a] = until
        if back >= 0:
            self.barred[back, b] = until
