"""What ASGI applications are made of: their types, and messages that are read again."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


def replay(messages: Sequence[Message], receive: Receive) -> Receive:
    """What an application receives of a request of which `messages` were received already."""
    left = [*reversed(messages)]

    async def read() -> Message:
        return left.pop() if left else await receive()

    return read
