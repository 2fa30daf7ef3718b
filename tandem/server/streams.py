"""Server-sent events, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.server.queries import RunningQuery

T = TypeVar("T")
LOOKS = 4
"""At a client within the time in which it has to read."""
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
        self._sending_since_s: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond; raises ClientLeftError."""
        try:
            await while_connected(receive, self._send_all(send), self._wait_for_stall())
        finally:
            await self._query.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for text in self._texts:
            self._sending_since_s = time.monotonic()
            await send(
                {"type": "http.response.body", "body": text, "more_body": True}
            )  # waits for a full socket
            self._sending_since_s = None
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait_for_stall(self) -> None:
        """One look now and then costs less than a timeout for every text."""
        while True:
            await asyncio.sleep(self._send_timeout_s / LOOKS)
            since_s = self._sending_since_s
            if since_s is not None and time.monotonic() - since_s > self._send_timeout_s:
                return


def encode_event(name: str | None, data: str) -> bytes:
    """One server-sent event. data: without line breaks, as JSON has it."""
    return (f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n").encode()


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, None]
) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientLeftError then.

    receive: of a request whose body was read. ends: further waits, each until the client counts as gone.
    """
    working = asyncio.create_task(work)
    leaving = [asyncio.create_task(end) for end in (_wait_for_disconnect(receive), *ends)]
    try:
        await asyncio.wait({working, *leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        for task in (working, *leaving):
            task.cancel()
        await asyncio.gather(working, *leaving, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
