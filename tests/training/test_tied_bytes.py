"""A weight that several units share (GPT-2's embedding is its head) crosses links as often as the clock forecasts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.clock import Clock
from fleetune.contracts.metrics import TimelineRow
from fleetune.contracts.plan import Plan
from fleetune.models.skeleton import saved_configuration, skeleton
from fleetune.profiling.profile import tied_bytes, unit_sizes
from fleetune.training.coordinator import train
from tests.support.training.lanes import TRAINING, split
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import MICRO_BATCH, Prepared, plan, prepared, training_task

GPT2 = BY_NAME["gpt2"]


def crossed(rows: tuple[TimelineRow, ...], letters: str) -> dict[tuple[str, str], int]:
    """Bytes by link and action, of these letters, but for messages without tensors."""
    of_letters = (r for r in rows if r.is_transfer and set(letters) & set(r.action.split("/")[1]))
    return {(r.device, r.action): r.bytes for r in of_letters if r.bytes}


def pipeline(ready: Prepared) -> Plan:
    """Two groups, whose ends share the weight."""
    return plan(ready.units, [len(ready.units) // 2], [[5, 3], [4, 4]])


def clients(ready: Prepared) -> Plan:
    """Split learning: each client has the embedding and the head, and a helper the middle."""
    return replace(split(ready, "xy"), average_every_rounds=1)


@pytest.mark.parametrize("made", [pipeline, clients], ids=["groups", "clients"])
def test_shared_weights_cross_links_as_forecast(made: Callable[[Prepared], Plan], tmp_path: Path) -> None:
    """Gradients between segments, all-reduces and averages have the bytes of the forecast; nothing is counted twice."""
    ready = prepared(model_request(GPT2, dropout=True), data_request(GPT2, tmp_path), tmp_path)
    module = skeleton(saved_configuration(ready.folders.model / "model"), ready.model)
    count = len(ready.units)
    planned = made(ready)
    task = training_task(ready, planned, replace(TRAINING, rounds=2), tmp_path)
    units = unit_sizes(ready.graph, module, [1] * count, [1] * count, MICRO_BATCH)
    profile = replace(task.profile, units=units, tied_bytes=tied_bytes(ready.graph, module))
    expected, measured = Clock(task.fleet, profile).forecast(planned), train(task)
    assert crossed(measured.timeline, "R") == crossed(expected.rows, "R")
    assert crossed(measured.average, "A") == crossed(expected.average, "A")
