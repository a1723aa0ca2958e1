"""What the equality tests train in one process is what the product trains: each kind of plan, once over processes whose
links are encrypted, and once by threads whose messages stay in memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fleetune.contracts.plan import LinkUse, Plan
from tests.support.training.gates import gates_of_bert
from tests.support.training.lanes import LORA, TRAINING, by_blocks, ready_for, split
from tests.support.training.runs import Prepared, plan, run_plan


def pipeline(ready: Prepared) -> Plan:
    """Two segments, the first of a group of two devices."""
    return plan(ready.units, [len(ready.units) // 2], [[3, 5], [8]])


def chain(ready: Prepared) -> Plan:
    """Two segments of one device each."""
    return plan(ready.units, [len(ready.units) // 2], [[8], [8]])


CODED = tuple(LinkUse(source=a, target=b, codec="int8", feedback=True) for a, b in (("d0", "d1"), ("d1", "d0")))
PLANS: dict[str, Callable[[Prepared], Plan]] = {
    "single": lambda ready: plan(ready.units, [], [[8]]),
    "dp": lambda ready: plan(ready.units, [], [[3, 5]]),
    "pp": chain,
    "asteroid": pipeline,
    "fusionllm": lambda ready: replace(chain(ready), links=CODED),
    "lola-deft": lambda ready: by_blocks(ready, [2]),
    "split-learning": lambda ready: split(ready, "ab"),
    "d2ft": lambda ready: replace(chain(ready), gates=gates_of_bert()),
}


@pytest.mark.parametrize("strategy", PLANS)
def test_threads_train_bit_by_bit_as_processes(strategy: str, tmp_path: Path) -> None:
    """Losses, and every file of the state: weights, running statistics, the optimizer's moments."""
    ready = ready_for(tmp_path, lora=LORA if strategy == "lola-deft" else None)
    made = PLANS[strategy](ready)
    threads = run_plan(ready, made, TRAINING, tmp_path / "threads")
    processes = run_plan(ready, made, TRAINING, tmp_path / "processes", processes=True)
    assert [each.loss for each in threads.rounds] == [each.loss for each in processes.rounds]
    ours, theirs = (tmp_path / way / "output" / "checkpoint" / "state" for way in ("threads", "processes"))
    names = {path.name for path in theirs.glob("*.safetensors")}
    assert names and names == {path.name for path in ours.glob("*.safetensors")}
    assert all((ours / name).read_bytes() == (theirs / name).read_bytes() for name in names)
