"""Adaptive top-k compression of the links of any plan: slower links send fewer elements (FusionLLM eq. (7))."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fleetune.clock import Clock
from fleetune.contracts.link_codecs import ELEMENT_BYTES, TOP_K, bytes_per_kept_element
from fleetune.contracts.plan import BACKWARD, FORWARD, LinkUse, Plan
from fleetune.contracts.record import positive
from fleetune.errors import Refused
from fleetune.solving.opfence.compression import Codec


def check_ratio(owner: str, ratio: float | None) -> None:
    """Refuse ratios below 1; None means dense."""
    if ratio is not None:
        positive(owner, compression_ratio=ratio)
        if ratio < 1:
            raise Refused(f"{owner}: compression_ratio {ratio} is below 1; 100 sends about one of 100 bytes")


def kept_element_bytes(ratio: float) -> float:
    """Return c of eq. (7): bytes of a kept element on the slowest link, which keeps one in max(1, c/4 · ratio)."""
    found = 0.0
    while (more := bytes_per_kept_element(TOP_K, max(1.0, found / ELEMENT_BYTES * ratio))) > found:
        found = more  # rises to the least fixed point: rarer elements need longer indices
    return found


def with_top_k(plan: Plan, clock: Clock, ratio: float | None) -> Plan:
    """The plan with top-k on every link between segments that becomes faster by it.

    `ratio` is the slowest link's, in bytes: r_i = max(1, c/4 · ratio · R_i / max R), R_i a link's dense seconds per
    micro-batch and c the bytes of a kept element, 2.1 to 4 here (12 in the paper). None: dense.
    """
    if ratio is None:
        return plan
    dense_s, dense_bytes = _link_loads(plan, clock)
    if not dense_s:
        return plan
    codec = Codec(ratio, kept_element_bytes(ratio), ELEMENT_BYTES)
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
    return replace(plan, links=tuple(uses.values())) if uses else plan


def _link_loads(plan: Plan, clock: Clock) -> tuple[Mapping[tuple[str, str], float], Mapping[tuple[str, str], int]]:
    """Seconds, coding included, and bytes per micro-batch, forward and backward, of every link that carries any."""
    shares = {(use.source, use.target): use.share for use in plan.links}
    seconds: dict[tuple[str, str], float] = {}
    sizes: dict[tuple[str, str], int] = {}
    for transfer in clock.lower(plan).transfers:
        if transfer.micro_batch == 0 and transfer.letter in (FORWARD, BACKWARD):
            pair = (transfer.source, transfer.target)
            link = clock.fleet.link(*pair)
            sending_s = transfer.bytes / (link.bytes_per_s * shares.get(pair, 1.0))
            seconds[pair] = seconds.get(pair, 0.0) + link.latency_s + sending_s + transfer.coding_s
            sizes[pair] = sizes.get(pair, 0) + transfer.bytes
    place = {device: number for number, device in enumerate(plan.devices)}
    ordered = sorted(seconds, key=lambda pair: (min(place[pair[0]], place[pair[1]]), place[pair[0]], place[pair[1]]))
    return {pair: seconds[pair] for pair in ordered}, sizes
