"""The token, its file, and the keys derived from it."""

import stat
from pathlib import Path

import pytest

from fleetune.discovery.joining.credentials import derive_keys, new_token, read_token
from fleetune.errors import Refused
from tests.support.discovery.joining.both_sides import token_file


def test_both_sides_derive_the_same() -> None:
    """Equal tokens give equal pairs, other tokens others; one known key fixes the derivation for all versions."""
    ours, again, others = (
        derive_keys("correct horse battery"),
        derive_keys("correct horse battery"),
        derive_keys("correct horse batterx"),
    )
    assert ours == again
    keys = {pair.secret for both in (ours, others) for pair in (both.host, both.device)}
    keys |= {pair.public for both in (ours, others) for pair in (both.host, both.device)}
    assert len(keys) == 8
    assert ours.host.public == b"g7pP[eyXr5Lz$xuC@nQ)IkrF598gPk<U(PXzt8)6"
    assert ours.host.secret.decode() not in repr(ours)


def test_a_new_token(tmp_path: Path) -> None:
    """A new token is random, long, readable by its owner only, and overwrites no file."""
    for name in ("a", "b"):
        new_token(tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    a, b = read_token(tmp_path / "a"), read_token(tmp_path / "b")
    assert a != b and len(a) >= 43
    with pytest.raises(Refused, match="it exists, and may be a token in use"):
        new_token(tmp_path / "a")
    assert read_token(tmp_path / "a") == a
    new_token(tmp_path / "c", random_text=lambda count: "x" * count)
    assert read_token(tmp_path / "c") == "x" * 32


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o601])
def test_a_token_that_others_can_read(tmp_path: Path, mode: int) -> None:
    """A token that others can read or change is refused with the command that fixes it."""
    path = token_file(tmp_path)
    path.chmod(mode)
    with pytest.raises(Refused, match=f"others can read or change this token .*; run: chmod 600 {path}"):
        read_token(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"fifteen letters", "16 to 4096 characters .got 15."),
        (b" \n" * 50, "16 to 4096 characters .got 0."),
        (b"x" * 5000, "16 to 4096 characters"),
        (b"\xff" * 20, "a token is text"),
    ],
)
def test_invalid_tokens(tmp_path: Path, content: bytes, said: str) -> None:
    """Tokens that are too short, too long or not text are refused with the command that writes a good one."""
    path = token_file(tmp_path)
    path.write_bytes(content)
    with pytest.raises(Refused, match=said + ".*fleetune join --new-token"):
        read_token(path)


def test_missing_token_files(tmp_path: Path) -> None:
    """A missing file and a folder are refused as token files; so is writing to a missing folder."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(Refused, match="cannot be read .*fleetune join --new-token"):
            read_token(path)
    with pytest.raises(Refused, match="cannot be written"):
        new_token(tmp_path / "none" / "token")
