"""Calls of a service's server by its keeper, without Prefect's client, whose import takes seconds."""

import base64
import http.client
import json
from typing import Any

from flows.prefect_server import HOST

TIMEOUT_S = 10.0
ERRORS = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError)
"""What a server that is away, busy or of another version leads to."""


class ServerApi:
    """Prefect's API of the server on a port of this machine."""

    def __init__(self, port: int, auth_string: str) -> None:
        """`auth_string`: the server's, or empty."""
        self._port = port
        token = base64.b64encode(auth_string.encode()).decode()
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Basic {token}"} if auth_string else {}
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's document; None where there is no such thing. Raises one of ERRORS."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, f"/api{path}", None if body is None else json.dumps(body), self._headers)
            answer = connection.getresponse()
            if answer.status == http.client.NOT_FOUND:
                return None
            if answer.status not in (http.client.OK, http.client.CREATED):
                raise http.client.HTTPException(f"{path}: {answer.status}")
            return json.loads(answer.read())
        finally:
            connection.close()
