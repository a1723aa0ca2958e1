"""The card of a data set, README.md, says which files are which set and split: what it says is not mixed up."""

from pathlib import Path

import numpy as np
import pytest

from fleetune.contracts.run_config import DataRequest
from fleetune.data.sources import validate_data
from fleetune.errors import Refused
from tests.support.data.samples import FRUITS, IMAGES, json_lines, prepared

SETS = """configs:
- config_name: cola
  data_files:
  - {split: train, path: cola/train-*}
  - {split: validation, path: "cola/{validation,dev}-*"}
- config_name: sst2
  data_dir: sst2
- config_name: gone
  data_files: [gone/*.jsonl]
"""
ONE = """configs:
- config_name: default
  data_files:
  - split: train
    path: [./a.jsonl, more]
  - {split: test, path: "b*"}
"""


def card_of(files: str, *splits: str) -> str:
    """The card of one set, whose splits have their names in a folder."""
    given = "".join(f"  - {{split: {split}, path: {files}/{split}-*}}\n" for split in splits)
    return f"configs:\n- config_name: default\n  data_files:\n{given}"


def folder(place: Path, card: str, *names: str) -> str:
    """A folder with a card and files of these names."""
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        json_lines(place / name, FRUITS)
    (place / "README.md").write_text(f"---\nlanguage: en\n{card}---\n# A set\n")
    return str(place)


def check(source: str) -> None:
    """What happens before a run starts."""
    validate_data(DataRequest(source=source), "sequence-classification")


GLUE = ("cola/train-0.jsonl", "cola/validation-0.jsonl", "sst2/train-0.jsonl", "sst2/validation-0.jsonl")


def test_several_sets_are_not_mixed(tmp_path: Path) -> None:
    """Bug: a clone of GLUE trained on all of its sets as one. They are named, and the folder of one is read."""
    source = folder(tmp_path / "glue", SETS, *GLUE)
    with pytest.raises(Refused, match=r"several sets \(cola: cola/train-0.jsonl, .*; sst2: sst2/.*\); set data.source"):
        check(source)
    data = prepared(tmp_path / "d", tmp_path / "glue" / "cola")
    assert (data.size("train"), data.size("test")) == (20, 20)


def test_several_sets_of_images_are_not_mixed(tmp_path: Path) -> None:
    """They became classes, of the names of the sets."""
    for name in ("cola/train/cat/1.npy", "sst2/train/dog/1.npy"):
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        np.save(tmp_path / "set" / name, np.zeros((8, 8), dtype=np.uint8))
    with pytest.raises(Refused, match=r"several sets \(cola: cola/train/cat/1.npy; sst2: .*\); set data.source to the"):
        prepared(tmp_path / "d", folder(tmp_path / "set", SETS.replace("train-*", "train/**")), IMAGES)


def test_the_only_set_that_was_downloaded_is_read(tmp_path: Path) -> None:
    """Sets of the card without a file in the folder do not count."""
    check(folder(tmp_path / "glue", SETS, *GLUE[:2]))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a.jsonl", "b.jsonl"), r"b\.jsonl would be read as train, and its README.md says that it is test; list"),
        (("a.jsonl", "more/x.jsonl", "c.jsonl"), r"c\.jsonl would be read as train, .* is no part of the set"),
    ],
)
def test_splits_of_the_card_that_names_do_not_tell_are_refused(
    names: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    """Bug: what the card calls the test split was trained on."""
    with pytest.raises(Refused, match=says):
        check(folder(tmp_path / "set", ONE, *names))


@pytest.mark.parametrize(
    "card",
    [
        "configs:\n- config_name: all\n  data_files: '*.jsonl'\n",
        "configs:\n- data_files: [{split: full, path: a.jsonl}]\n",
        "configs:\n- {config_name: default, data_dir: '.'}\n",
        "configs:\n- data_files: '**/*.jsonl'\n",
        "license: mit\n",
    ],
)
def test_a_card_that_agrees_changes_nothing(card: str, tmp_path: Path) -> None:
    """One set, in the splits that names tell, is read as without a card."""
    check(folder(tmp_path / "set", card, "a.jsonl"))


@pytest.mark.parametrize(
    ("split", "name"), [("validation", "dev.jsonl"), ("test", "eval.jsonl"), ("dev", "val-0.jsonl")]
)
def test_test_splits_may_be_called_otherwise(split: str, name: str, tmp_path: Path) -> None:
    """Bug: a card that calls dev.jsonl the validation split was refused, though both say that it is tested on."""
    card = f"configs:\n- data_files:\n  - {{split: train, path: train.jsonl}}\n  - {{split: {split}, path: {name}}}\n"
    check(folder(tmp_path / "set", card, "train.jsonl", name))


def test_a_card_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """What it says of its sets is not passed over."""
    with pytest.raises(Refused, match=r"its README\.md cannot be read \(\w+\); mend or remove it"):
        check(folder(tmp_path / "set", "configs: [a, }\n", "a.jsonl"))


GENERATED = card_of("data", "train_sft", "train_gen", "test_sft", "test_gen")


@pytest.mark.parametrize(("split", "other"), [("train", "test"), ("test", "train")])
def test_splits_of_the_card_are_not_merged(split: str, other: str, tmp_path: Path) -> None:
    """Bug: splits such as train_sft and train_gen, which are other samples for another use, were read as one."""
    names = [f"data/{split}_{kind}-0.jsonl" for kind in ("sft", "gen")]
    source = folder(tmp_path / "set", GENERATED, *names, f"data/{other}_sft-0.jsonl")
    said = rf"gen-0.jsonl, .* as {split} together, .* has the splits {split}_gen and {split}_sft of them; list what"
    with pytest.raises(Refused, match=said):
        check(source)
    listed = tuple(f"{source}/data/{name}_sft-0.jsonl" for name in ("train", "test"))
    assert prepared(tmp_path / "d", "", files=listed).size("test") == 20
    (tmp_path / "set" / names[1]).unlink()
    check(source)


MATCHED = """configs:
- data_files:
  - {split: train, path: train.jsonl}
  - {split: validation_matched, path: validation_matched.jsonl}
  - {split: validation_mismatched, path: validation_mismatched.jsonl}
  - {split: test, path: test.jsonl}
"""


def test_splits_of_the_card_that_choose_states_are_not_merged(tmp_path: Path) -> None:
    """Bug: beside a test split, two validation splits were joined in silence, and states chosen by both. They are left
    unread, which is told; without labels in test they would be tested on as one, and are refused. One of them is read.
    """
    names = ("train.jsonl", "validation_matched.jsonl", "validation_mismatched.jsonl", "test.jsonl")
    source = folder(tmp_path / "set", MATCHED, *names)
    data = prepared(tmp_path / "both", source)
    assert [split.name for split in data.info.splits] == ["train", "test"]
    assert any(note.endswith("test is tested on; not read: validation") for note in data.info.notes)
    json_lines(tmp_path / "set" / "test.jsonl", [{**row, "label": -1} for row in FRUITS])
    with pytest.raises(Refused, match="as validation together, .* has the splits validation_matched and validation_mi"):
        check(source)
    folder(tmp_path / "set", MATCHED, "test.jsonl")
    (tmp_path / "set" / names[2]).unlink()
    assert prepared(tmp_path / "d", source).size("validation") == len(FRUITS)


def test_a_split_that_is_part_of_another_is_read_with_it(tmp_path: Path) -> None:
    """Files that are all in one split of the card are that split, whatever else some of them are in."""
    card = ONE.replace("[./a.jsonl, more]", "a*.jsonl\n  - {split: train_small, path: a1.jsonl}")
    check(folder(tmp_path / "set", card, "a1.jsonl", "a2.jsonl"))


REVIEWS = card_of("plain_text", "train", "test", "unsupervised")


def test_a_split_of_the_card_that_is_not_read_is_told(tmp_path: Path) -> None:
    """Bug: a clone of imdb was refused, since its unlabelled texts name no split that trains or tests; its card does
    name one, and by hub name the same set is read."""
    names = [f"plain_text/{split}-00000-of-00001.jsonl" for split in ("train", "test", "unsupervised")]
    source = folder(tmp_path / "imdb", REVIEWS, *names)
    data = prepared(tmp_path / "d", source)
    assert (data.size("train"), data.size("test")) == (20, 20)
    assert "of the splits of imdb, test is tested on; not read: unsupervised" in data.info.notes
    json_lines(tmp_path / "imdb" / "plain_text" / "more.jsonl", FRUITS)
    with pytest.raises(Refused, match="names what to train on, so plain_text/more.jsonl would not be read"):
        check(source)
