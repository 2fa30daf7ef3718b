"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.server.queries import RunningQuery

T = TypeVar("T")
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Neither kept nor held back by a proxy."""


class ClientLeftError(Exception):
    """The client has closed its connection, or does not read."""


class EventStream(Response):
    """Sends texts as they come. The query ends with the stream: at its end, or when the client leaves or stalls."""

    media_type = "text/event-stream"

    def __init__(self, texts: AsyncIterator[bytes], query: RunningQuery, send_timeout_s: float) -> None:
        """texts: encoded events of `query`. send_timeout_s: how long a client that does not read is waited for."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._texts = texts
        self._query = query
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond; raises ClientLeftError."""
        try:
            await while_connected(receive, self._send_all(send))
        finally:
            await self._query.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for text in self._texts:
            await self._send_body(send, text, more=True)
        await self._send_body(send, b"", more=False)

    async def _send_body(self, send: Send, body: bytes, *, more: bool) -> None:
        """Waits while the client's socket is full."""
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientLeftError from None


def encode_event(name: str | None, data: str) -> bytes:
    """One server-sent event. data: without line breaks, as JSON has it."""
    return (f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n").encode()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientLeftError then.

    receive: of a request whose body was read.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
