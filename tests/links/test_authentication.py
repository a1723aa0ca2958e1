"""Key pairs, the authenticator's replies and the replay guard."""

import pytest
from zmq.utils import z85

from fleetune.errors import Refused
from fleetune.links import authentication
from fleetune.links.authentication import KeyPair, ReplayGuard, is_curve_key, new_key_pair, zap_reply
from tests.support.links.ends import KEYS


def test_the_secret_key_is_never_shown() -> None:
    """No repr, str or formatting of a pair contains its secret."""
    pair = new_key_pair()
    secret = pair.secret.decode()
    assert secret not in f"{pair} {pair!r} {[pair]} {dict(a=pair)}"


def test_pairs_differ() -> None:
    """Every pair is new."""
    assert len({new_key_pair().secret for _ in range(10)}) == 10


@pytest.mark.parametrize("value", [b"", b"short", b"\xff" * 40, b"#" * 40, "x" * 40, b"0" * 41])
def test_a_malformed_key_is_refused_without_showing_it(value: object) -> None:
    """A malformed half is refused, and the message does not repeat it."""
    assert not is_curve_key(value)
    good = new_key_pair()
    with pytest.raises(Refused, match="the secret key must be 40 bytes") as refusal:
        KeyPair(public=good.public, secret=value)  # type: ignore[arg-type]
    assert str(value) not in str(refusal.value) or value in (b"", "")


NAMES = {KEYS["ann"].public: "ann"}


def request(**changes: bytes) -> list[bytes]:
    """A well-formed request of ann, with changes."""
    fields = {
        "version": b"1.0",
        "id": b"7",
        "domain": authentication.ZAP_DOMAIN,
        "address": b"127.0.0.1",
        "identity": b"bob",
        "mechanism": b"CURVE",
        "key": z85.decode(KEYS["ann"].public),
    }
    return list({**fields, **changes}.values())


def test_the_public_key_determines_the_name() -> None:
    """A listed key is admitted under its listed name, regardless of the identity that the client claims."""
    assert zap_reply(request(), NAMES) == ([b"1.0", b"7", b"200", b"OK", b"ann", b""], "ann")


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
def test_other_clients_are_rejected(changes: dict[str, bytes]) -> None:
    """An unlisted key, another mechanism, or a malformed request gets status 400 and no name."""
    reply, name = zap_reply(request(**changes), NAMES)
    assert (reply[2], reply[4], name) == (b"400", b"", None)


def test_an_empty_request_gets_an_answer() -> None:
    """A request without frames is answered without an exception."""
    assert zap_reply([], NAMES)[1] is None


def test_sequences_only_ascend_within_a_session() -> None:
    """The guard counts gaps and refuses repeats and steps back, separately per session and sender."""
    guard = ReplayGuard()
    told = [("a", "x", 0), ("a", "x", 5), ("a", "y", 3), ("b", "x", 0), ("a", "y", 4)]
    assert [guard.advance(*each) for each in told] == [0, 4, 3, 0, 0]
    for number in (5, 4, 0):
        with pytest.raises(Refused, match="replayed or out of order"):
            guard.advance("a", "x", number)
    guard.advance("a", "x", 6)


def test_sessions_of_a_sender_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of a listed client are limited in number, and its known sessions continue."""
    monkeypatch.setattr(authentication, "MAX_SESSIONS", 2)
    guard = ReplayGuard()
    guard.advance("a", "x", 0)
    guard.advance("a", "y", 0)
    with pytest.raises(Refused, match="more than 2 sessions"):
        guard.advance("a", "z", 0)
    guard.advance("a", "x", 1)
