"""Authentication: CURVE key pairs, the ZAP reply to a connecting client (ZeroMQ RFC 27), and the replay guard."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from fleetune.errors import Refused

Z85_BYTES = 40


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Curve25519 key pair, each half as 40 bytes of Z85 text; repr() and str() omit the secret half."""

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for half, value in (("public", self.public), ("secret", self.secret)):
            if not is_curve_key(value):
                raise Refused(f"key pair: the {half} key must be {Z85_BYTES} bytes of Z85 text; use new_key_pair()")


def new_key_pair() -> KeyPair:
    """Generate a key pair from the system's random source."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public, secret=secret)


def is_curve_key(value: object) -> bool:
    """Return whether `value` is 40 bytes of Z85 text for a 32-byte key."""
    if not isinstance(value, bytes) or len(value) != Z85_BYTES:
        return False
    try:
        return len(z85.decode(value)) == 32
    except (KeyError, struct.error):  # invalid character; five characters beyond 32 bits
        return False


ZAP_DOMAIN = b"fleetune"
MAX_SESSIONS = 1024


def zap_reply(request: Sequence[bytes], names: Mapping[bytes, str]) -> tuple[list[bytes], str | None]:
    """Return reply frames to one ZAP request, and the name of the admitted peer (None: rejected).

    `names` maps public keys (Z85) to peer names. The name becomes the connection's User-Id, which clients cannot set.
    """
    version, request_id = (*request, b"", b"")[:2]
    name = None
    if len(request) == 7 and version == b"1.0" and request[2] == ZAP_DOMAIN and request[5] == b"CURVE":
        key = request[6]
        name = names.get(z85.encode(key)) if len(key) == 32 else None
    if name is None:
        return [b"1.0", request_id, b"400", b"not on the list of this run", b"", b""], None
    return [b"1.0", request_id, b"200", b"OK", name.encode(), b""], name


class ReplayGuard:
    """Rejects replayed and reordered messages by the newest sequence number of every (sender, session)."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, int]] = {}

    def advance(self, sender: str, session: str, sequence: int) -> int:
        """Accept `sequence` if it is above all earlier ones of the session, else raise Refused.

        Returns the number of skipped messages, which were lost when a connection broke.
        """
        sessions = self._newest.setdefault(sender, {})
        if session not in sessions and len(sessions) >= MAX_SESSIONS:
            raise Refused(f"more than {MAX_SESSIONS} sessions")
        newest = sessions.get(session, -1)
        if sequence <= newest:
            raise Refused(f"sequence {sequence} after {newest}: replayed or out of order")
        sessions[session] = sequence
        return sequence - newest - 1


def configure_curve_server(socket: zmq.Socket[bytes], secret: bytes) -> None:
    """Make a socket a CURVE server that authenticates clients by ZAP; call it before the socket is bound."""
    socket.curve_server = True
    socket.curve_secretkey = secret
    socket.zap_domain = ZAP_DOMAIN
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
