"""Well-formed JSON that is refused nevertheless."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetune.contracts import json_io
from fleetune.contracts.fleet_request import FleetRequest
from fleetune.contracts.record import record
from fleetune.errors import Refused
from fleetune.links.message import Message, header_frame, parse_header
from fleetune.solving import kinds, read
from tests.support.contracts.limits import BEYOND
from tests.support.filesystem.synced import recorded

Door = Callable[[str], Any]


@record
class Progressed:
    """A record of one number."""

    done: int


def by_wire(text: str) -> Any:
    return json_io.parse(FleetRequest, f'{{"tolerance": {text}}}', "it")


def by_solve(text: str) -> Any:
    return read(f'{{"kind": "hpp", "micro_batch": {text}}}', "it", kinds())


def by_link(text: str) -> Any:
    frame = header_frame(Message("k", {"a": "HERE"}), [], run="r", session="s", sequence=0)
    return parse_header(frame.replace(b'"HERE"', text.encode()))


DOORS = [by_wire, by_solve, by_link]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("text", BEYOND)
def test_numbers_without_end_and_depths_without_floor(door: Door, text: str) -> None:
    """1e999 parses to infinity and 200,000 brackets overflow the stack: every parser refuses both in one sentence,
    without a traceback."""
    with pytest.raises(Refused):
        door(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1e999", "it: not JSON (1e999 is too large for a number)"),
        ("9" * 301, "is too large for a number"),
        ("[" * 101 + "]" * 101, "it: values are nested deeper than 100 levels; make it flatter"),
        ("[" * 200_000, "it: JSON is nested deeper than 100 levels"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    """The error names the owner and the number."""
    with pytest.raises(Refused) as error:
        json_io.parse_plain(text, "it")
    assert says in str(error.value) and len(str(error.value)) < 200


def test_what_is_large_and_fits() -> None:
    """Values just within the limits are accepted."""
    deep = "[" * 100 + "]" * 100
    assert json_io.parse_plain(f'[1e308, {2**62}, "{"[" * 500}"]', "it")[:2] == [1e308, 2**62]
    assert json_io.parse_plain(deep, "it") == json.loads(deep)


def test_a_record_is_on_disk_when_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a file that has its name is not empty."""
    done = recorded(monkeypatch)
    json_io.write(Progressed(done=3), tmp_path / "deep" / "x.json")
    path = tmp_path / "deep" / "x.json"
    (part, *after) = done
    assert Path(part).parent == path.parent and after == [f"=> {path}", str(path.parent)]
    assert json.loads(path.read_text()) == {"done": 3}
