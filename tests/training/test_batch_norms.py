"""Batch norms: whatever the plan, weights and running statistics are those of one machine.

The control is a ResNet of transformers in a loop of plain torch, on one device.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

from fleetune.checks import findings
from fleetune.contracts.fleet import Device, Fleet, Link, ModelSpeed, SimulatedDevice
from fleetune.contracts.plan import Plan
from fleetune.contracts.run_config import ModelRequest
from fleetune.contracts.training_request import TrainingRequest
from fleetune.data.prepared_data import PreparedData, batch_indices
from fleetune.errors import FleetuneError, Infeasible, Refused
from fleetune.planning import Problem, solve
from fleetune.planning.revision import heavy, light
from fleetune.profiling.profile import profile
from fleetune.training.coordinator import train
from tests.support.profiling.instances import Scripted, profiling_task
from tests.support.training.decay import trainer_groups
from tests.support.training.model_families import BY_NAME, IMAGE, data_request
from tests.support.training.runs import Prepared, final_state, plan, prepared, training_task

TRAINING = TrainingRequest(
    rounds=3, batch_samples=24, micro_batch_samples=8, learning_rate=1e-2, optimizer="adamw", weight_decay=0.1
)
SEED = 3
DEVICES = ("d0", "d1", "d2")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers with a small ResNet, full of batch norms."""
    folder = tmp_path_factory.mktemp("source")
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2], layer_type="basic", num_labels=10)
    ResNetForImageClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def ready(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The same model, prepared."""
    folder = tmp_path_factory.mktemp("ready")
    model = ModelRequest(task=IMAGE, source=str(source))
    return prepared(model, data_request(BY_NAME["resnet"], folder), folder, SEED)


@pytest.fixture(scope="module")
def problem(ready: Prepared) -> Problem:
    """Three equal devices with links so fast that sharing samples would pay."""
    speed = SimulatedDevice(memory_bytes=8 << 30, speeds=(ModelSpeed(flops_per_s=1e8),))
    devices = tuple(
        Device(name=name, memory_bytes=8 << 30, cores=1, fingerprint="f", simulated=speed) for name in DEVICES
    )
    links = tuple(Link(source=a, target=b, latency_s=0, bytes_per_s=1e12) for a in DEVICES for b in DEVICES if a != b)
    asked = profiling_task(ready.folders.model.parent, Scripted({}), DEVICES, ready.model)
    fleet = Fleet(devices=devices, links=links)
    measured = profile(replace(asked, fleet=fleet, training=TRAINING))
    return Problem(fleet=fleet, profile=measured, micro_batch_samples=8, micro_batches=3)


@pytest.fixture(scope="module")
def control(source: Path, ready: Prepared) -> dict[str, torch.Tensor]:
    """Weights and running statistics after a plain loop of the same batches."""
    model = ResNetForImageClassification.from_pretrained(source).train()
    optimizer = torch.optim.AdamW(trainer_groups(model, TRAINING), lr=TRAINING.learning_rate, fused=True)
    data = PreparedData(ready.folders.data)
    for round in range(TRAINING.rounds):
        rows = data.rows("train", batch_indices(data.size("train"), 24, SEED, round))
        pixels, labels = torch.from_numpy(rows["pixel_values"]), torch.from_numpy(rows["labels"])
        for part in torch.arange(24).split(8):
            logits = model(pixel_values=pixels[part]).logits
            (nn.functional.cross_entropy(logits, labels[part], reduction="sum") / 24).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def planned(problem: Problem, strategy: str, **options: Any) -> Plan:
    """The plan of a strategy."""
    return solve(strategy, replace(problem, options=options)).plan


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("single", {}),
        ("pp", {}),
        ("asteroid", {}),
        ("asteroid", {"method": "asteroid"}),
        ("asteroid", {"method": "eddl"}),
        ("asteroid", {"every_device": True}),
        ("fusionllm", {}),
        ("split-learning", {"helpers": ["d0"], "clients": ["d1"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_weights_and_running_statistics_are_those_of_one_machine(
    strategy: str, options: dict[str, Any], ready: Prepared, problem: Problem, control: dict[str, Any], tmp_path: Path
) -> None:
    """After three rounds of three micro-batches every weight, mean, variance and count is the control's, bit by bit.

    Bug: batch norms of a group normalised over each device's share.
    """
    made = planned(problem, strategy, **options)
    train(replace(training_task(ready, made, TRAINING, tmp_path), profile=problem.profile))
    found = final_state(tmp_path)
    assert found.keys() == control.keys()
    assert [name for name in found if not torch.equal(found[name], control[name])] == []


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        (
            "dp",
            {},
            r"group of 3 devices \(d0, d1, d2\) cannot share the samples of unit resnet\.embedder.* batch norms",
        ),
        (
            "pp",
            {"groups": [["d0", "d1"], ["d2"]]},
            r"group of 2 devices \(d0, d1\) cannot share the samples of unit res",
        ),
    ],
)
def test_groups_by_name_are_refused(strategy: str, options: dict[str, Any], words: str, problem: Problem) -> None:
    """A strategy that would have to share batch norms says so, and what to take instead."""
    with pytest.raises(Infeasible, match=words + ".*name one device, or take strategy asteroid"):
        planned(problem, strategy, **options)


def test_units_without_batch_norms_may_be_shared(ready: Prepared, problem: Problem) -> None:
    """A group behind the last batch norm shares the samples of pooling and head."""
    made = plan(ready.units, [ready.units.index("resnet.pooler")], [[8], [4, 4]])
    assert findings(made, problem.fleet, problem.profile) == ()


def test_a_foreign_plan_that_shares_batch_norms_is_refused(ready: Prepared, problem: Problem, tmp_path: Path) -> None:
    """The refusal names devices, segment and unit, before anything is started; a worker whose profile knows nothing
    of batch norms refuses, too."""
    made = plan(ready.units, [], [[4, 4]])
    asked = training_task(ready, made, TRAINING, tmp_path)
    words = "plan: d0, d1 share the samples of segment main/0, but unit resnet.* needs the whole micro-batch"
    with pytest.raises(Refused, match=words):
        train(replace(asked, profile=problem.profile))
    assert not asked.work.exists()
    with pytest.raises(FleetuneError, match="d0, d1 share the samples of resnet.* batch norms need the whole"):
        train(asked)


@pytest.mark.parametrize("revise", [light, heavy])
def test_a_lost_device_leaves_no_group(revise: Any, problem: Problem) -> None:
    """Plans that follow the loss of a device share no batch norms either."""
    before = planned(problem, "asteroid", every_device=True)
    after = revise(problem, before, ["d1"]).plan
    assert findings(after, problem.fleet, problem.profile) == ()
    assert {"d1"}.isdisjoint(after.devices)
