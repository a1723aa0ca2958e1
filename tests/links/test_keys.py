"""Key pairs."""

import pytest

from fleetune.errors import Refused
from fleetune.links.keys import KeyPair, is_key, new_key_pair


def test_the_secret_never_shows() -> None:
    """Neither repr nor str nor formatting of a pair, alone or inside something, contains the secret."""
    pair = new_key_pair()
    secret = pair.secret.decode()
    assert secret not in f"{pair} {pair!r} {[pair]} {dict(a=pair)}"


def test_pairs_differ() -> None:
    """Every pair is new."""
    assert len({new_key_pair().secret for _ in range(10)}) == 10


@pytest.mark.parametrize("value", [b"", b"short", b"\xff" * 40, b"#" * 40, "x" * 40, b"0" * 41])
def test_what_is_no_key_is_refused_without_showing_it(value: object) -> None:
    """A malformed half is refused, and the message does not repeat what might be a secret."""
    assert not is_key(value)
    good = new_key_pair()
    with pytest.raises(Refused, match="the secret key must be 40 bytes") as refusal:
        KeyPair(public=good.public, secret=value)  # type: ignore[arg-type]
    assert str(value) not in str(refusal.value) or value in (b"", "")
