"""Compression of a plan's links: a codec and ratio for each link by the forecast, or adaptive top-k.

A codec of a link is allowed if what it loses of a message is within a bound. Among the allowed ones, the assignment
with the shortest forecast round is taken, and of equally short ones the one that loses least: a link that is fast
enough stays dense. The forecast charges encoding to the sender's processor and decoding to the receiver's.

With adaptive top-k, slower links send fewer elements (FusionLLM eq. (7)); it can be applied to any plan.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import NormalDist
from typing import NamedTuple, Protocol

import numpy as np

from fleetune.clock import Clock
from fleetune.clock.coding import dense
from fleetune.contracts.link_codecs import (
    BF16,
    CODECS,
    DENSE,
    ELEMENT_BYTES,
    FORWARD_MASK,
    FP16,
    INT4,
    INT4_HADAMARD,
    INT8,
    INT8_HADAMARD,
    SPARSE,
    TOP_K,
    bytes_per_kept_element,
    wire_bytes,
)
from fleetune.contracts.plan import BACKWARD, FORWARD, LinkUse, Plan
from fleetune.contracts.record import one_of, positive
from fleetune.errors import Refused
from fleetune.solving.opfence.instance import Codec


def check_ratio(owner: str, ratio: float | None) -> None:
    """Refuse ratios below 1; None means dense."""
    if ratio is not None:
        positive(owner, compression_ratio=ratio)
        if ratio < 1:
            raise Refused(f"{owner}: compression_ratio {ratio} is below 1; 100 sends about one of 100 bytes")


def kept_element_bytes(ratio: float, element_bytes: int = ELEMENT_BYTES) -> float:
    """Return c of eq. (7): bytes of a kept element on the slowest link, which keeps one in max(1, c/e · ratio) of e
    bytes each."""
    found = 0.0
    while (more := bytes_per_kept_element(TOP_K, max(1.0, found / element_bytes * ratio))) > found:
        found = more  # rises to the least fixed point: rarer elements need longer indices
    return found


def with_top_k(plan: Plan, clock: Clock, ratio: float | None, *, masked: bool = False) -> Plan:
    """The plan with top-k on every link between segments that becomes faster by it.

    `ratio` is the slowest link's, in bytes: r_i = max(1, c/e · ratio · R_i / max R), R_i a link's dense seconds per
    micro-batch, e the bytes of an element and c those of a kept one, 2.1 to 4 here (12 in the paper). None: dense.
    masked: gradients come back at what the forward kept, so that no index crosses.
    """
    if ratio is None:
        return plan
    dense_s, dense_bytes = _link_loads(plan, clock)
    if not dense_s:
        return plan
    size = clock.profile.element_bytes
    codec = Codec(ratio, kept_element_bytes(ratio, size), size)
    ratios = codec.ratios(np.array(list(dense_s.values())), max(dense_s.values()))
    uses = {(use.source, use.target): use for use in plan.links}
    thinned = {
        (source, target): replace(
            uses.get((source, target)) or LinkUse(source=source, target=target), codec=TOP_K, ratio=found
        )
        for (source, target), found in zip(dense_s, ratios.tolist(), strict=True)
        if found > 1
    }
    thin_s, thin_bytes = _link_loads(replace(plan, links=tuple({**uses, **thinned}.values())), clock)
    uses |= {
        pair: use
        for pair, use in thinned.items()
        if thin_bytes[pair] < dense_bytes[pair] and thin_s[pair] < dense_s[pair]
    }
    if masked:
        uses |= _masks(plan, clock, uses)
    return _faster(replace(plan, links=tuple(uses.values())), clock) if uses else plan


def _faster(plan: Plan, clock: Clock) -> Plan:
    """Return the plan in which a link is dense if by its codec its messages would take no less time, all coding
    included."""
    dense_s, _ = _link_loads(replace(plan, links=tuple(map(dense, plan.links))), clock)
    while True:
        coded_s, _ = _link_loads(plan, clock)
        slower = (use for use in plan.links if use.codec != DENSE and not _saves(use, coded_s, dense_s))
        if (use := next(slower, None)) is None:
            return plan
        plan = _with_dense(plan, use)


def _saves(use: LinkUse, coded_s: Mapping[tuple[str, str], float], dense_s: Mapping[tuple[str, str], float]) -> bool:
    pair = (use.source, use.target)
    return pair in coded_s and coded_s[pair] < dense_s[pair]


def _masks(plan: Plan, clock: Clock, uses: Mapping[tuple[str, str], LinkUse]) -> dict[tuple[str, str], LinkUse]:
    """Links whose gradients answer values in top-k, with its mask."""
    answered = {(t.source, t.target) for t in clock.lower(plan).transfers if t.action.letter == FORWARD}
    found = {}
    for (source, target), use in uses.items():
        if use.codec == TOP_K and (source, target) in answered:
            own = uses.get((target, source)) or LinkUse(source=target, target=source)
            found[target, source] = replace(own, codec=FORWARD_MASK, ratio=use.ratio)
    return found


def _link_loads(plan: Plan, clock: Clock) -> tuple[Mapping[tuple[str, str], float], Mapping[tuple[str, str], int]]:
    """Seconds, coding included, and bytes per micro-batch, forward and backward, of every link that carries any."""
    shares = {(use.source, use.target): use.share for use in plan.links}
    seconds: dict[tuple[str, str], float] = {}
    sizes: dict[tuple[str, str], int] = {}
    for transfer in clock.lower(plan).transfers:
        if transfer.action.micro_batch == 0 and transfer.action.letter in (FORWARD, BACKWARD):
            pair = (transfer.source, transfer.target)
            link = clock.fleet.link(*pair)
            sending_s = transfer.bytes / (link.bytes_per_s * shares.get(pair, 1.0))
            seconds[pair] = seconds.get(pair, 0.0) + link.latency_s + sending_s + transfer.coding_s
            sizes[pair] = sizes.get(pair, 0) + transfer.bytes
    place = {device: number for number, device in enumerate(plan.devices)}
    ordered = sorted(seconds, key=lambda pair: (min(place[pair[0]], place[pair[1]]), place[pair[0]], place[pair[1]]))
    return {pair: seconds[pair] for pair in ordered}, sizes


AUTO = "auto"
COMPRESSIONS = (AUTO, *(codec for codec in CODECS if codec != DENSE))
"""Allowed values of a strategy's option `compression`; with forward-mask only gradients have it, values have top-k."""
DEFAULT_LOSS = 0.02
LOSSES = {FP16: 0.0003, BF16: 0.002, INT8: 0.013, INT8_HADAMARD: 0.007, INT4: 0.22, INT4_HADAMARD: 0.12}
"""codec -> loss: the L2 norm of what decoding changes, relative to that of the message. The larger of two, rounded up:
on Gaussian data, and on an activation of MiniLM-L6 whose largest element is 17 times its root mean square
(`benchmarks.codecs`)."""
RATIOS = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 100.0, 200.0, 500.0, 1000.0)
"""Ratios of top-k, of which the largest within the bound is allowed if it sends less than all other allowed codecs."""
EXACT = 1500
"""Most assignments that are all simulated; with more, a local search changes one link at a time."""
SWEEPS = 8
"""Most times that the local search looks at every link."""


class Choice(NamedTuple):
    """A codec of a link."""

    codec: str
    ratio: float
    loss: float


class Link(NamedTuple):
    """A directed link that carries values or gradients."""

    source: str
    target: str


class CompressionOptions(Protocol):
    """The options of a strategy that compresses links."""

    @property
    def compression(self) -> str | None:
        """One of COMPRESSIONS; None: dense, or top-k where there is a ratio."""

    @property
    def compression_ratio(self) -> float | None:
        """Ratio of the slowest link with top-k."""

    @property
    def compression_loss(self) -> float | None:
        """Bound on the loss of every message with auto; None: DEFAULT_LOSS."""

    @property
    def compression_feedback(self) -> bool:
        """Whether what a message loses is added to the next one."""


NONE = Choice(DENSE, 1.0, 0.0)


def top_k_loss(ratio: float) -> float:
    """Return the loss of top-k on Gaussian data, where one of `ratio` elements is kept.

    With t the magnitude that a share p = 1 / ratio exceeds, the kept elements have p + 2 t φ(t) of the energy. Data
    with outliers lose less. Rounding the kept elements to bfloat16 adds nothing that counts.
    """
    kept, normal = 1.0 / ratio, NormalDist()
    if kept >= 1.0:
        return 0.0
    bound = -normal.inv_cdf(kept / 2)
    return math.sqrt(max(0.0, 1.0 - kept - 2 * bound * normal.pdf(bound)))


def check_compression(owner: str, options: CompressionOptions) -> None:
    """Refuse an unknown compression, a bound that is not in (0, 1), and options that contradict each other."""
    compression, ratio, loss = options.compression, options.compression_ratio, options.compression_loss
    if options.compression_feedback and compression is None and ratio is None:
        raise Refused(f"{owner}: compression_feedback needs compression or compression_ratio; give one of them")
    if compression is not None:
        one_of(owner, "compression", compression, COMPRESSIONS)
    if compression not in (None, *SPARSE) and ratio is not None:
        raise Refused(
            f"{owner}: compression_ratio belongs to compression {' and '.join(SPARSE)}, not to {compression}; "
            "leave out one"
        )
    if compression in SPARSE and ratio is None:
        raise Refused(f"{owner}: compression {compression} needs a compression_ratio; 100 sends about one of 100 bytes")
    if loss is not None:
        positive(owner, compression_loss=loss)
        if loss >= 1:
            raise Refused(f"{owner}: compression_loss {loss} is not below 1; {DEFAULT_LOSS} loses 2 % of a message")
        if compression != AUTO:
            raise Refused(f"{owner}: compression_loss bounds what compression auto may lose; set compression=auto")


def compressed(plan: Plan, clock: Clock, options: CompressionOptions) -> Plan:
    """Return the plan with the codecs that the options ask for, where these shorten the round."""
    if options.compression in (None, *SPARSE):
        thin = with_top_k(plan, clock, options.compression_ratio, masked=options.compression == FORWARD_MASK)
        if options.compression_feedback:
            coded = tuple(replace(use, feedback=use.codec != DENSE) for use in thin.links)
            thin = _faster(replace(thin, links=coded), clock)
        return _fitting(thin, clock)
    allowed = choices(options.compression, options.compression_loss)
    return with_codecs(plan, clock, allowed, feedback=options.compression_feedback)


def _fitting(plan: Plan, clock: Clock) -> Plan:
    """Return the plan in which links are dense whose devices lack memory for what messages lose, or for a forward's
    mask; those first that lengthen the round least."""
    while any(missing := _missing_bytes(plan, clock)):
        device = plan.devices[missing.index(max(missing))]
        fewer = [_with_dense(plan, use) for use in plan.links if _takes_memory(use, device)]
        if not fewer:
            return plan
        plan = min(fewer, key=clock.round_s)
    return plan


def _takes_memory(use: LinkUse, device: str) -> bool:
    masked = use.codec == FORWARD_MASK and device in (use.source, use.target)
    return masked or (use.feedback and use.source == device)


def _with_dense(plan: Plan, use: LinkUse) -> Plan:
    """Return the plan in which this link has no codec, and neither have the gradients that it has the mask for."""
    changed = {(use.source, use.target)}
    if any(each.codec == FORWARD_MASK and (each.target, each.source) in changed for each in plan.links):
        changed.add((use.target, use.source))
    uses = (dense(each) if (each.source, each.target) in changed else each for each in plan.links)
    return replace(plan, links=tuple(each for each in uses if not each.is_neutral))


def _missing_bytes(plan: Plan, clock: Clock) -> list[int]:
    """Return the bytes that each device of the plan lacks, in their order; 0 where it fits."""
    return [max(0, clock.memory_bytes(plan, name) - clock.fleet.device(name).memory_bytes) for name in plan.devices]


def byte_shares(options: CompressionOptions) -> tuple[float, ...]:
    """Return shares of their bytes for which a strategy looks for a placement: all, and what strong codecs leave.

    Top-k has none of its own: a placement for kind "opfence" knows its ratio.
    """
    if options.compression in (None, *SPARSE):
        return (1.0,)
    least = byte_share(choices(options.compression, options.compression_loss))
    return (1.0, least) if least < 1 else (1.0,)


def choices(compression: str | None, loss: float | None) -> tuple[Choice, ...]:
    """Return what `compression` allows on a link besides dense: one codec, or with auto all within `loss`."""
    if compression is not None and compression != AUTO:
        return (Choice(compression, 1.0, LOSSES[compression]),)
    bound = DEFAULT_LOSS if loss is None else loss
    made = tuple(Choice(codec, 1.0, lost) for codec, lost in LOSSES.items() if lost <= bound)
    ratio = max((ratio for ratio in RATIOS if top_k_loss(ratio) <= bound), default=1.0)
    thinnest = Choice(TOP_K, ratio, top_k_loss(ratio))
    return (*made, thinnest) if ratio > 1 and byte_share([thinnest]) < byte_share(made) else made


def byte_share(allowed: Sequence[Choice]) -> float:
    """Return the least share of its bytes that a large message has in one of these codecs."""
    large = 1 << 20
    return min((wire_bytes(large, 1, one.codec, one.ratio) / large for one in allowed), default=1.0)


def with_codecs(plan: Plan, clock: Clock, allowed: Sequence[Choice], *, feedback: bool = False) -> Plan:
    """Return the plan with the assignment of codecs, with or without error feedback, that has the shortest round.

    An assignment for which a device lacks memory is no candidate.
    """
    found = _Assignments(plan, clock, feedback)
    options = (NONE, *allowed)
    if not found.links:
        return plan
    if len(options) ** len(found.links) <= EXACT:
        best = min(product(options, repeat=len(found.links)), key=found.cost)
    else:
        alone = tuple(found.fastest_alone(link, options) for link in found.links)
        starts = (alone, *((one,) * len(found.links) for one in options))
        best = min((found.improved(start, options) for start in starts[:3]), key=found.cost)
    return found.plan_with(found.milder(best))


class _Assignments:
    """Assignments of a choice to each link of one plan, in the order of `links`, and their costs."""

    def __init__(self, plan: Plan, clock: Clock, feedback: bool) -> None:
        self._plan, self._clock, self._feedback = plan, clock, feedback
        self._known: dict[tuple[Choice, ...], tuple[int, float, float]] = {}
        sent = clock.lower(plan).transfers
        self.links = tuple(
            dict.fromkeys(Link(t.source, t.target) for t in sent if t.action.letter in (FORWARD, BACKWARD) and t.bytes)
        )

    def plan_with(self, assigned: Sequence[Choice]) -> Plan:
        """Return the plan with these codecs; the very same plan if all stay dense."""
        uses = {(use.source, use.target): use for use in self._plan.links}
        for link, choice in zip(self.links, assigned, strict=True):
            if choice.codec != DENSE:
                use = uses.get(link) or LinkUse(source=link.source, target=link.target)
                uses[link] = replace(use, codec=choice.codec, ratio=choice.ratio, feedback=self._feedback)
        return (
            replace(self._plan, links=tuple(uses.values())) if any(c.codec != DENSE for c in assigned) else self._plan
        )

    def cost(self, assigned: tuple[Choice, ...]) -> tuple[int, float, float]:
        """Return (bytes that devices lack, seconds of the round, sum of the losses).

        Only error feedback takes memory, so that nothing is lacking where all links stay dense.
        """
        if assigned not in self._known:
            plan, lost = self.plan_with(assigned), sum(choice.loss for choice in assigned)
            missing = sum(_missing_bytes(plan, self._clock)) if self._feedback else 0
            self._known[assigned] = (missing, self._clock.round_s(plan), lost)
        return self._known[assigned]

    def fastest_alone(self, link: Link, options: Sequence[Choice]) -> Choice:
        """Return the choice with the least seconds of coding and sending one micro-batch on this link alone."""
        return min(options, key=lambda choice: (self._link_s(link, choice), choice.loss))

    def improved(self, start: tuple[Choice, ...], options: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return an assignment that no change of one link betters."""
        best = start
        for _ in range(SWEEPS):
            before = best
            for place in range(len(self.links)):
                changed = ((*best[:place], choice, *best[place + 1 :]) for choice in options)
                best = min((best, *changed), key=self.cost)
            if best == before:
                break
        return best

    def milder(self, assigned: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Return the assignment in which each link with top-k keeps as much as it can without a longer round."""
        best = assigned
        for place, choice in enumerate(assigned):
            for ratio in (r for r in RATIOS if choice.codec == TOP_K and r < choice.ratio):
                other = (*best[:place], Choice(TOP_K, ratio, top_k_loss(ratio)), *best[place + 1 :])
                if self.cost(other)[:2] <= self.cost(best)[:2]:
                    best = other
                    break
        return best

    def _link_s(self, link: Link, choice: Choice) -> float:
        one = self.plan_with(tuple(choice if other == link else NONE for other in self.links))
        rate = self._clock.fleet.link(*link).bytes_per_s
        return sum(
            transfer.bytes / rate + transfer.coding_s
            for transfer in self._clock.lower(one).transfers
            if (transfer.source, transfer.target) == link and transfer.action.micro_batch == 0
        )
