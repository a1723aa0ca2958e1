"""Training on data that stay on their devices: exactness, and what crosses the links.

Devices are processes; each reads a folder that no other worker is told of.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fleetune.contracts.plan import Plan
from fleetune.data.prepared_data import IDS, LABELS, PIXELS, PreparedData, batch_indices
from fleetune.errors import Refused, TryAgain
from fleetune.links.authentication import new_key_pair
from fleetune.links.endpoint import Endpoint
from fleetune.training.batches import Batches, lane_seed
from fleetune.training.coordinator import train
from fleetune.training.exchange import Exchange, TransferKey
from fleetune.training.parcels import StoredParcels
from fleetune.training.task import DeviceData
from tests.support.training.away_launcher import AwayLauncher
from tests.support.training.control_comparison import FP64, whole_model
from tests.support.training.lane_training import lane_models, train_by_blocks, train_federated
from tests.support.training.lanes import LORA, TRAINING, beside, by_blocks, ready_for, split
from tests.support.training.listeners import StopAfter
from tests.support.training.local_data import own_data
from tests.support.training.model_families import BY_NAME, data_request, model_request
from tests.support.training.planted import DTYPES, SECRET, found_in, spellings, text_spellings
from tests.support.training.runs import Prepared, final_state, plan, prepared, run_plan, training_task
from tests.support.training.tapped_worker import FileTap, TappedLauncher


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_clients_with_data_of_their_own_are_fedavg_of_models_trained_on_these(name: str, tmp_path: Path) -> None:
    """One client has fewer samples than a round takes, and goes through them again; weights count samples owned."""
    ready = ready_for(tmp_path, name, precision="float64")
    made, local = split(ready, "xy"), own_data(ready, tmp_path, {"x": 61, "y": 9})
    assert [data.samples for data in local.values()] == [61, 9]
    folders = [local[lane.name].folder for lane in made.lanes]
    control = train_federated(lane_models(ready, whole_model(ready), made, folders), TRAINING)
    found = beside(ready, tmp_path, made, control, local=local)
    assert max(found.loss, found.tensor, found.logits) < FP64, found


def test_blocks_are_tuned_on_the_data_of_their_devices(tmp_path: Path) -> None:
    """LoLa-DEFT: the gradient of each block comes from the samples that lie on the device assigned to it."""
    ready = ready_for(tmp_path)
    made, local = by_blocks(ready, [2]), own_data(ready, tmp_path, {"d0": 30, "d1": 50})
    whole = whole_model(ready)
    names = [{n for n, _ in whole.named_parameters() if n.startswith(lane.segments[0].trains)} for lane in made.lanes]
    lanes = lane_models(ready, whole, made, [local["d0"].folder, local["d1"].folder])
    control = train_by_blocks(lanes, whole, TRAINING, names)
    assert beside(ready, tmp_path, made, control, local=local).bitwise


def test_damaged_data_of_a_device_train_nothing(tmp_path: Path) -> None:
    """A worker whose device holds zeros, where labels were, says so before it draws a batch."""
    ready = ready_for(tmp_path)
    made, local = by_blocks(ready, [2]), own_data(ready, tmp_path, {"d0": 30, "d1": 50})
    file, lane = local["d0"].folder / "train" / "labels.npy", made.lanes[0]
    Batches(local["d0"].folder, made, lane, ready.seed, torch.device("cpu"), local=True)
    file.write_bytes(file.read_bytes()[:128] + bytes(file.stat().st_size - 128))
    with pytest.raises(TryAgain, match="labels.npy: it is not what was written when these data were prepared"):
        Batches(local["d0"].folder, made, lane, ready.seed, torch.device("cpu"), local=True)


def planted_samples(ready: Prepared, made: Plan, local: Mapping[str, DeviceData]) -> dict[str, list[tuple[str, bytes]]]:
    """Return what must not leave: tokens or pixels of every sample, and the labels of every micro-batch of training."""
    found: dict[str, list[tuple[str, bytes]]] = {"text": list(text_spellings(SECRET))}
    for lane in made.lanes:
        data = PreparedData(local[lane.segments[0].devices[0]].folder)
        rows = data.rows("train", np.arange(data.size("train")))
        for number in range(data.size("train")):
            whole = rows[IDS][number] if IDS in rows else rows[PIXELS][number]
            found[f"sample {number} of {lane.name}"] = list(spellings(_distinct(whole)))
        for round in range(TRAINING.rounds):
            drawn = batch_indices(data.size("train"), 24, lane_seed(made, lane, ready.seed), round)
            for micro_batch in range(3):
                labels = rows[LABELS][drawn[8 * micro_batch : 8 * micro_batch + 8]]
                if len(set(labels.tolist())) > 2:
                    found[f"labels {round}.{micro_batch} of {lane.name}"] = list(spellings(labels))
    return found


def _distinct(row: np.ndarray) -> np.ndarray:
    """Return the 12 consecutive numbers of a sample with most different values."""
    windows = np.lib.stride_tricks.sliding_window_view(row, 12, axis=-1).reshape(-1, 12)
    return np.array(max(windows, key=lambda window: len(set(window.tolist()))))


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_no_message_of_a_client_holds_its_samples_or_labels(name: str, tmp_path: Path) -> None:
    """All that leaves a client before encryption, its log and its checkpoints are searched in every dtype."""
    ready = ready_for(tmp_path, name)
    made, local = split(ready, "xy"), own_data(ready, tmp_path, {"x": 20, "y": 9})
    taps = tmp_path / "taps"
    run_plan(ready, made, TRAINING, tmp_path, local=local, launcher=TappedLauncher(taps))
    planted = planted_samples(ready, made, local)
    written = [file for top in ("work", "output") for file in (tmp_path / top).rglob("*") if file.is_file()]
    assert (taps / "x").stat().st_size > 24 * 32 * 4 * TRAINING.rounds, "the tap saw the activations"
    for file in (*taps.iterdir(), *written):
        assert not found_in(file.read_bytes(), planted), file


def test_no_message_of_a_device_that_trains_a_block_holds_its_samples_or_labels(tmp_path: Path) -> None:
    """LoLa-DEFT with adapters: gradients go to the collector, and nothing that was learned from."""
    ready = ready_for(tmp_path, lora=LORA)
    made, local = by_blocks(ready, [2]), own_data(ready, tmp_path, {"d0": 20, "d1": 9})
    taps = tmp_path / "taps"
    run_plan(ready, made, TRAINING, tmp_path, local=local, launcher=TappedLauncher(taps))
    planted = planted_samples(ready, made, local)
    written = [file for top in ("work", "output") for file in (tmp_path / top).rglob("*") if file.is_file()]
    for name in ("d0", "d1"):
        assert (taps / name).stat().st_size > 1000 * TRAINING.rounds, "the tap saw the gradients"
    for file in (*taps.iterdir(), *written):
        assert not found_in(file.read_bytes(), planted), file


def test_a_resumed_client_elsewhere_gets_its_own_state_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: who went on between two averages was given the checkpoint with the weights and moments of all clients, which
    show what is in their data. What it is sent is enough: the weights are those of a run without the stop."""
    sent: dict[str, set[str]] = {}
    send = StoredParcels.send

    def recorded(own: StoredParcels, exchange: Exchange, device: str, number: int) -> None:
        sent.setdefault(device, set()).add(own.parcels[number].lane)
        send(own, exchange, device, number)

    # replaced: what a device is sent, and by which lane, shows nowhere else
    monkeypatch.setattr(StoredParcels, "send", recorded)
    ready = ready_for(tmp_path)
    made, local = split(ready, "xy"), own_data(ready, tmp_path, {"x": 20, "y": 9})
    training = replace(TRAINING, rounds=6, checkpoint_every_rounds=99)
    run_plan(ready, made, training, tmp_path / "whole", local=local)
    launcher, stop = AwayLauncher(tmp_path / "away"), StopAfter(4)
    task = training_task(ready, made, training, tmp_path / "cut", local=local, launcher=launcher)
    devices = tuple(replace(device, launcher="docker", engine="local") for device in task.fleet.devices)
    task = replace(task, fleet=replace(task.fleet, devices=devices))
    with pytest.raises(TryAgain, match="^ended after round 4 of 6"):
        train(replace(task, stop=stop, progress=stop.listen))
    assert sent == {}
    assert train(task).resumed_from_round == 4
    assert sent == {"x": {"x"}, "y": {"y"}, "h": {"x", "y"}}
    assert not any("round-" in str(path) for command in launcher.commands for path in command.reads)
    states = [final_state(tmp_path / name) for name in ("whole", "cut")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_search_finds_samples_that_are_sent(dtype: str, tmp_path: Path) -> None:
    """The control of the test above: tokens and labels sent on purpose, through the same tap, are found."""
    keys = {name: new_key_pair() for name in "ab"}
    public = {name: pair.public for name, pair in keys.items()}
    ids = np.array([101, 7592, 44, 91, 17, 3, 250, 8, 61, 99, 12, 5], dtype=np.int64)
    sent = torch.from_numpy(ids).to(getattr(torch, dtype))
    with (
        Endpoint("a", keys["a"], public, run="r", note=print) as a,
        Endpoint("b", keys["b"], public, run="r", note=print) as b,
    ):
        a.tap = FileTap(tmp_path / "tap")
        a.connect("b", b.address, public["b"])
        exchange = Exchange(a, "c", torch.device("cpu"))
        key = TransferKey("values-F", 0, "x", 0, 0, "a")
        exchange.send("b", key, {0: torch.stack([sent.flip(0), sent])}, {"words": SECRET})
    planted = {"ids": list(spellings(ids)), "text": list(text_spellings(SECRET)), "other": list(spellings(ids + 1))}
    found = found_in((tmp_path / "tap").read_bytes(), planted)
    assert f"ids as {dtype}" in found
    assert "text as utf-8" in found
    assert not [each for each in found if each.startswith("other")]


def before_the_first_layer(folder: Path) -> Prepared:
    """Return a model whose first unit pads pixels and learns nothing."""
    family = BY_NAME["efficientnet"]
    model = model_request(family, dropout=True, granularity="layer")
    return prepared(model, data_request(family, folder), folder)


def test_the_tap_sees_samples_where_a_plan_sends_them(tmp_path: Path) -> None:
    """The control in a whole training: dealt data may be cut before the first layer; pixels are found."""
    ready = before_the_first_layer(tmp_path)
    run_plan(
        ready, split(ready, "x"), replace(TRAINING, rounds=1), tmp_path, launcher=TappedLauncher(tmp_path / "taps")
    )
    rows = PreparedData(ready.folders.data).rows("train", np.arange(96))[PIXELS]
    planted = {str(number): list(spellings(_distinct(pixels))) for number, pixels in enumerate(rows)}
    found = found_in((tmp_path / "taps" / "x").read_bytes(), planted)
    assert sum(each.endswith("as float32") for each in found) >= 24


def test_a_cut_before_the_first_learned_layer_is_refused(tmp_path: Path) -> None:
    """Pixels would cross it as they are."""
    ready = before_the_first_layer(tmp_path)
    made = split(ready, "x")
    task = training_task(ready, made, TRAINING, tmp_path, local={"x": DeviceData(folder=tmp_path, samples=1)})
    with pytest.raises(Refused, match="cut behind segment x/0 lies before the first learned layer, so pixel_values"):
        train(task)


def test_labels_stay_with_the_samples(tmp_path: Path) -> None:
    """A lane that ends elsewhere, or begins on a device without data, is refused before a worker starts."""
    ready = ready_for(tmp_path)
    chain = plan(ready.units, [2], [[8], [8]])
    for made, owner, words in (
        (chain, "d0", "begins and ends on d0, d1, so samples or labels would leave d0"),
        (split(ready, "xy"), "x", "lane y begins on y, which has no data"),
    ):
        local = {owner: DeviceData(folder=tmp_path, samples=1)}
        with pytest.raises(Refused, match=words):
            train(training_task(ready, made, TRAINING, tmp_path, local=local))
