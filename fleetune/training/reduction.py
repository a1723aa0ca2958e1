"""Adds up gradients: inside a group by a ring all-reduce, and across segments that hold the same weights."""

from collections.abc import Sequence

import torch

from fleetune.contracts.plan import Lane
from fleetune.training.exchange import Exchange, Key


def ring_all_reduce(exchange: Exchange, group: Sequence[str], me: str, segment: int, flat: torch.Tensor) -> float:
    """Sum `flat` over the group in place; every member ends with the same bits.

    Ring all-reduce: 2(|G|-1) steps of |flat|/|G| elements each. Returns when the neighbour had begun (seconds of the
    coordinator's clock), so that waiting for a slow member is not taken for the ring's own time.
    """
    size, place = len(group), group.index(me)
    following, previous = group[(place + 1) % size], group[place - 1]
    chunks = list(flat.tensor_split(size))
    began_s = 0.0
    for step in range(2 * (size - 1)):
        gathering = step >= size - 1
        out = (place - step) % size
        into = (out - 1) % size
        # No copy: a chunk is overwritten only by its total, which holds what the neighbour made of this very message.
        exchange.send(following, Key("ring", exchange.round, segment, step, me), {0: chunks[out]})
        arrival = exchange.receive(Key("ring", exchange.round, segment, step, previous))
        began_s = began_s or arrival.sent_s
        if gathering:
            chunks[into].copy_(arrival.tensors[0])
        else:
            chunks[into].add_(arrival.tensors[0])
    return began_s


def sum_tied(
    exchange: Exchange, lane: Lane, me: str, holders: dict[str, tuple[int, ...]], grads: dict[str, torch.Tensor]
) -> None:
    """Add the gradients that other segments have for the weights they share with this one.

    holders: of the whole lane, for messages are numbered by it: parameter -> the segments that hold it, ascending;
    grads: this segment's (already summed over its group); none for a parameter that no loss reaches here. One that no
    holder's loss reaches stays without.
    Every holder adds in the order of segments, so all of them end with the same bits. Sums take the places of their
    terms in `grads`; the terms stay as they are, for the ring may still be sending from their memory.
    """
    own = next(index for index, segment in enumerate(lane.segments) if me in segment.devices)
    place = lane.segments[own].devices.index(me)
    for number, (name, segments) in enumerate(sorted(holders.items())):
        if own not in segments:
            continue
        mine = {0: grads[name]} if name in grads else {}
        for other in (s for s in segments if s != own):
            members = lane.segments[other].devices
            for target in (m for i, m in enumerate(members) if i % len(lane.segments[own].devices) == place):
                exchange.send(target, Key("tied", exchange.round, own, number, me), mine)
        terms: list[torch.Tensor] = []
        for index in segments:
            if index == own:
                terms += mine.values()
            else:
                members = lane.segments[index].devices
                sender = members[place % len(members)]
                terms += exchange.receive(Key("tied", exchange.round, index, number, sender)).tensors.values()
        if terms:
            total = torch.zeros_like(terms[0])
            for term in terms:
                total.add_(term)
            grads[name] = total


def tied_holders(units: dict[str, tuple[str, ...]], lane: Lane) -> dict[str, tuple[int, ...]]:
    """Parameters that several segments hold. units: unit -> its parameters that other units hold too."""
    found: dict[str, list[int]] = {}
    for index, segment in enumerate(lane.segments):
        for name in {name for unit in segment.units for name in units.get(unit, ())}:
            found.setdefault(name, []).append(index)
    return {name: tuple(segments) for name, segments in found.items() if len(segments) > 1}
