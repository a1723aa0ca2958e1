"""A checkpoint comes in parcels to devices that do not see the coordinator's files, and from files to others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fleetune.contracts.plan import LinkUse, Plan, PlanResult
from fleetune.contracts.training_request import TrainingRequest
from fleetune.errors import TryAgain
from fleetune.recovery.holdings import Attempt, Restoration, Version
from fleetune.recovery.transfers import DISK, Item, Transfer
from fleetune.training import parcels, worker_group
from fleetune.training.checkpoints import CheckpointMark, FileDigest, StoredCheckpoint, checkpoint_folder, mark_complete
from fleetune.training.coordinator import train
from fleetune.training.migration import Parcel
from fleetune.training.parcels import StoredParcels, parcels_of
from tests.support.training.away_launcher import AwayLauncher
from tests.support.training.listeners import killing
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.recording import Recording
from tests.support.training.runs import Prepared, plan, prepared, training_task

TRAINING = TrainingRequest(
    rounds=6, batch_samples=24, micro_batch_samples=8, learning_rate=1e-3, checkpoint_every_rounds=3
)


def lossy(ready: Prepared, cuts: list[int]) -> Plan:
    """A chain whose links have error feedback."""
    made = plan(ready.units, cuts, [[8]] * (len(cuts) + 1))
    pairs = [(f"d{a}", f"d{b}") for k in range(len(cuts)) for a, b in ((k, k + 1), (k + 1, k))]
    return replace(made, links=tuple(LinkUse(source=a, target=b, codec="int8", feedback=True) for a, b in pairs))


def losing(ready: Prepared, folder: Path, away: bool) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Lose the last of three devices after round 5; return every tensor of the last state by file, and the notes."""
    launcher = AwayLauncher(folder / "away") if away else Recording()
    said = list[str]()

    def revise(made: Plan, lost: object) -> PlanResult:
        assert lost == ["d2"]
        return PlanResult(
            plan=lossy(ready, [2]), objective=1.0, lower_bound=None, status="feasible", solve_s=0.0, method="test"
        )

    task = training_task(
        ready,
        lossy(ready, [2, 4]),
        TRAINING,
        folder,
        launcher=launcher,
        progress=killing(launcher, 5, 2),
        revise=revise,
        note=said.append,
    )
    if away:
        devices = tuple(replace(device, launcher="docker", engine="local") for device in task.fleet.devices)
        task = replace(task, fleet=replace(task.fleet, devices=devices))
    train(task)
    files = sorted((folder / "output" / "checkpoint" / "state").glob("*.safetensors"))
    return {f"{file.name} {name}": tensor for file in files for name, tensor in load_file(file).items()}, said


def test_devices_elsewhere_go_back_to_a_checkpoint_in_the_middle_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a run in containers ended when a device took with it what no other one held. Weights, moments and what the
    links' messages have lost are bit for bit those of devices that read the files."""
    for module in (parcels, worker_group):  # several parcels, and tensors that are larger than one
        monkeypatch.setattr(module, "PARCEL_BYTES", 4096)
    ready = prepared(model_request(BY_NAME["bert"], dropout=True), data_request(BY_NAME["bert"], tmp_path), tmp_path)
    here, _ = losing(ready, tmp_path / "here", False)
    away, said = losing(ready, tmp_path / "there", True)
    assert any("goes on from round 3 on d0, d1: the checkpoint is read, 2 rounds run again" in each for each in said)
    assert any("feedback" in name for name in here) and here.keys() == away.keys()
    assert all(torch.equal(here[name], away[name]) for name in here)


def test_a_damaged_checkpoint_is_not_sent(tmp_path: Path) -> None:
    """The file is named before a device has asked for anything."""
    folder = checkpoint_folder(tmp_path, 3)
    folder.mkdir(parents=True)
    shard = folder / "segment-0.safetensors"
    shard.write_bytes(b"as it was written")
    mark_complete(tmp_path, 3, {shard.name: FileDigest.of(shard)}, "", None)
    assert StoredCheckpoint.verified(folder).mark.files == (shard.name,)
    shard.write_bytes(b"as a bad disk has it")
    with pytest.raises(TryAgain, match=r"segment-0\.safetensors is damaged"):
        StoredCheckpoint.verified(folder)


def test_what_a_checkpoint_has_is_sent_to_devices_alone_that_do_not_see_it() -> None:
    """d0 sees the files, d1 and d2 do not; d2 needs no weights of it, and yet what its messages had lost."""
    fed = tuple(LinkUse(source=f"d{k}", target="d9", codec="int8", feedback=True) for k in range(3))
    made = replace(plan(("u",), [], [[3, 3, 2]]), links=fed)
    transfers = tuple(Transfer(source=DISK, target=d, lane="main", names=("v", "w"), bytes=8) for d in ("d0", "d1"))
    found = Restoration(version=Version(4, Attempt(1, 1)), transfers=transfers)
    sizes = {Item("main", name): 4 for name in "vw"}
    sent = [(each.source, each.target, each.names) for each in parcels_of(found, made, sizes, ("d1", "d2"))]
    assert sent == [(DISK, "d1", ("v", "w")), (DISK, "d1", ()), (DISK, "d2", ())]


def test_nobody_is_sent_the_parcel_of_another_one(tmp_path: Path) -> None:
    """A device that asks for what is for another one, or for what there is not, is refused by number."""
    stored = StoredParcels(
        StoredCheckpoint(tmp_path, CheckpointMark(round=1, files=())), {3: Parcel(number=3, source=DISK, target="d1")}
    )
    exchange: Any = None
    for device, number in (("d0", 3), ("d1", 4)):
        with pytest.raises(LookupError, match=str(number)):
            stored.send(exchange, device, number)
