"""Token that a host and its devices share, and the two key pairs derived from it.

An eavesdropper can test guessed tokens offline, so a token needs high entropy; `new_token` generates one.
"""

import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from zmq.utils import z85

from fleetune.errors import Refused
from fleetune.links.authentication import KeyPair

MIN_CHARACTERS = 16
MAX_BYTES = 4096
TOKEN_BYTES = 32
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKeys:
    """Key pairs of the host and of the devices; all devices with a token share one pair."""

    host: KeyPair
    device: KeyPair


def read_token(path: Path) -> str:
    """Read a token, stripped of surrounding white space; Refused if others can read or change the file."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refused(
            f"{path}: cannot be read ({error.strerror}); give the file with the token: "
            f"fleetune join --new-token {path} writes one"
        ) from None
    if mode & OTHERS:
        raise Refused(f"{path}: others can read or change this token ({stat.filemode(mode)}); run: chmod 600 {path}")
    try:
        token = raw.decode().strip()
    except UnicodeDecodeError:
        raise Refused(f"{path}: a token is text; fleetune join --new-token FILE writes one") from None
    if not MIN_CHARACTERS <= len(token) <= MAX_BYTES:
        raise Refused(
            f"{path}: a token has {MIN_CHARACTERS} to {MAX_BYTES} characters (got {len(token)}); "
            "fleetune join --new-token FILE writes one"
        )
    return token


def new_token(path: Path, chance: Callable[[int], str] = secrets.token_urlsafe) -> None:
    """Write a random token to a new file with mode 600; Refused if the file exists."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(f"{path}: it exists, and may be a token in use; give a new file, or remove it first") from None
    except OSError as error:
        raise Refused(f"{path}: cannot be written ({error.strerror}); give another file") from None
    with os.fdopen(file, "w", encoding="utf-8") as text:
        text.write(chance(TOKEN_BYTES) + "\n")


def derive_keys(token: str) -> TokenKeys:
    """Derive the key pairs of both sides from a token by HKDF; deterministic."""
    return TokenKeys(host=_pair(token, b"fleetune host"), device=_pair(token, b"fleetune device"))


def _pair(token: str, label: bytes) -> KeyPair:
    raw = HKDF(algorithm=SHA256(), length=32, salt=None, info=label).derive(token.encode())
    secret = z85.encode(raw)
    return KeyPair(public=zmq.curve_public(secret), secret=secret)
