"""Ours: devices, their order and the cuts found together, then exchanged, cut anew and moved by eq. (3) itself.

Starts are the paper's methods where they fit, every device alone, and the best walks (`walk`) over several lines of the
graph for many limits on the slowest device and guesses of the slowest link. The fastest few are improved in turns:
devices exchanged, cuts and devices left out for their order, single operators and branches moved; then the best is
shaken and improved again. Tiny problems are enumerated. Never slower than `opfence` or a baseline that fits.
"""

from random import Random

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.opfence.anneal import annealed
from fleetune.solving.opfence.bound import lower_bound_s
from fleetune.solving.opfence.case import Case, Place
from fleetune.solving.opfence.cuts import cut
from fleetune.solving.opfence.drafts import Drafts
from fleetune.solving.opfence.every import best_of_all, few
from fleetune.solving.opfence.line import Line, lines
from fleetune.solving.opfence.methods import equal_compute, equal_modules, opfence
from fleetune.solving.opfence.moves import moved
from fleetune.solving.opfence.quotient import exchanged, in_sequence
from fleetune.solving.opfence.shortage import shortage, unpacked
from fleetune.solving.opfence.walk import Limits, Walk, spread
from fleetune.solving.opfence.watch import ENDLESS, Watch
from fleetune.solving.proofs import Floats

CUTS, FINE_CUTS = 128, 256
"""Of a line, while the order of devices is open, and while it is fixed."""
LIMITS = 14
"""On the slowest device."""
GUESSES = 8
"""Of the slowest link, where links are thinned by it."""
UNTHINNED = np.array([np.inf])
"""As if links were thinned by nothing."""
NEAR = np.array([0.6, 0.8, 0.9, 0.96, 1.0, 1.15])
"""Limits tried about those of a placement that is cut anew."""
KEPT = 6
"""Drafts."""
SHAKEN, DENSE_SHAKEN, LEAST_SHAKES, MOST_SHAKES = 20_000, 60_000, 6, 60
"""Shaken copies that are improved: so many places (operators times devices) in all, more where no link is thinned, but
within these limits."""
ANNEALED = 2
"""Drafts, and as many random placements of problems with fewer places than this."""
SMALL = 500
STEPS, LARGE_STEPS, LARGE = 3000, 1000, 2500
"""Of annealing one, with fewer and with more places than this."""
TURNS = 6
"""Of all steps, while they help."""
CLOSE = 1e-4
"""A plan so near its bound, relatively, is not improved."""
MOST_STEPS = 40_000_000
"""Cuts times pairs of devices times trials, of one walk: fewer trials are made where they would be more."""


def plan(case: Case, seed: int, watch: Watch = ENDLESS) -> tuple[Place, float]:
    """The fastest placement found, and a time that none can beat; Infeasible where none was found that fits.

    watch: with a limit the search goes on until then, and ends with what there is.
    """
    missing = shortage(case)
    if missing is not None:
        raise Infeasible(missing)
    if few(case):
        place = best_of_all(case)
        if place is None:
            raise Infeasible(unpacked(case, True))
        return place, case.cost_s(place)
    search = _Search(case, seed, watch)
    search.start()
    shaken = SHAKEN if case.codec.ratio else DENSE_SHAKEN
    shakes = min(max(shaken // (case.operators * case.devices), LEAST_SHAKES), MOST_SHAKES)
    steps = [search.improve, search.anneal, *[search.shake] * shakes]
    while steps and not search.proven and not watch.over:
        steps.pop(0)()
        if watch.limited:
            steps = steps or [search.shake]
    return search.drafts.places[0], search.bound_s


class _Search:
    def __init__(self, case: Case, seed: int, watch: Watch) -> None:
        self.case, self.seed, self.random = case, seed, Random(seed)
        self.watch = watch
        self.drafts = Drafts(case, KEPT)
        self.lines = lines(case)
        self.bound_s = 0.0
        self._done: set[tuple[str, bytes]] = set()

    def start(self) -> None:
        """Offer what the other methods find, every device alone, and the best walks."""
        case = self.case
        if self.watch.limited:  # a first draft before anything that takes time
            self._offer_simple()
        unpackable: Infeasible | None = None
        if not self.ended:
            try:
                self.drafts.offer(opfence.fenced(case, self.seed, self.watch))
            except Infeasible as error:  # proven, or only not found
                unpackable = error
        self._offer_simple()
        for line in self.lines:
            self._walk(line.coarse(CUTS))
        if unpackable is not None and not self.drafts.places:
            raise unpackable
        self.bound_s = lower_bound_s(case, self.drafts.best_s, self.watch)

    def _offer_simple(self) -> None:
        """The baselines' plans, and every device alone."""
        case = self.case
        for baseline in (equal_modules, equal_compute):
            self.drafts.offer(baseline.plan(case, self.seed))
        for device in range(case.devices):
            if self.ended:
                return
            self.drafts.offer(np.full(case.operators, device, np.int64))

    @property
    def ended(self) -> bool:
        """Whether time is over and there is a plan."""
        return self.watch.over and bool(self.drafts.places)

    @property
    def proven(self) -> bool:
        """Whether nothing much faster can be found."""
        return self.drafts.best_s <= self.bound_s * (1 + CLOSE)

    def improve(self) -> None:
        """Improve every draft, the fastest first."""
        for place in self.drafts.places:
            if self.watch.over:
                return
            self.drafts.offer(self._improved(place))

    def shake(self) -> None:
        """Improve a shaken copy of a draft."""
        places = self.drafts.places
        place = places[min(int(self.random.expovariate(1.0)), len(places) - 1)]
        self.drafts.offer(self._improved(self._shaken(place)))

    def anneal(self) -> None:
        """Anneal the fastest drafts; of small problems also placements drawn at random, whether they fit or not."""
        case, starts = self.case, self.drafts.places[:ANNEALED]
        places = case.operators * case.devices
        if places < SMALL:
            drawn = [[self.random.randrange(case.devices) for _ in case.order] for _ in range(ANNEALED)]
            starts = [*starts, *(np.array(place, np.int64) for place in drawn)]
        steps = STEPS if places < LARGE else LARGE_STEPS
        for place in starts:
            found = annealed(case, place, self.random, steps, self.watch)
            if found is not None:
                self.drafts.offer(self._improved(found))

    def _walk(self, line: Line) -> None:
        """Offer the cheapest walks for all limits, then for limits about those of the best plan so far."""
        case = self.case
        walk = Walk(case, line, watch=self.watch)
        low = case.flops.sum() / case.speed.sum()
        high = max(self._reach_s() / case.rounds, low)
        before_s = self.drafts.best_s
        for links in (UNTHINNED, self._guesses(high)) if case.codec.ratio else (UNTHINNED,):
            self._try(walk, spread(low, high, LIMITS), links)
        if self.drafts.best_s < before_s:
            slowest_s, link_s = self._slowest(self.drafts.places[0])
            near = slowest_s * np.linspace(0.8, 1.05, LIMITS)
            self._try(walk, near, UNTHINNED)
            if case.codec.ratio:
                self._try(walk, near, link_s * np.array([0.5, 0.7, 0.85, 1.0]))

    def _reach_s(self) -> float:
        """What some plan takes, whether it fits or not."""
        best_s = self.drafts.best_s
        return best_s if np.isfinite(best_s) else self.case.cost_s(equal_modules.plan(self.case, self.seed))

    def _try(self, walk: Walk, slowest_s: Floats, links: Floats) -> None:
        """Offer the walks for every limit with every guess of the slowest link; for fewer of both if too many."""
        most = MOST_STEPS / (walk.line.cuts * self.case.devices**2)
        part = min(1.0, float(np.sqrt(most / (len(slowest_s) * len(links))))) / np.sqrt(len(self.lines))
        slowest_s, links = _some(slowest_s, part), _some(links, part)
        every = np.repeat(slowest_s, len(links))
        for trial in walk.trials(Limits(every, every, np.tile(links, len(slowest_s)))):
            self.drafts.offer(walk.line.place(*trial))

    def _guesses(self, high: float) -> Floats:
        """Of the slowest link's dense time, if no device receives for longer than `high`."""
        case = self.case
        off = ~np.eye(case.devices, dtype=bool)
        sizes = case.output_bytes[case.output_bytes > 0]
        quick = float((case.alpha + case.beta * sizes.min(initial=0.0))[off].min())
        slow = float((case.alpha + case.beta * sizes.max(initial=0.0))[off].max())
        return spread(quick, max(quick, min(slow, high / case.codec.least_share)), GUESSES)

    def _slowest(self, place: Place) -> tuple[float, float]:
        """What the busiest device takes, and the slowest link dense."""
        case = self.case
        compute_s, receive_s = case.seconds(place)
        link_s = float(case.dense_s(case.traffic(place)).max(initial=0.0))
        return max(float(compute_s.max()), float(receive_s.max())), link_s

    def _improved(self, place: Place) -> Place:
        """Exchanges, cuts and moves in turns until none helps."""
        case = self.case
        best, best_s = place, case.cost_s(place) if case.fits(place) else np.inf
        for _ in range(TURNS):
            before_s = best_s
            for step in (self._cut, self._exchange, self._move, self._merge):
                if self.watch.over:
                    return best
                key = step.__name__, best.tobytes()
                if key in self._done:
                    continue
                self._done.add(key)
                found = step(best)
                cost_s = case.cost_s(found)
                if cost_s < best_s * (1 - 1e-12) and case.fits(found):
                    best, best_s = found, cost_s
            if not best_s < before_s:
                break
        return best

    def _exchange(self, place: Place) -> Place:
        return exchanged(self.case, place, watch=self.watch)

    def _move(self, place: Place) -> Place:
        return moved(self.case, place, watch=self.watch)

    def _cut(self, place: Place) -> Place:
        """The fastest cuts for the order of devices, some of which may be left out."""
        case = self.case
        slowest_s, link_s = self._slowest(place)
        limits = slowest_s * NEAR
        links = link_s * np.array([0.7, 1.0, 1.5, np.inf]) if case.codec.ratio and link_s else UNTHINNED
        tried = Limits(np.repeat(limits, len(links)), np.repeat(limits, len(links)), np.tile(links, len(limits)))
        row = in_sequence(case, place).tolist()
        found = Drafts(case, 1)
        found.offer(place)
        for line in self.lines:
            fine = line.coarse(FINE_CUTS)
            for trial in cut(case, fine, row, tried, every=False, watch=self.watch):
                found.offer(fine.place(*trial))
        return found.places[0] if found.places else place

    def _merge(self, place: Place) -> Place:
        """One device's operators all to another that it talks to, where that is fastest."""
        case = self.case
        traffic = case.traffic(place)
        found = Drafts(case, 1)
        for one, other in zip(traffic.sender.tolist(), traffic.receiver.tolist(), strict=True):
            if self.watch.over:
                break
            for away, to in ((one, other), (other, one)):
                found.offer(np.where(place == away, to, place))
        return found.places[0] if found.places else place

    def _shaken(self, place: Place) -> Place:
        """A copy with a few runs handed to other devices."""
        found = place.copy()
        for _ in range(self.random.randint(1, 3)):
            used = np.unique(found).tolist()
            away, to = self.random.choice(used), self.random.randrange(self.case.devices)
            one, other = found == away, found == to
            if self.random.random() < 0.5:
                found[one], found[other] = to, away
            else:
                mine = [operator for operator in self.case.order if found[operator] == away]
                at = self.random.randint(0, len(mine))
                found[mine[at:] if self.random.random() < 0.5 else mine[:at]] = to
        return found if self.case.fits(found) else place


def _some(values: Floats, part: float) -> Floats:
    """A part of them, evenly; at least one."""
    count = max(1, int(len(values) * part))
    found: Floats = values[np.linspace(0, len(values) - 1, count).astype(np.int64)]
    return found
