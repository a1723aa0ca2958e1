"""Bytes that cross between devices in a round, as Asteroid counts them in §2.3.

Activations and gradients each count with their own size (the paper takes both for a_j), and weights with what is
trained of them.
"""

from collections.abc import Iterable

from fleetune.solving.hpp.case import Case
from fleetune.solving.hpp.draft import Draft


def synchronous_bytes(case: Case, draft: Draft) -> int:
    """Eq. (2): 2 (|g| - 1) P_g of every stage's ring all-reduce, and what M micro-batches send across the cuts."""
    reduced = sum(
        2 * (len(stage.devices) - 1) * int(case.trainable_bytes[stage.end] - case.trainable_bytes[stage.first])
        for stage in draft.stages
    )
    return reduced + _crossing_bytes(case, draft, case.micro_batches)


def hetpipe_bytes(case: Case, workers: Iterable[tuple[Draft, int]]) -> int:
    """Eq. (1): G virtual workers, each with the micro-batches it takes of the round, send across their cuts; two or
    more also push and pull the whole model, 2 G P."""
    listed = list(workers)
    exchanged = 2 * len(listed) * int(case.trainable_bytes[-1]) if len(listed) > 1 else 0
    return exchanged + sum(_crossing_bytes(case, draft, micro_batches) for draft, micro_batches in listed)


def _crossing_bytes(case: Case, draft: Draft, micro_batches: int) -> int:
    cuts = [stage.first for stage in draft.stages[1:]]
    return micro_batches * case.samples * sum(int(case.output_bytes[cut] + case.gradient_bytes[cut]) for cut in cuts)
