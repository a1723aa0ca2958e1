"""What a process writes is read as far as it is of the protocol."""

import pytest

from fleetune.contracts.task import message_of


@pytest.mark.parametrize(
    "line",
    ["", "3", "null", '"event"', "[1]", '{"event": 3}', '{"a": 1}', '{"event": "progress", "done": "x", "total": 2}',
     '{"event": "progress", "done": null}', '{"event": "progress", "done": NaN}', '{"event": "pro', "[" * 100_000],
    ids=lambda line: line[:40],
)  # fmt: skip
def test_other_lines_are_no_messages(line: str) -> None:
    """Bug: a number that a library printed, or an amount that is none, ended a run with a raw error."""
    assert message_of(line) == {}


def test_a_message_is_read() -> None:
    """The words of a message are those that were written."""
    assert message_of('{"event": "progress", "done": 1, "total": 2}\n')["done"] == 1
