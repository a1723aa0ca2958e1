"""Bodies of requests, which have a bound: whoever reads one keeps it in memory."""

from flows.service.asgi import Application, Message, Receive, Send

MOST_BYTES = 16 << 20
"""A longer body is refused. Prefect's clients send logs in parts of 4 MB, and the pages of a run are smaller."""
TOO_LONG = f"refused: the body of a request may have {MOST_BYTES >> 20} MiB at most"


class BoundedBodies:
    """An ASGI application before those that read bodies: it answers a longer one than MOST_BYTES itself."""

    def __init__(self, server: Application) -> None:
        self._server = server

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._server(scope, receive, send)
        read_bytes, answered, refused = 0, False, False

        async def bounded() -> Message:
            nonlocal read_bytes, refused
            message: Message = {"type": "http.disconnect"} if refused else await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes <= MOST_BYTES:
                return message
            if not refused and not answered:
                await _refuse(scope, receive, send)
            refused = True
            return {"type": "http.disconnect"}

        async def answer(message: Message) -> None:
            nonlocal answered
            answered = True
            if not refused:
                await send(message)

        await self._server(scope, bounded, answer)


async def _refuse(scope: Message, receive: Receive, send: Send) -> None:
    from starlette.responses import JSONResponse

    end = {"Connection": "close"}  # else the rest of the body would be awaited
    await JSONResponse({"detail": TOO_LONG}, status_code=413, headers=end)(scope, receive, send)


async def read_body(receive: Receive) -> bytes | None:
    """The whole body of a request; None where the client has gone before its end."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
    return None
