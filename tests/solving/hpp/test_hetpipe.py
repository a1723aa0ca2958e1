"""HetPipe: virtual workers, their shares, and the parameter server."""

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetune.solving.hpp.draft import Draft, DraftStage
from fleetune.solving.hpp.instance import Instance
from fleetune.solving.hpp.methods import hetpipe
from tests.support.solving.hpp.instances import drawn, tiny


def test_workers_are_of_similar_mix() -> None:
    """Fastest first, assigned in turn and back: the fastest of six meets the slowest."""
    instance = Instance(tiny(1, devices=6))
    order = np.argsort(instance.forward_s[:, -1, -1] + instance.backward_s[:, -1, -1]).tolist()
    assert hetpipe.equal_distribution(instance, 2) == [[order[k] for k in (0, 3, 4)], [order[k] for k in (1, 2, 5)]]


@given(periods_s=st.lists(st.integers(0, 9), min_size=1, max_size=3), more=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_micro_batches_are_shared_best(periods_s: list[int], more: int) -> None:
    """No other sharing, at least one each, lets the last worker end earlier."""
    total, count = len(periods_s) + more, len(periods_s)

    def ends(shares: list[int] | tuple[int, ...]) -> float:
        return max(period * m for period, m in zip(periods_s, shares, strict=True))

    found = hetpipe.split_micro_batches([float(period) for period in periods_s], total)
    ways = [shares for shares in product(range(1, total + 1), repeat=count) if sum(shares) == total]
    assert sum(found) == total
    assert min(found) >= 1
    assert ends(found) == min(map(ends, ways))


def test_steady_run_is_its_slowest_stage() -> None:
    """A nano with one layer of 3 s beside a tx2 with two of 1.5 s: a micro-batch every 3 s, transfers hidden."""
    instance = Instance(drawn(latency_s=((None, 0.0, 0.0), (0.0, None, 0.0), (0.0, 0.0, None))))
    draft = Draft((DraftStage(0, 2, (2,), (2,)), DraftStage(2, 3, (0,), (2,))), (5, 2))
    assert hetpipe.steady_s(instance, draft, 4) == pytest.approx(12.0)


def test_server_by_hand() -> None:
    """If the second worker is the tx2 alone, it is the server, and only the first's 3000 B cross: 15 s."""
    workers = [two_stages(0, 1), Draft((DraftStage(0, 3, (2,), (2,)),), (1,))]
    assert hetpipe.best_server(Instance(drawn()), workers, [2, 3]) == (2, 15.0)
    assert hetpipe.best_server(Instance(drawn()), workers[:1], [5]) == (None, 0.0)


def test_server_shares_its_port() -> None:
    """Of two like pipelines, the device with most weights in the less busy one: 4000 B of others take 20 s, and the
    inputs of its own 2 micro-batches 1 s each."""
    nano, links = drawn().devices[0], tuple(tuple(None if a == b else 200.0 for b in range(4)) for a in range(4))
    instance = Instance(
        drawn(
            layers=tuple(dataclasses.replace(layer, gradient_bytes=0) for layer in drawn().layers),
            devices=tuple(dataclasses.replace(nano, name=f"nano-{k}") for k in range(4)),
            forward_s=drawn().forward_s[:1] * 4,
            backward_s=drawn().backward_s[:1] * 4,
            bandwidth_bytes_per_s=links,
            latency_s=links,
        )
    )
    assert hetpipe.best_server(instance, [two_stages(0, 1), two_stages(2, 3)], [3, 2]) == (3, 22.0)


def two_stages(first: int, second: int) -> Draft:
    """One layer on the first device, two on the second."""
    return Draft((DraftStage(0, 1, (first,), (2,)), DraftStage(1, 3, (second,), (2,))), (3, 1))


def test_slow_links_mean_one_worker() -> None:
    """If exchanging the model would take longest, all devices are one pipeline, whose round is that of its run."""
    found = hetpipe.plan(Instance(drawn(layers=tuple(_heavy(layer) for layer in drawn().layers))))
    assert len(found.virtual_workers) == 1
    assert found.round_s == found.virtual_workers[0].busy_s
    assert found.volume_bytes == 2 * 200 * 10


def test_fast_links_mean_more_workers() -> None:
    """If links cost nothing, workers of unlike speed share five micro-batches; the server's device also holds all
    trained weights."""
    links = tuple(tuple(None if a == b else 1e9 for b in range(3)) for a in range(3))
    found = hetpipe.plan(Instance(drawn(layers=drawn().layers[:1], **_one_layer(), bandwidth_bytes_per_s=links)))
    assert sorted(worker.micro_batches for worker in found.virtual_workers) == [1, 1, 3]
    assert found.round_s == pytest.approx(4.5)
    assert found.server == 0
    assert found.memory_bytes == (4000 + 400 + 1000, 4400, 4400)


def _heavy(layer: Any) -> Any:
    return dataclasses.replace(layer, param_bytes=10**6)


def _one_layer() -> dict[str, Any]:
    problem = drawn()
    return {
        "forward_s": tuple(row[:1] for row in problem.forward_s),
        "backward_s": tuple(row[:1] for row in problem.backward_s),
    }
