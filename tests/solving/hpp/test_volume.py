"""Bytes that cross between devices in a round."""

import dataclasses

from fleetune.solving.hpp.draft import Draft, DraftStage, hetpipe_bytes, synchronous_bytes
from fleetune.solving.hpp.instance import Instance
from tests.solving.hpp.instances import drawn

CASE = Instance(drawn())


def pipeline(*devices: int) -> Draft:
    """One layer a device, what remains on the last."""
    ends = [*range(1, len(devices)), 3]
    stages = [DraftStage(k, ends[k], (device,), (2,)) for k, device in enumerate(devices)]
    return Draft(tuple(stages), (1,) * len(stages))


def test_one_device_sends_nothing() -> None:
    """Where everything is on one device, no byte crosses."""
    assert synchronous_bytes(CASE, pipeline(2)) == 0


def test_all_reduce() -> None:
    """Data parallelism on three devices moves 2 (3 - 1) times the 3000 bytes of weights (eq. (2), G = 1)."""
    whole = Draft((DraftStage(0, 3, (0, 1, 2), (1, 1, 1)),), (1,))
    assert synchronous_bytes(CASE, whole) == 12_000


def test_stages() -> None:
    """Two devices reduce two layers (2 * 2000 B); 5 micro-batches of 2 samples cross once each way (10 * 200 B)."""
    draft = Draft((DraftStage(0, 2, (0, 1), (1, 1)), DraftStage(2, 3, (2,), (2,))), (3, 1))
    assert synchronous_bytes(CASE, draft) == 4000 + 2000


def test_frozen_weights_stay() -> None:
    """Only what is trained is reduced."""
    adapters = tuple(dataclasses.replace(layer, trainable_bytes=10) for layer in drawn().layers)
    frozen = Instance(drawn(layers=adapters))
    assert synchronous_bytes(frozen, Draft((DraftStage(0, 3, (0, 1), (1, 1)),), (1,))) == 2 * 3 * 10


def test_one_virtual_worker_needs_no_server() -> None:
    """Eq. (1), G = 1: only cuts count, here two of 200 B for each of 10 samples."""
    assert hetpipe_bytes(CASE, [(pipeline(0, 1, 2), 5)]) == 2 * 200 * 10


def test_virtual_workers_exchange_the_model() -> None:
    """Eq. (1), G = 2: both push and pull 3000 B; the pipeline of two sends 3 micro-batches across its cut."""
    assert hetpipe_bytes(CASE, [(pipeline(0, 1), 3), (pipeline(2), 2)]) == 2 * 2 * 3000 + 3 * 2 * 200
