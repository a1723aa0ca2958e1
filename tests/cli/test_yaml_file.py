"""YAML of run files is read strictly."""

from pathlib import Path

import pytest

from fleetune.contracts import json_io
from fleetune.errors import Refused
from flows import yaml_file
from tests.support.contracts.limits import BEYOND


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a: 1\nb: [2\nc: 3\n", "line 3"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: key 'a' is given twice"),
        ("a:\n  b: 1\n  b: 2\n", "line 3, column 3: key 'b' is given twice"),
        ("a: &x 1\nb: *x\n", "line 2, column 4: aliases"),
        ("a: !!python/object/apply:os.getcwd []\n", "line 1"),
        ("a:\n  b: .nan\n", "a.b: nan is not a finite number"),
        ("a: [1, -.inf]\n", "a.1: -inf is not a finite number"),
        ("day: 2026-01-01\n", "day: 2026-01-01 is a date; put text in quotes"),
        ("1: one\n", "line 1, column 1: a key must be text"),
        ("? [a]\n: b\n", "a key must be text"),
        ("a: b: c\n", "line 1"),
        ("a: 1\nb: \x07\n", "line 2: character U+0007 is not allowed in YAML"),
        ("- 1\n- 2\n", "it holds a list; a mapping"),
        ("", "it holds nothing; a mapping"),
        ("[" * 5000, "x.yaml"),
    ],
)
def test_refused(tmp_path: Path, source: str, said: str) -> None:
    """Ambiguous YAML is refused in one line, with the file and the position."""
    path = tmp_path / "x.yaml"
    path.write_text(source)
    with pytest.raises(Refused) as refusal:
        yaml_file.read(path)
    assert str(path) in str(refusal.value)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00a", b"a: \xc3\x28\n"])
def test_not_text(tmp_path: Path, content: bytes) -> None:
    """A file that is not UTF-8 is refused by name."""
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(Refused, match=r"x\.yaml: line 1: byte 0x\w\w is not text in UTF-8"):
        yaml_file.read(path)


def test_missing(tmp_path: Path) -> None:
    """A missing file and a folder in its place are refused by name, with the reason."""
    with pytest.raises(Refused, match=r"none\.yaml: cannot be read \(No such file"):
        yaml_file.read(tmp_path / "none.yaml")
    with pytest.raises(Refused, match=r"cannot be read \(Is a directory"):
        yaml_file.read(tmp_path)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1e-4", 1e-4),
        ("5E3", 5000.0),
        (".5e1", 5.0),
        ("10", 10),
        ("null", None),
        ("[[a], [b, c]]", [["a"], ["b", "c"]]),
    ],
)
def test_values(source: str, value: object) -> None:
    """Values are as in JSON; 1e-4 is a number."""
    assert yaml_file.parse(source, "--set") == value


@pytest.mark.parametrize("text", BEYOND)
def test_numbers_without_end_and_depths_without_floor(text: str) -> None:
    """They are refused as in JSON, in one sentence, without a traceback."""
    with pytest.raises(Refused):
        yaml_file.parse(f"a: {text}", "it")


def test_what_is_deep_and_fits() -> None:
    """YAML may be as deep as JSON."""
    deep = "[" * 100 + "]" * 100
    assert yaml_file.parse(deep, "it") == json_io.parse_plain(deep, "it")
