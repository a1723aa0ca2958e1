"""OP-Fence (Tang et al., FusionLLM, 2024, section 4): fast clusters, a connected part of the graph for each.

Louvain communities of the bandwidth graph become clusters; each takes one stretch of the graph, so that slow links are
crossed once between two of them; inside, operators are dealt out by compute within the memories (eq. (6)). The paper
leaves open in which order clusters come, and how evenly compute is balanced where an even cut would cross large
outputs: a few orders, and several limits on the busiest device, are tried, and the fastest by eq. (3) is kept. Every
device takes part that can hold an operator.

The fence is no end in itself: where one of the paper's baselines (section 7.2) fits the memories and is faster than
the fastest plan that keeps the fence, its plan is returned, so that this method is never above them.
"""

import numpy as np

from fleetune.errors import Infeasible
from fleetune.solving.opfence.case import Case, Ints, Place
from fleetune.solving.opfence.communities import communities
from fleetune.solving.opfence.cuts import cut
from fleetune.solving.opfence.fence import disconnected, joined
from fleetune.solving.opfence.graph import depth_first
from fleetune.solving.opfence.line import Line, line_of
from fleetune.solving.opfence.methods import equal_compute, equal_modules
from fleetune.solving.opfence.packing import dealt_out, packed
from fleetune.solving.opfence.quotient import exchanged
from fleetune.solving.opfence.sequence import hop_s, sequences
from fleetune.solving.opfence.shortage import shortage, unpacked
from fleetune.solving.opfence.walk import Limits, spread
from fleetune.solving.opfence.watch import ENDLESS, Watch

ROWS = 6
"""Orders of clusters that are tried."""
EVENNESS = 12
"""Limits on the busiest device, from even to twice the fastest device alone."""
CUTS = 160
BASELINES = (equal_modules, equal_compute)
KEPT = 4
"""Placements whose devices are exchanged inside their clusters."""


def plan(case: Case, seed: int, watch: Watch = ENDLESS) -> Place:
    """The fastest placement that the fence allows, or a baseline's that fits and is faster; Infeasible where none fits
    the memories."""
    options = [fenced(case, seed, watch), *(baseline.plan(case, seed) for baseline in BASELINES)]
    return min(filter(case.fits, options), key=case.cost_s)


def fenced(case: Case, seed: int, watch: Watch = ENDLESS) -> Place:
    """The fastest placement of those with the fewest clusters torn; Infeasible where none fits the memories."""
    missing = shortage(case)
    if missing is not None:
        raise Infeasible(missing)
    clusters = communities(case, seed)
    fence = np.empty(case.devices, np.int64)
    for number, cluster in enumerate(clusters):
        fence[cluster] = number
    found = _Fenced(case, fence, watch)
    for baseline in BASELINES:  # its cuts may keep the fence as they are, or once mended
        found.offer(baseline.plan(case, seed))
    if watch.limited and not found.ranked:
        first = dealt_out(case)
        if first is not None:
            found.offer(first)
    _offer_rows(case, found, clusters)
    for place in found.best(KEPT):
        found.offer(exchanged(case, place, fence, watch))
    if not found.ranked:
        fitting, proven = packed(case, watch.looking(1.0))
        if fitting is None:
            raise Infeasible(unpacked(case, proven, watch.limited))
        found.offer(fitting)
    return found.best(1)[0]


def _offer_rows(case: Case, found: "_Fenced", clusters: list[list[int]]) -> None:
    """Offer what several rows of devices find over several lines of the graph."""
    for line in _lines(case):
        for row in sequences(hop_s(case, line), clusters, ROWS, found.watch):
            if found.watch.over:
                return
            for place in _dealt(case, line, row, found.watch):
                found.offer(place)


class _Fenced:
    """Placements that fit: those with the fewest torn clusters first, then the fastest."""

    def __init__(self, case: Case, fence: Ints, watch: Watch) -> None:
        self._case, self._fence = case, fence
        self._watch, self._looking = watch, watch.looking(0.5)  # the rest is left to a packing
        self.ranked: dict[bytes, tuple[int, float, Place]] = {}

    @property
    def watch(self) -> Watch:
        """Of what is done next: while nothing is found there is some time, however short the limit."""
        return self._watch if self.ranked else self._looking

    def offer(self, place: Place) -> None:
        """As it is, and with torn clusters mended."""
        for option in (place, joined(self._case, place, self._fence, self._watch)):
            if option.tobytes() not in self.ranked and self._case.fits(option):
                torn = disconnected(self._case, option, self._fence)
                self.ranked[option.tobytes()] = torn, self._case.cost_s(option), option

    def best(self, most: int) -> list[Place]:
        """The first of them."""
        ranked = sorted(self.ranked.items(), key=lambda item: (item[1][:2], item[0]))
        return [place for _, (_, _, place) in ranked[:most]]


def _lines(case: Case) -> list[Line]:
    """The orders as listed and depth first, once where they agree."""
    orders = [case.order, depth_first(case.parents)]
    return [line_of(case, order, case.operators) for order in (orders if orders[0] != orders[1] else orders[:1])]


def _dealt(case: Case, line: Line, row: list[int], watch: Watch) -> list[Place]:
    """Runs of the line for the devices of a row: as even as each limit says, and as the paper's baselines cut."""
    able = [device for device in row if case.memory_bytes.min() <= case.budget_bytes[device]]
    while len(able) > line.cuts:
        able.remove(min(able, key=lambda device: case.speed[device]))
    coarse = line.coarse(max(CUTS, 3 * len(able)))
    for every in (True, False):
        for cuts in (coarse, line):
            found = _within(case, cuts, able, every, watch)
            if found:
                return found + _baselines(line, able)
    return []


def _within(case: Case, line: Line, row: list[int], every: bool, watch: Watch) -> list[Place]:
    """The least traffic under each limit on the busiest device."""
    speed, flops = case.speed[row], line.flops[-1]
    busiest = np.append(spread(flops / speed.sum(), 2 * flops / speed.min(), EVENNESS - 1), np.inf)
    slowest = [np.inf]
    if case.codec.ratio and len(row) > 1:
        slowest.append(float(hop_s(case, line)[row[:-1], row[1:]].max()))
    limits = Limits(
        np.tile(busiest, len(slowest)), np.full(len(slowest) * EVENNESS, np.inf), np.repeat(slowest, EVENNESS)
    )
    return [line.place(*trial) for trial in cut(case, line, row, limits, every=every, watch=watch)]


def _baselines(line: Line, row: list[int]) -> list[Place]:
    """Equally many operators, equally many flops."""
    cuts, flops = np.arange(line.cuts + 1), line.flops
    found = []
    for before in (cuts.astype(np.float64), flops):
        shares = before[-1] * np.arange(1, len(row) + 1) / len(row)
        ends = np.clip(np.searchsorted(before, shares), 1, line.cuts)
        ends[-1] = line.cuts
        found.append(line.place(row, ends.tolist()))
    return found
