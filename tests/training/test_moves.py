"""What moves between devices in a recovery: in parcels, and never there twice."""

import gc
import weakref
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fleetune.contracts import json_io
from fleetune.contracts.run_config import Lora
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.links.authentication import new_key_pair
from fleetune.models.weights import WeightReader
from fleetune.recovery.holdings import INITIAL, Attempt, Restoration, Version
from fleetune.recovery.transfers import Item, Transfer
from fleetune.training import parcels
from fleetune.training.checkpoints import MODEL, OPTIMIZER, Tensors
from fleetune.training.exchange import Arrival, TransferKey
from fleetune.training.migration import Migration
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.parcels import parcels_of, receive_parcels, send_parcels
from fleetune.training.running_plan import PlanLoader
from fleetune.training.task import TrainingTask, WorkerTask
from fleetune.training.worker_command import WorkerCommands
from fleetune.training.worker_state import WorkerState
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.runs import plan, prepared, training_task

PLAN = plan(("u",), [], [[8]])
TRAINING = TrainingRequest(rounds=1, batch_samples=1, micro_batch_samples=1)
PARCEL_BYTES = 8


class Wire:
    """An exchange whose messages arrive at once."""

    def __init__(self, name: str = "", sent: dict[TransferKey, Arrival] | None = None) -> None:
        """sent: shared by two ends."""
        self.name, self.sent = name, {} if sent is None else sent

    def send(self, peer: str, key: TransferKey, tensors: dict[str, torch.Tensor]) -> None:
        """Send tensors."""
        assert peer == "b" and key not in self.sent
        self.sent[key] = Arrival(dict(tensors), 0.0, 0.0, sum(each.nbytes for each in tensors.values()))

    def receive(self, key: TransferKey) -> Arrival:
        """Take what was sent."""
        return self.sent.pop(key)


@settings(deadline=None)
@given(sizes_bytes=st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_what_moves_is_in_parcels_and_arrives_whole(sizes_bytes: list[int]) -> None:
    """A message has at most PARCEL_BYTES, or one item, and two neighbours would not have fitted into one."""
    wire: Any = Wire("a")
    other: Any = Wire("b", wire.sent)
    held = {
        Item("main", f"{number:02}"): {f"{MODEL}{number:02}": torch.full((size,), number, dtype=torch.uint8)}
        for number, size in enumerate(sizes_bytes)
    }
    names = tuple(item.name for item in held)
    moved = Transfer(source="a", target="b", lane="main", names=names, bytes=sum(sizes_bytes))
    found = Restoration(version=Version(3, Attempt(1, 1)), transfers=(moved,))
    with pytest.MonkeyPatch.context() as small:
        small.setattr(parcels, "PARCEL_BYTES", PARCEL_BYTES)
        made = parcels_of(found, PLAN, dict(zip(held, sizes_bytes, strict=True)))
    order = Migration(plan=PLAN, version=found.version, parcels=made)
    send_parcels(wire, order, held)
    sizes = [arrival.size_bytes for arrival in wire.sent.values()]
    alone = [len(arrival.tensors) == 1 for arrival in wire.sent.values()]
    assert all(size <= PARCEL_BYTES or one for size, one in zip(sizes, alone, strict=True))
    firsts = [next(iter(arrival.tensors.values())).nbytes for arrival in wire.sent.values()]
    assert all(size + first > PARCEL_BYTES for size, first in zip(sizes, firsts[1:], strict=False))
    came = receive_parcels(other, order).items
    assert not wire.sent and came.keys() == held.keys()
    assert all(torch.equal(came[item][key], held[item][key]) for item in held for key in held[item])


class Collected:
    """Parameters that a device holds, and their optimizer."""

    def __init__(self, *names: str) -> None:
        self.buffers: dict[str, torch.Tensor] = {}
        self.parameters = {name: nn.Parameter(torch.zeros(3)) for name in names}
        self.optimizer = NamedOptimizer(self.parameters, TRAINING)


def nothing_stored(wanted: Collection[Item]) -> Iterable[tuple[Item, Tensors]]:
    """Nothing is on disk."""
    return ()


def received(name: str, value: float) -> Tensors:
    """Return a parameter with a part of its optimizer state."""
    return {MODEL + name: torch.full((3,), value), f"{OPTIMIZER}exp_avg:{name}": torch.full((3,), -value)}


def test_what_is_taken_over_is_freed() -> None:
    """Bug: a device that came back had 1579 MB where 926 were forecast, as it held what had come, also once it had
    copied it. What is missing is named.
    """
    holder: Any = Collected("v", "w")
    state = WorkerState({}, holder, None, None, frozenset())
    found: dict[Item, Tensors] = {Item("", name): received(name, value) for name, value in (("v", 1.0), ("w", 2.0))}
    alive = [weakref.ref(tensor) for tensors in found.values() for tensor in tensors.values()]
    state.put(PLAN, found, nothing_stored)
    assert not found and not any(each() is not None for each in alive)
    assert holder.parameters["w"].tolist() == [2.0] * 3
    assert holder.optimizer.state_of("w")["exp_avg"].tolist() == [-2.0] * 3
    with pytest.raises(TryAgain, match="nothing was received of w; run again"):
        state.put(PLAN, {Item("", "v"): received("v", 1.0)}, nothing_stored)


def worker_task(task: TrainingTask, returns: bool = False) -> WorkerTask:
    """Return what the worker of d0 is told."""
    commands = WorkerCommands(
        task=task, run="run", keys={"d0": new_key_pair()}, coordinator_address="", coordinator_public=b""
    )
    return json_io.read(WorkerTask, Path(commands.of("d0", returns=returns).arguments[1]))


def test_a_plan_that_is_left_is_freed_at_once(tmp_path: Path) -> None:
    """Bug: what ran rounds referred to itself, so that a device kept the memory of the plans before, twice its need,
    until Python looked for circles.
    """
    ready = prepared(model_request(BY_NAME["bert"], dropout=True), data_request(BY_NAME["bert"], tmp_path), tmp_path)
    made = plan(ready.units, [], [[8]])
    task = worker_task(training_task(ready, made, TRAINING, tmp_path))
    order = Migration(plan=made, version=INITIAL)
    wire: Any = Wire()
    gc.disable()
    try:
        running = PlanLoader(task, wire).load(order, {}, nothing_stored, {}, {})
        left = [weakref.ref(p) for seat in running.held.seats.values() for p in seat.runner.parameters.values()]
        assert left and all(each() is not None for each in left)
        del running
        assert not any(each() is not None for each in left)
    finally:
        gc.enable()


def test_a_device_that_comes_back_has_its_frozen_weights_before_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it loads ahead is what its plan needs, bit for bit: only what training changes is read after that, and no
    weight is held twice."""
    request = model_request(BY_NAME["bert"], dropout=True, lora=Lora(r=2, targets=("query",)))
    ready = prepared(request, data_request(BY_NAME["bert"], tmp_path), tmp_path)
    made = plan(ready.units, [], [[8]])
    task = worker_task(training_task(ready, made, TRAINING, tmp_path), returns=True)
    wire: Any = Wire()
    order = Migration(plan=made, version=INITIAL)
    straight = PlanLoader(task, wire).load(order, {}, nothing_stored, {}, {})
    loader = PlanLoader(task, wire)
    frozen = loader.load_frozen()
    assert frozen and frozen.keys() == straight.held.frozen().keys()
    read, ahead = WeightReader.read, set[str]()
    # replaced: which weights are read from disk shows nowhere else
    monkeypatch.setattr(WeightReader, "read", lambda self, names: ahead.update(names) or read(self, names))
    running = loader.load(order, {}, nothing_stored, {}, dict(frozen))
    assert ahead and not ahead & frozen.keys()
    assert all(running.held.frozen()[name].data_ptr() == tensor.data_ptr() for name, tensor in frozen.items())
    assert all(torch.equal(running.held.frozen()[name], t) for name, t in straight.held.frozen().items())
