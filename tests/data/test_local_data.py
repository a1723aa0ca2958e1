"""Data that lie on a device: what is reported of them, and what is prepared there."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetune.contracts import json_io
from fleetune.contracts.input_spec import InputSpec
from fleetune.contracts.run_config import DataRequest
from fleetune.data.job import Preparation, SharedChoices
from fleetune.data.local_data import (
    SURVEYED,
    LocalSurvey,
    LocalTask,
    check_agreement,
    prepare,
    public_labels,
    survey,
)
from fleetune.data.prepared_data import LABELS, LocalSource, PreparedData
from fleetune.data.public_words import Told
from fleetune.data.sources import content_digest
from fleetune.data.writer import write_data
from fleetune.errors import Refused, TryAgain

SPEC = InputSpec(task="sequence-classification")
IMAGES = InputSpec(task="image-classification", channels=1)


def rows(folder: Path, name: str, labels: list[Any], text: str = "words") -> DataRequest:
    """Write a source with a row for each label."""
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"text": f"{text} {k}", "label": x}) + "\n" for k, x in enumerate(labels)))
    return DataRequest(source=str(file), max_length=16)


def ignore(what: str, done: float, total: float, unit: str = "", detail: str = "") -> None:
    """Discard progress."""


def test_devices_get_the_same_ids_for_the_union_of_their_labels(tmp_path: Path) -> None:
    """A class that a device or the test data lack has its id there too; a device may have one class only."""
    sources = {"a": rows(tmp_path, "a", ["pear"] * 4 + ["fig"] * 4), "b": rows(tmp_path, "b", ["apple"] * 5)}
    found = {device: survey(request, SPEC, ignore) for device, request in sources.items()}
    assert found["b"] == LocalSurvey(digest=content_digest(sources["b"]), samples=5, labels=("apple",))
    central = Preparation(
        request=rows(tmp_path, "held-out", ["fig", "plum"] * 5),
        spec=SPEC,
        seed=1,
        local=tuple(LocalSource(device=d, digest=s.digest, samples=s.samples) for d, s in found.items()),
        local_labels=("pear", "fig", "apple"),
    )
    write_data(central, tmp_path / "data")
    info = PreparedData(tmp_path / "data").info
    assert info.local is not None and info.labels == ("apple", "fig", "pear", "plum")
    assert info.notes == ("no device has a row of class plum, so it cannot be learned",)
    sizes = PreparedData(tmp_path / "data").describe_sizes()
    assert sizes == "2 samples to test on; 13 samples on 2 devices with data of their own"
    shared = SharedChoices(label_ids=info.local.label_ids, labels=info.labels, image_shape=(0, 0))
    for device, ids in (("a", [1] * 4 + [2] * 4), ("b", [0] * 5)):
        asked = Preparation(
            request=replace(info.local.request, source=sources[device].source),
            spec=SPEC,
            seed=1,
            expected_digest=found[device].digest,
            shared=shared,
        )
        reported = prepare(asked, tmp_path / device / "data")
        assert reported.samples == len(ids), "nothing is held out"
        own = PreparedData(tmp_path / device / "data")
        assert sorted(own.rows("train", np.arange(len(ids)))[LABELS].tolist()) == ids
        assert own.labels == info.labels and [split.name for split in own.info.splits] == ["train"]


def test_numbers_of_csv_columns_agree_as_numbers(tmp_path: Path) -> None:
    """A column with a gap of another device's tool may spell 1 as 1.0; ids follow the numbers' order."""
    request = rows(tmp_path, "a", ["1.0", "10.0", "2.0"] * 2)
    assert set(survey(request, SPEC, ignore).labels) == {"1", "2", "10"}
    central = Preparation(
        request=rows(tmp_path, "c", [1, 3] * 5),
        spec=SPEC,
        seed=1,
        local=(LocalSource(device="a", digest="d", samples=6),),
        local_labels=("1", "10", "2"),
    )
    write_data(central, tmp_path / "data")
    assert PreparedData(tmp_path / "data").labels == ("1", "2", "3", "10")
    with pytest.raises(Refused, match="labels of a are whole numbers and those of b are words"):
        check_agreement({"a": ("1", "2"), "b": ("no", "yes")})


def test_rows_that_nobody_trains_are_not_compared_with_those_that_test(tmp_path: Path) -> None:
    """Bug: test rows that equal the stand-ins of `data.source` were said to be training rows, which lie elsewhere."""
    request = rows(tmp_path, "held-out", ["x", "y"])
    file = Path(request.source)
    file.write_text(file.read_text().replace("words 1", "words 0") * 10)
    central = Preparation(
        request=replace(request, validation=request.source),
        spec=SPEC,
        seed=1,
        local=(LocalSource(device="a", digest="d", samples=6),),
        local_labels=("x", "y"),
    )
    write_data(central, tmp_path / "data")
    assert PreparedData(tmp_path / "data").info.notes == ()
    write_data(replace(central, local=(), local_labels=()), tmp_path / "plain")
    assert "are also training rows" in str(PreparedData(tmp_path / "plain").info.notes)


def test_data_that_changed_since_the_survey_are_not_prepared(tmp_path: Path) -> None:
    """The digest that the run's key has must be that of the rows that train."""
    request = rows(tmp_path, "a", ["x", "y"] * 3)
    digest = survey(request, SPEC, ignore).digest
    rows(tmp_path, "a", ["x", "y"] * 4)
    shared = SharedChoices(label_ids={"x": 0, "y": 1}, labels=("x", "y"), image_shape=(0, 0))
    asked = Preparation(request=request, spec=SPEC, seed=1, expected_digest=digest, shared=shared)
    with pytest.raises(TryAgain, match="changed after this run surveyed them"):
        prepare(asked, tmp_path / "own" / "data")


LONGER = "are longer than max_length 6 and are cut"


@pytest.mark.parametrize(
    ("task", "texts", "changes", "told"),
    [
        (
            "sequence-classification",
            ["abc", "private", " "],
            {},
            ["1 of 3 rows are left out: their text is empty", f"1 of 2 texts {LONGER}"],
        ),
        (
            "causal-lm",
            ["abc", "private"],
            {},
            [f"1 of 2 texts {LONGER}, by which 16.7% of all tokens are lost; data.packing reads them"],
        ),
        (
            "causal-lm",
            ["abc", "x" * 900],
            {},
            [f"1 of 2 texts {LONGER}, by which 98.9% of all tokens are lost; data.packing reads them"],
        ),
        (
            "causal-lm",
            ["abc", "private"],
            {"packing": True},
            ["1 of 2 train texts are longer than max_length 6, and are read as several samples"],
        ),
        (
            "causal-lm",
            [{"prompt": "a", "completion": "private"}, {"prompt": "a private", "completion": "b"}],
            {},
            [f"2 of 2 train samples {LONGER}; 1 of 2 train samples are left out, because no token with loss remains"],
        ),
    ],
)
def test_what_is_cut_or_left_out_is_told_as_numbers_alone(
    task: str, texts: list[Any], changes: dict[str, Any], told: list[str], tmp_path: Path
) -> None:
    """Bug: notes with a share, of texts that are read in parts, or of empty rows stayed on the device. The name of a
    column that says the like stays there, as how long the longest text is does."""
    given = [each if isinstance(each, dict) else {"text": each} for each in texts]
    lines = [{**each, "label": 0, "1 of 2 texts are longer than all": "a message"} for each in given]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = DataRequest(source=str(tmp_path / "x.jsonl"), max_length=6, **changes)
    shared = SharedChoices(label_ids={"0": 0}, labels=("0", "1"), image_shape=(0, 0))
    digest = content_digest(request, images=False)
    asked = Preparation(request=request, spec=InputSpec(task=task), seed=0, expected_digest=digest, shared=shared)
    assert list(prepare(asked, tmp_path / "data").cut) == told


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            [f"a review {k}" for k in range(9)],
            "9 labels that data.source does not have, 9 of them in a single row of 9",
        ),
        (["normal"] * 502 + [f"J. Doe, {k}, stage III" for k in range(498)], "498 of them in a single row of 1000"),
        (["short", "x" * 65] * 9, "the longest of 65 characters"),
    ],
)
def test_a_column_of_texts_is_not_told_as_names_of_labels(labels: list[str], words: str, tmp_path: Path) -> None:
    """With data.label_column at the text's column, names of labels would be samples; the refusal quotes none."""
    with pytest.raises(Refused, match=words) as refused:
        survey(rows(tmp_path, "a", labels), SPEC, ignore)
    assert not any(label in str(refused.value) for label in labels if label not in ("short", "normal"))


def test_names_of_classes_that_no_row_has_stay(tmp_path: Path) -> None:
    """A file may declare classes that none of its rows has, whose names nobody asked for."""
    names = ["fig", SECRET, "pear"]
    features = {"label": {"names": names, "_type": "ClassLabel"}, "text": {"dtype": "string", "_type": "Value"}}
    table = pa.table({"text": ["a", "b", "c", "d"], "label": [0, 2, 0, 2]}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(table, tmp_path / "own.parquet")
    request = DataRequest(source=str(tmp_path / "own.parquet"), max_length=16)
    found = survey(request, SPEC, ignore)
    assert found.labels == ("fig", "pear")
    shared = SharedChoices(label_ids={"fig": 0, "pear": 1}, labels=found.labels, image_shape=(0, 0))
    asked = Preparation(request=request, spec=SPEC, seed=1, expected_digest=found.digest, shared=shared)
    assert prepare(asked, tmp_path / "own" / "data").samples == 4, "and the device can do without them"


def test_labels_that_everybody_has_may_be_rare(tmp_path: Path) -> None:
    """A device with a row of each class that data.source has tells nothing by their names; one more is refused."""
    own, common = rows(tmp_path, "own", ["fig", "pear"]), rows(tmp_path, "common", ["fig", "pear", "plum"] * 2)
    known = public_labels(common, SPEC)
    assert set(known) == {"fig", "pear", "plum"}
    assert set(survey(own, SPEC, ignore, known).labels) == {"fig", "pear"}
    with pytest.raises(Told, match="has 1 labels that data.source does not have, 1 of them in a single row of 2"):
        survey(rows(tmp_path, "own", ["fig", "Doe"]), SPEC, ignore, known)


SECRET = "Zq#7Kv!wXj@3pRu9"


@pytest.mark.parametrize(
    ("content", "spec"),
    [
        (json.dumps({"text": [SECRET], "label": "x"}), SPEC),
        (json.dumps({"text": "t", "label": {SECRET: 1}}), SPEC),
        (json.dumps({"text": "t", "label": f"it's {SECRET}"}) + '\n{"text": "u", "label": 3}', SPEC),
        (f'{{"text": "{SECRET}", "label": ', SPEC),
        (json.dumps({"text": SECRET, "label": 0.5}), SPEC),
        (json.dumps({"image": SECRET, "label": "x"}), IMAGES),
        (json.dumps({"image": [[SECRET]], "label": "x"}), IMAGES),
    ],
)
def test_no_message_of_a_failure_holds_a_sample(content: str, spec: InputSpec, tmp_path: Path) -> None:
    """Rows that cannot be read are named by number, in what the process says and in its log."""
    (tmp_path / "own.jsonl").write_text(content)
    task = LocalTask(answer=SURVEYED, request=DataRequest(source=str(tmp_path / "own.jsonl")), spec=spec)
    assert_nothing_told(task, tmp_path)


@pytest.mark.parametrize(
    ("suffix", "heading"),
    [("csv", "text,label\n"), ("parquet", ""), ("csv", f"{SECRET},1\n"), ("csv", f"{SECRET},1,1\n")],
)
def test_no_message_of_a_damaged_table_holds_a_sample(suffix: str, heading: str, tmp_path: Path) -> None:
    """Parsers quote the row that they cannot read, and without a heading the first sample passes for the columns."""
    file = tmp_path / f"own.{suffix}"
    file.write_text(f'{heading}fine,1\n{SECRET},2,{SECRET},{SECRET}\n"{SECRET}')
    assert_nothing_told(LocalTask(answer=SURVEYED, request=DataRequest(source=str(file)), spec=SPEC), tmp_path)


def assert_nothing_told(task: LocalTask, folder: Path) -> None:
    """Run the process, which must fail, and search all that it writes."""
    json_io.write(task, folder / "task.json")
    command = [sys.executable, "-m", "fleetune.data.local_data", "--task", str(folder / "task.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == Refused.exit_code, done
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "error" and "own." in last["message"], last
    assert SECRET not in done.stdout + done.stderr
