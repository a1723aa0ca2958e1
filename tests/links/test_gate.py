"""The authenticator's answers and the order within a session."""

import pytest
from zmq.utils import z85

from fleetune.errors import Refused
from fleetune.links import gate
from fleetune.links.gate import Sequences, zap_answer
from tests.links.ends import KEYS

NAMES = {KEYS["ann"].public: "ann"}


def request(**changes: bytes) -> list[bytes]:
    """A well-formed request of ann, with changes."""
    fields = {
        "version": b"1.0",
        "id": b"7",
        "domain": gate.ZAP_DOMAIN,
        "address": b"127.0.0.1",
        "identity": b"bob",
        "mechanism": b"CURVE",
        "key": z85.decode(KEYS["ann"].public),
    }
    return list({**fields, **changes}.values())


def test_the_key_makes_the_name() -> None:
    """A listed key is admitted under the name on the list, whatever identity its owner claims."""
    assert zap_answer(request(), NAMES) == ([b"1.0", b"7", b"200", b"OK", b"ann", b""], "ann")


@pytest.mark.parametrize(
    "changes",
    [
        {"key": z85.decode(KEYS["eve"].public)},
        {"key": b""},
        {"key": b"short"},
        {"mechanism": b"NULL"},
        {"mechanism": b"PLAIN"},
        {"domain": b"other"},
        {"version": b"2.0"},
        {"more": b"frame"},
    ],
)
def test_anything_else_is_turned_away(changes: dict[str, bytes]) -> None:
    """A key off the list, another mechanism, or a malformed request gets status 400 and no name."""
    reply, name = zap_answer(request(**changes), NAMES)
    assert (reply[2], reply[4], name) == (b"400", b"", None)


def test_an_empty_request_gets_an_answer() -> None:
    """Even no frames at all are answered, not raised at."""
    assert zap_answer([], NAMES)[1] is None


def test_sequences_only_ascend_within_a_session() -> None:
    """Gaps are counted, before the first too; repeats and steps back are refused; sessions and senders do not mix."""
    sequences = Sequences()
    told = [("a", "x", 0), ("a", "x", 5), ("a", "y", 3), ("b", "x", 0), ("a", "y", 4)]
    assert [sequences.advance(*each) for each in told] == [0, 4, 3, 0, 0]
    for number in (5, 4, 0):
        with pytest.raises(Refused, match="replayed or out of order"):
            sequences.advance("a", "x", number)
    sequences.advance("a", "x", 6)


def test_sessions_of_a_sender_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listed client cannot fill the memory with new sessions, and its known ones go on."""
    monkeypatch.setattr(gate, "MAX_SESSIONS", 2)
    sequences = Sequences()
    sequences.advance("a", "x", 0)
    sequences.advance("a", "y", 0)
    with pytest.raises(Refused, match="more than 2 sessions"):
        sequences.advance("a", "z", 0)
    sequences.advance("a", "x", 1)
