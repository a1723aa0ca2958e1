"""Dry workers: all messages and steps of a plan's rounds, and no computing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fleetune.contracts.plan import Plan
from fleetune.launching import ProcessLauncher
from fleetune.models.init_weights import INIT_WEIGHTS
from fleetune.training.dry_worker import DryLauncher
from tests.support.training.lanes import TRAINING, by_blocks
from tests.support.training.runs import Prepared, final_state, plan, run_plan

LEARNING = replace(TRAINING, rounds=3, weight_decay=0.0)


def plans(ready: Prepared) -> dict[str, Plan]:
    """A pipeline with a group, and blocks whose gradients a collector sums."""
    blocks = by_blocks(ready, [3, 5])
    return {"pipeline": plan(ready.units, [3], [[3, 5], [8]]), "collector": blocks}


def stepped(folder: Path) -> set[str]:
    """Names of what the optimizer holds after training, which it makes in its first step."""
    shards = (folder / "output" / "checkpoint" / "state").glob("*.safetensors")
    return {name for shard in shards for name in load_file(shard) if not name.startswith("model|")}


@pytest.mark.parametrize("name", ["pipeline", "collector"])
def test_dry_rounds_send_what_rounds_send(bert: Prepared, name: str, tmp_path: Path) -> None:
    """Every link carries the bytes of a training, every action has its row, and nothing is learned."""
    made = plans(bert)[name]
    dry = run_plan(bert, made, LEARNING, tmp_path / "dry", launcher=DryLauncher(ProcessLauncher()))
    real = run_plan(bert, made, LEARNING, tmp_path / "real")
    sent, asked = ({(each.source, each.target): each.bytes for each in ran.link_bytes} for ran in (dry, real))
    assert sent == {link: pytest.approx(size, rel=0.02, abs=400) for link, size in asked.items()}, "but for digits"
    assert {(row.device, row.action) for row in dry.timeline} == {(row.device, row.action) for row in real.timeline}
    assert len({each.loss for each in dry.rounds}) == 1, "the loss of zeros"
    unchanged, learned = final_state(tmp_path / "dry"), final_state(tmp_path / "real")
    assert unchanged.keys() == learned.keys()
    start = load_file(bert.folders.model / INIT_WEIGHTS)
    assert all(torch.equal(unchanged[key], start[key]) for key in start)
    assert not all(torch.equal(learned[key], start[key]) for key in start)
    assert stepped(tmp_path / "dry") == stepped(tmp_path / "real") != set()
