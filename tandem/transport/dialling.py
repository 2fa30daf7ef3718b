"""Opening a connection to an actor that may be away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tandem.errors import ProtocolError
from tandem.transport.connection import Connection

RETRY_S = 0.5
"""Between the beginnings of the first two attempts, and whenever somebody waits for the connection."""
MAX_RETRY_S = 8.0
"""Longest time between the beginnings of two attempts, which doubles while nobody waits."""
MAX_ATTEMPTS = 10
"""That are under way at once: as many as begin within the time that one may take, so that there is always a new one."""

Attempt = Callable[[], Coroutine[Any, Any, Connection]]
"""One attempt at a proven connection; raises OSError, TimeoutError or ProtocolError."""


class Dialling:
    """Attempts at one connection until one of them succeeds.

    An attempt does not wait for the end of the one before: what was sent into a link that was cut is repeated by TCP
    after 1, 3 and 7 s only, while the link may be back.
    """

    def __init__(self, attempt: Attempt, on_refusal: Callable[[ProtocolError], None]) -> None:
        """on_refusal is told of refusals, and may raise to give up."""
        self._attempt = attempt
        self._on_refusal = on_refusal
        self._wait_s = RETRY_S
        self._begun_s = self._next_s = 0.0  # of the event loop's clock
        self._attempts: set[asyncio.Task[Connection]] = set()

    def hurry(self) -> None:
        """Somebody waits: try again soon, and often."""
        self._wait_s = RETRY_S
        self._next_s = min(self._next_s, self._begun_s + RETRY_S)

    async def run(self) -> Connection:
        """The first connection that an attempt opens."""
        try:
            while (connection := await self._round()) is None:
                pass
            return connection
        finally:
            for task in self._attempts:
                task.cancel()
            for late in await asyncio.gather(*self._attempts, return_exceptions=True):
                if isinstance(late, Connection):
                    late.abort()

    async def _round(self) -> Connection | None:
        """Begin an attempt where one is due; wait for a result, but no longer than RETRY_S."""
        loop = asyncio.get_running_loop()
        if (now_s := loop.time()) >= self._next_s and len(self._attempts) < MAX_ATTEMPTS:
            self._attempts.add(loop.create_task(self._attempt()))
            self._begun_s, self._next_s = now_s, now_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, MAX_RETRY_S)
        end_s = now_s + RETRY_S
        while self._attempts and (left_s := end_s - loop.time()) > 0:
            done, self._attempts = await asyncio.wait(
                self._attempts, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            opened = [connection for task in done if (connection := self._result(task)) is not None]
            if opened:
                return opened[-1]
        await asyncio.sleep(max(0.0, end_s - loop.time()))
        return None

    def _result(self, task: asyncio.Task[Connection]) -> Connection | None:
        try:
            return task.result()
        except ProtocolError as error:
            self._on_refusal(error)
        except (OSError, TimeoutError):
            pass
        return None
