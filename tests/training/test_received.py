"""A device that sends what was not to come is named, before anything is made of it."""

from typing import Any

import pytest
import torch
from torch import nn

from fleetune.contracts.plan import Plan
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import Refused
from fleetune.program import parse_step
from fleetune.training.averaging import Averages, parts_of
from fleetune.training.collector import Collector
from fleetune.training.exchange import Arrival, TransferKey, check_alike
from fleetune.training.gradients import pack_norms, ring_all_reduce
from fleetune.training.measurements import decode_rows
from fleetune.training.optimizer import NamedOptimizer
from fleetune.training.worker_group import check_report
from tests.support.clock.ticks import plan, segment

NAMES = {"u0": ("a",), "u1": ("b", "norm.running_mean")}
TENSORS: dict[str, torch.Tensor] = {
    "a": nn.Parameter(torch.zeros(2, 3)),
    "b": nn.Parameter(torch.zeros(4)),
    "norm.running_mean": torch.zeros(4),
}
TRAINING = TrainingRequest(rounds=3)
WHOLE = {
    "model|a": torch.ones(6),
    "optimizer|exp_avg:a": torch.ones(6),
    "model|norm.running_mean": torch.ones(4),
}
COUNTS = {"optimizer|step:a": 3.0}


def lanes() -> Plan:
    """A plan of two lanes, on x and y."""
    return plan({name: [segment("u0 u1", name)] for name in "xy"})


def arrival(tensors: dict[Any, torch.Tensor], described: Any = None) -> Arrival:
    """What came of a message."""
    return Arrival(tensors, 0.0, 0.0, 24, described or {})


@pytest.mark.parametrize(
    ("tensors", "counts", "said"),
    [
        ({**WHOLE, "model|a": torch.ones(1)}, COUNTS, "which has no such part"),
        ({**WHOLE, "model|c": torch.ones(6)}, COUNTS, "which has no such part"),
        ({**WHOLE, "optimizer|momentum:a": torch.ones(6)}, COUNTS, "which has no such part"),
        ({**WHOLE, "model|a": torch.full((6,), float("nan"))}, COUNTS, "not finite"),
        ({**WHOLE, "model|a": torch.ones(6, dtype=torch.int32)}, COUNTS, "not finite"),
        (WHOLE, {"optimizer|step:a": -1}, "as the count"),
        (WHOLE, {"optimizer|step:a": 10**400}, "as the count"),
        (WHOLE, {"optimizer|step:a": "3"}, "as the count"),
        (WHOLE, {"optimizer|step:z": 3}, "as the count"),
    ],
    ids=str,
)
def test_what_is_no_state_enters_no_average(tensors: dict[Any, torch.Tensor], counts: Any, said: str) -> None:
    """Bug: one number was added to a whole weight, and what was not finite was in every lane from then on."""
    averages = Averages(lanes(), NAMES, parts_of(NAMES, TENSORS))
    step = parse_step("collect x/0A0 from x")
    found = averages.state_of(step, arrival(dict(WHOLE), COUNTS))
    assert found.tensors.keys() == WHOLE.keys() and found.counts == COUNTS
    with pytest.raises(Refused, match=f"^x sent .*{said}"):
        averages.state_of(step, arrival(tensors, counts))


def test_a_collector_adds_gradients_of_its_parameters_alone() -> None:
    """Bug: a gradient of one element was added to each of a weight, and an unknown name ended the collector."""
    trained = {name: nn.Parameter(TENSORS[name].detach().clone()) for name in ("a", "b")}
    collector = Collector(lanes(), {"x": 0.5, "y": 0.5}, NAMES, trained, TRAINING)
    for bad in ({"model|a": torch.ones(1)}, {"model|z": torch.ones(6)}, {"model|a": torch.ones(2, 3).double()}):
        with pytest.raises(Refused, match="^x sent a gradient of"):
            collector.collect("x", bad, "x")
    assert not collector.optimizer.gradients()


def test_a_slice_of_a_sum_is_like_its_own() -> None:
    """Bug: a slice of one element was added to all of another one."""

    class Peer:
        """An exchange whose peer always sends the same."""

        def send(self, *_: object) -> None:
            """Send nothing."""

        def receive(self, key: object) -> Arrival:
            """Return one element."""
            return arrival({0: torch.ones(1)})

    exchange: Any = Peer()
    with pytest.raises(Refused, match="^y sent a slice of a sum of gradients, 0 as float32 "):
        ring_all_reduce(exchange, ("x", "y"), TransferKey("ring", 0, "main", 0, 0, "x"), torch.zeros(6))


def test_optimizer_state_of_another_shape_is_not_taken_over() -> None:
    """The fused step would read beyond it."""
    optimizer = NamedOptimizer({"a": nn.Parameter(torch.zeros(2, 3))}, TRAINING)
    with pytest.raises(Refused, match=r"exp_avg:a is \[4\] of \[2, 3\]"):
        optimizer.load_state({"exp_avg:a": torch.ones(4)})


def test_tensors_are_compared_by_name_type_and_shape() -> None:
    """Fewer than all are welcome: not every parameter has a gradient."""
    check_alike("x", "the parameter", {}, TENSORS)
    check_alike("x", "the parameter", {"a": torch.ones(2, 3)}, TENSORS)
    with pytest.raises(Refused, match=r"^x sent the parameter a as float32 \[3, 2\], and not as float32 \[2, 3\]; see"):
        check_alike("x", "the parameter", {"a": torch.ones(3, 2)}, TENSORS)


REPORT: dict[str, Any] = {
    "losses": {"main": 0.5},
    "norms": {"main": pack_norms({"a": torch.tensor(1.0)}, {"a": 0})},
    "sent_bytes": {"y": 7},
    "peak_memory_bytes": 10,
    "overflowed": [],
    "loss_scale": 1.0,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"losses": {"other": 0.5}}, {"losses": {"main": "low"}}, {"losses": 3}, {"norms": {"main": {}}},
        {"norms": {"main": {"places": "AA==", "values": "", "dtype": "float32"}}}, {"sent_bytes": {"y": None}},
        {"sent_bytes": []}, {"peak_memory_bytes": 10**400}, {"overflowed": ["other"]}, {"loss_scale": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_a_report_that_cannot_be_read_names_its_device(changes: dict[str, Any]) -> None:
    """Bug: it ended the coordinator with an error of Python's own."""
    check_report("x", REPORT, ["main"])
    with pytest.raises(Refused, match="^device x reports a round with fields that cannot be read"):
        check_report("x", {**REPORT, **changes}, ["main"])


@pytest.mark.parametrize("row", ['["x", "/", 0.0, 1.0, 0]', f'["x", "main/0F0", {10**400}, 1.0, 0]'])
def test_rows_that_cannot_be_read_name_their_device(row: str) -> None:
    """An action that is none, and a time beyond every number."""
    with pytest.raises(Refused, match="^device x reports a round in rows that cannot be read"):
        decode_rows("x", [f"[{row}]".encode()])
