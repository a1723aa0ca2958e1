"""Our method: devices, their order and the cuts are chosen together, then improved by eq. (3) itself.

Starts are the plans of the other methods that fit, each device alone, and the best paths (`path_dp`) over several
linear orders for many limits on the slowest device and guesses of the slowest link. The best few are improved in turns:
devices exchanged, cuts chosen anew with devices left out, single operators and branches moved; then the best is
perturbed and improved again. Tiny problems are enumerated. Never slower than `opfence` or a baseline that fits.
"""

from random import Random

import numpy as np

from fleetune.arrays import Floats
from fleetune.errors import Infeasible
from fleetune.solving.limits import NO_DEADLINE, Deadline
from fleetune.solving.opfence.bound import lower_bound_s
from fleetune.solving.opfence.brute_force import best_placement, is_tiny
from fleetune.solving.opfence.device_exchange import devices_in_order, exchange_devices
from fleetune.solving.opfence.infeasibility import infeasibility_reason, packing_failure
from fleetune.solving.opfence.instance import MIN_GAIN, Instance, LinearOrder, Placement, linear_orders
from fleetune.solving.opfence.local_search import anneal, chain_moves
from fleetune.solving.opfence.methods import opfence
from fleetune.solving.opfence.methods.opfence import equal_compute, equal_modules
from fleetune.solving.opfence.path_dp import PathProgram, TrialLimits, best_cuts, geometric_grid

CUTS, FINE_CUTS = 128, 256
"""Cuts of a linear order while the order of devices is open, and while it is fixed."""
SLOWEST_LIMITS = 14
"""Limits on the slowest device."""
LINK_GUESSES = 8
"""Guesses of the slowest link, if links are compressed relative to it."""
DENSE = np.array([np.inf])
"""Guess of the slowest link's time that compresses nothing."""
NEAR_LIMITS = np.array([0.6, 0.8, 0.9, 0.96, 1.0, 1.15])
"""Limits relative to the slowest device of a placement that is cut anew."""
POOL_SIZE = 6
"""Size of the pool."""
PERTURBED, DENSE_PERTURBED, MIN_PERTURBATIONS, MAX_PERTURBATIONS = 20_000, 60_000, 6, 60
"""Perturbed copies: operators times devices in total, more if no link is compressed, but within these limits."""
ANNEALED = 2
"""Placements that are annealed, and as many random ones if there are fewer than SMALL pairs."""
SMALL = 500
"""Operators times devices."""
ANNEALING_STEPS, LARGE_ANNEALING_STEPS, LARGE = 3000, 1000, 2500
"""Annealing steps with fewer and with more operators times devices than LARGE."""
MAX_TURNS = 6
"""Rounds of all steps while they help."""
PROVEN_GAP = 1e-4
"""Relative gap below which a plan is not improved."""
MAX_STEPS = 40_000_000
"""Limit of cuts times device pairs times trials per dynamic program; fewer trials are made to keep it."""


def plan(instance: Instance, seed: int, deadline: Deadline = NO_DEADLINE) -> tuple[Placement, float]:
    """Return the fastest placement found and a lower bound in seconds; Infeasible if none was found that fits.

    deadline: with a limit the search continues until then.
    """
    missing = infeasibility_reason(instance)
    if missing is not None:
        raise Infeasible(missing)
    if is_tiny(instance):
        placement = best_placement(instance)
        if placement is None:
            raise Infeasible(packing_failure(instance, True))
        return placement, instance.cost_s(placement)
    search = _Search(instance, seed, deadline)
    search.start()
    perturbed = PERTURBED if instance.codec.ratio else DENSE_PERTURBED
    perturbations = min(max(perturbed // (instance.operators * instance.devices), MIN_PERTURBATIONS), MAX_PERTURBATIONS)
    steps = [search.improve, search.anneal, *[search.perturb] * perturbations]
    while steps and not search.proven and not deadline.expired:
        steps.pop(0)()
        if deadline.limited:
            steps = steps or [search.perturb]
    return search.pool.placements[0], search.bound_s


class _Search:
    def __init__(self, instance: Instance, seed: int, deadline: Deadline) -> None:
        self.instance, self.seed, self.random = instance, seed, Random(seed)
        self.deadline = deadline
        self.pool = PlacementPool(instance, POOL_SIZE)
        self.lines = linear_orders(instance)
        self.bound_s = 0.0
        self._done: set[tuple[str, bytes]] = set()

    def start(self) -> None:
        """Offer the other methods' placements, every device alone, and the best paths."""
        instance = self.instance
        if self.deadline.limited:  # a first placement before anything slow
            self._offer_simple()
        unpackable: Infeasible | None = None
        if not self.ended:
            try:
                self.pool.offer(opfence.clustered_placement(instance, self.seed, self.deadline))
            except Infeasible as error:  # proven infeasible, or not found
                unpackable = error
        self._offer_simple()
        for line in self.lines:
            self._offer_paths(line.coarse(CUTS))
        if unpackable is not None and not self.pool.placements:
            raise unpackable
        self.bound_s = lower_bound_s(instance, self.pool.best_s, self.deadline)

    def _offer_simple(self) -> None:
        """Offer the baselines' placements, and every device alone."""
        instance = self.instance
        for baseline in (equal_modules, equal_compute):
            self.pool.offer(baseline(instance, self.seed))
        for device in range(instance.devices):
            if self.ended:
                return
            self.pool.offer(np.full(instance.operators, device, np.int64))

    @property
    def ended(self) -> bool:
        """True if time is over and there is a placement."""
        return self.deadline.expired and bool(self.pool.placements)

    @property
    def proven(self) -> bool:
        """True if the best placement is within PROVEN_GAP of the bound."""
        return self.pool.best_s <= self.bound_s * (1 + PROVEN_GAP)

    def improve(self) -> None:
        """Improve every placement of the pool, the fastest first."""
        for placement in self.pool.placements:
            if self.deadline.expired:
                return
            self.pool.offer(self._improved(placement))

    def perturb(self) -> None:
        """Improve a perturbed copy of a placement."""
        placements = self.pool.placements
        placement = placements[min(int(self.random.expovariate(1.0)), len(placements) - 1)]
        self.pool.offer(self._improved(self._perturbed(placement)))

    def anneal(self) -> None:
        """Anneal the fastest placements; for small problems also random ones, whether they fit or not."""
        instance, starts = self.instance, self.pool.placements[:ANNEALED]
        pairs = instance.operators * instance.devices
        if pairs < SMALL:
            drawn = [[self.random.randrange(instance.devices) for _ in instance.order] for _ in range(ANNEALED)]
            starts = [*starts, *(np.array(placement, np.int64) for placement in drawn)]
        steps = ANNEALING_STEPS if pairs < LARGE else LARGE_ANNEALING_STEPS
        for placement in starts:
            found = anneal(instance, placement, self.random, steps, self.deadline)
            if found is not None:
                self.pool.offer(self._improved(found))

    def _offer_paths(self, line: LinearOrder) -> None:
        """Offer the best paths for all limits, then for limits near those of the best placement."""
        instance = self.instance
        program = PathProgram(instance, line, deadline=self.deadline)
        low = instance.flops.sum() / instance.speed.sum()
        high = max(self._known_cost_s() / instance.micro_batches, low)
        before_s = self.pool.best_s
        for links in (DENSE, self._link_guesses(high)) if instance.codec.ratio else (DENSE,):
            self._offer_trials(program, geometric_grid(low, high, SLOWEST_LIMITS), links)
        if self.pool.best_s < before_s:
            slowest_s, link_s = self._slowest(self.pool.placements[0])
            near = slowest_s * np.linspace(0.8, 1.05, SLOWEST_LIMITS)
            self._offer_trials(program, near, DENSE)
            if instance.codec.ratio:
                self._offer_trials(program, near, link_s * np.array([0.5, 0.7, 0.85, 1.0]))

    def _known_cost_s(self) -> float:
        """Return the time of some placement, even if it does not fit."""
        best_s = self.pool.best_s
        return best_s if np.isfinite(best_s) else self.instance.cost_s(equal_modules(self.instance, self.seed))

    def _offer_trials(self, program: PathProgram, slowest_s: Floats, links: Floats) -> None:
        """Offer the paths for every limit with every guess of the slowest link, or an even selection of them."""
        most = MAX_STEPS / (program.line.cuts * self.instance.devices**2)
        part = min(1.0, float(np.sqrt(most / (len(slowest_s) * len(links))))) / np.sqrt(len(self.lines))
        slowest_s, links = _evenly_spaced(slowest_s, part), _evenly_spaced(links, part)
        every = np.repeat(slowest_s, len(links))
        for trial in program.paths(TrialLimits(every, every, np.tile(links, len(slowest_s)))):
            self.pool.offer(program.line.to_placement(*trial))

    def _link_guesses(self, high: float) -> Floats:
        """Return guesses of the slowest link's dense time if no device receives for longer than `high`."""
        instance = self.instance
        off = ~np.eye(instance.devices, dtype=bool)
        sizes = instance.output_bytes[instance.output_bytes > 0]
        quick = float((instance.alpha + instance.beta * sizes.min(initial=0.0))[off].min())
        slow = float((instance.alpha + instance.beta * sizes.max(initial=0.0))[off].max())
        return geometric_grid(quick, max(quick, min(slow, high / instance.codec.min_wire_share)), LINK_GUESSES)

    def _slowest(self, placement: Placement) -> tuple[float, float]:
        """Return the time of the busiest device and the dense time of the slowest link."""
        instance = self.instance
        compute_s, receive_s = instance.busy_s(placement)
        link_s = float(instance.dense_s(instance.traffic(placement)).max(initial=0.0))
        return max(float(compute_s.max()), float(receive_s.max())), link_s

    def _improved(self, placement: Placement) -> Placement:
        """Apply cuts, exchanges, moves and merges in turns until none helps."""
        instance = self.instance
        best, best_s = placement, instance.cost_s(placement) if instance.fits(placement) else np.inf
        for _ in range(MAX_TURNS):
            before_s = best_s
            for step in (self._cut, self._exchange, self._move, self._merge):
                if self.deadline.expired:
                    return best
                key = step.__name__, best.tobytes()
                if key in self._done:
                    continue
                self._done.add(key)
                found = step(best)
                cost_s = instance.cost_s(found)
                if cost_s < best_s * (1 - MIN_GAIN) and instance.fits(found):
                    best, best_s = found, cost_s
            if not best_s < before_s:
                break
        return best

    def _exchange(self, placement: Placement) -> Placement:
        return exchange_devices(self.instance, placement, deadline=self.deadline)

    def _move(self, placement: Placement) -> Placement:
        return chain_moves(self.instance, placement, deadline=self.deadline)

    def _cut(self, placement: Placement) -> Placement:
        """Return the fastest cuts for the placement's order of devices, some of which may be left out."""
        instance = self.instance
        slowest_s, link_s = self._slowest(placement)
        limits = slowest_s * NEAR_LIMITS
        links = link_s * np.array([0.7, 1.0, 1.5, np.inf]) if instance.codec.ratio and link_s else DENSE
        tried = TrialLimits(np.repeat(limits, len(links)), np.repeat(limits, len(links)), np.tile(links, len(limits)))
        device_order = devices_in_order(instance, placement).tolist()
        found = PlacementPool(instance, 1)
        found.offer(placement)
        for line in self.lines:
            fine = line.coarse(FINE_CUTS)
            for trial in best_cuts(instance, fine, device_order, tried, use_all=False, deadline=self.deadline):
                found.offer(fine.to_placement(*trial))
        return found.placements[0] if found.placements else placement

    def _merge(self, placement: Placement) -> Placement:
        """Move all operators of one device to another that it exchanges data with, if that is faster."""
        instance = self.instance
        traffic = instance.traffic(placement)
        found = PlacementPool(instance, 1)
        for one, other in zip(traffic.sender.tolist(), traffic.receiver.tolist(), strict=True):
            if self.deadline.expired:
                break
            for away, to in ((one, other), (other, one)):
                found.offer(np.where(placement == away, to, placement))
        return found.placements[0] if found.placements else placement

    def _perturbed(self, placement: Placement) -> Placement:
        """Return a copy with a few runs on other devices."""
        found = placement.copy()
        for _ in range(self.random.randint(1, 3)):
            used = np.unique(found).tolist()
            away, to = self.random.choice(used), self.random.randrange(self.instance.devices)
            one, other = found == away, found == to
            if self.random.random() < 0.5:
                found[one], found[other] = to, away
            else:
                mine = [operator for operator in self.instance.order if found[operator] == away]
                at = self.random.randint(0, len(mine))
                found[mine[at:] if self.random.random() < 0.5 else mine[:at]] = to
        return found if self.instance.fits(found) else placement


def _evenly_spaced(values: Floats, part: float) -> Floats:
    """Return an evenly spaced share of the values, at least one."""
    count = max(1, int(len(values) * part))
    found: Floats = values[np.linspace(0, len(values) - 1, count).astype(np.int64)]
    return found


class PlacementPool:
    """The fastest distinct placements that fit their memories, at most `most`, in order."""

    def __init__(self, instance: Instance, most: int = 8) -> None:
        self._instance, self._size = instance, most
        self._ranked: list[tuple[float, bytes, Placement]] = []
        self._seen: set[bytes] = set()

    def offer(self, placement: Placement) -> bool:
        """Add a placement; return True if it is the fastest so far."""
        key = placement.tobytes()
        if key in self._seen:
            return False
        self._seen.add(key)
        cost_s = self._instance.cost_s(placement)
        if len(self._ranked) == self._size and cost_s >= self._ranked[-1][0]:
            return False
        if not self._instance.fits(placement):
            return False
        self._ranked = sorted([*self._ranked, (cost_s, key, placement)], key=lambda kept: kept[:2])[: self._size]
        return self._ranked[0][1] == key

    @property
    def placements(self) -> list[Placement]:
        """Placements, the fastest first."""
        return [placement for _, _, placement in self._ranked]

    @property
    def best_s(self) -> float:
        """Time of the fastest; infinite if the pool is empty."""
        return self._ranked[0][0] if self._ranked else float("inf")
