"""CURVE key pairs: who a process is on the links of one run."""

import struct
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from fleetune.errors import Refused

Z85_BYTES = 40


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A Curve25519 pair, each half as 40 bytes of Z85 text; the secret half never shows in repr() or str()."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for half, value in (("public", self.public), ("secret", self.secret)):
            if not is_key(value):
                raise Refused(f"key pair: the {half} key must be {Z85_BYTES} bytes of Z85 text; use new_key_pair()")


def new_key_pair() -> KeyPair:
    """A fresh pair from the system's randomness."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public, secret=secret)


def is_key(value: object) -> bool:
    """Whether `value` is one half of a pair as it is written here."""
    if not isinstance(value, bytes) or len(value) != Z85_BYTES:
        return False
    try:
        return len(z85.decode(value)) == 32
    except (KeyError, struct.error):  # a character outside the alphabet; five that make no 32-bit number
        return False
