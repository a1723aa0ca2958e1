"""Adaptive top-k compression of the links of any plan: slower links send fewer elements (FusionLLM eq. (7))."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fleetune.clock import Clock
from fleetune.contracts.plan import (
    BACKWARD,
    BYTES_PER_KEPT_ELEMENT,
    ELEMENT_BYTES,
    FORWARD,
    TOP_K,
    LinkUse,
    Plan,
    wire_bytes,
)
from fleetune.contracts.record import positive
from fleetune.errors import Refused
from fleetune.solving.opfence.compression import Codec


def check_ratio(owner: str, ratio: float | None) -> None:
    """Refuse ratios below 1; None means dense."""
    if ratio is not None:
        positive(owner, compression_ratio=ratio)
        if ratio < 1:
            raise Refused(f"{owner}: compression_ratio {ratio} is below 1; 100 sends about one of 100 bytes")


def with_top_k(plan: Plan, clock: Clock, ratio: float | None) -> Plan:
    """The plan with top-k on every link between segments that becomes faster by it.

    `ratio` is the slowest link's, before the cost of a kept element's index (8 bytes for 4 here, 12 in the paper):
    r_i = max(1, c/4 · ratio · R_i / max R), R_i a link's dense seconds per micro-batch. None: dense.
    """
    if ratio is None:
        return plan
    dense_s, dense_bytes = _link_loads(plan, clock)
    if not dense_s:
        return plan
    codec = Codec(ratio, BYTES_PER_KEPT_ELEMENT[TOP_K], ELEMENT_BYTES)
    ratios = codec.ratios(np.array(list(dense_s.values())), max(dense_s.values()))
    uses = {(use.source, use.target): use for use in plan.links}
    for (source, target), found in zip(dense_s, ratios.tolist(), strict=True):
        if found > 1 and wire_bytes(dense_bytes[source, target], TOP_K, found) < dense_bytes[source, target]:
            use = uses.get((source, target)) or LinkUse(source=source, target=target)
            uses[source, target] = replace(use, codec=TOP_K, ratio=found)
    return replace(plan, links=tuple(uses.values())) if uses else plan


def _link_loads(plan: Plan, clock: Clock) -> tuple[Mapping[tuple[str, str], float], Mapping[tuple[str, str], int]]:
    """Dense seconds and bytes per micro-batch, forward and backward, of every directed link that carries any."""
    shares = {(use.source, use.target): use.share for use in plan.links}
    seconds: dict[tuple[str, str], float] = {}
    sizes: dict[tuple[str, str], int] = {}
    for transfer in clock.lower(plan).transfers:
        if transfer.micro_batch == 0 and transfer.letter in (FORWARD, BACKWARD):
            pair = (transfer.source, transfer.target)
            link = clock.fleet.link(*pair)
            sending_s = transfer.bytes / (link.bytes_per_s * shares.get(pair, 1.0))
            seconds[pair] = seconds.get(pair, 0.0) + link.latency_s + sending_s
            sizes[pair] = sizes.get(pair, 0) + transfer.bytes
    return seconds, sizes
