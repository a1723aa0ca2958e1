"""Who and what may pass: the answer to a connecting client (ZAP, ZeroMQ RFC 27), and order within a session."""

from collections.abc import Mapping, Sequence

import zmq
from zmq.utils import z85

from fleetune.errors import Refused

ZAP_DOMAIN = b"fleetune"
MAX_SESSIONS = 1024


def zap_answer(request: Sequence[bytes], names: Mapping[bytes, str]) -> tuple[list[bytes], str | None]:
    """Reply frames for one request, and the name of the admitted peer (None: turned away).

    `names` maps public keys (Z85) to peers. The name becomes the connection's User-Id, which a client cannot choose.
    """
    version, request_id = (*request, b"", b"")[:2]
    name = None
    if len(request) == 7 and version == b"1.0" and request[2] == ZAP_DOMAIN and request[5] == b"CURVE":
        key = request[6]
        name = names.get(z85.encode(key)) if len(key) == 32 else None
    if name is None:
        return [b"1.0", request_id, b"400", b"not on the list of this run", b"", b""], None
    return [b"1.0", request_id, b"200", b"OK", name.encode(), b""], name


class Sequences:
    """Newest sequence number of every (sender, session): frames that come again or late are refused."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, int]] = {}

    def advance(self, sender: str, session: str, sequence: int) -> int:
        """Accept `sequence` if it is above all earlier ones of that session.

        Returns how many before this one never came (they were under way when a connection broke).
        """
        sessions = self._newest.setdefault(sender, {})
        if session not in sessions and len(sessions) >= MAX_SESSIONS:
            raise Refused(f"more than {MAX_SESSIONS} sessions")
        newest = sessions.get(session, -1)
        if sequence <= newest:
            raise Refused(f"sequence {sequence} after {newest}: replayed or out of order")
        sessions[session] = sequence
        return sequence - newest - 1


def open_only_to_curve(socket: zmq.Socket[bytes], secret: bytes) -> None:
    """Make a socket a CURVE server whose clients must pass the gate; before it is bound."""
    socket.curve_server = True
    socket.curve_secretkey = secret
    socket.zap_domain = ZAP_DOMAIN
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
