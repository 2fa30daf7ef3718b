"""Opening a connection to an actor that may be away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from tandem.errors import ProtocolError
from tandem.transport.connection import Connection
from tandem.transport.handshake import Refused

RETRY_S = 0.5
"""Between the beginnings of two attempts where the first has failed and somebody waits for the connection."""
MAX_RETRY_S = 8.0
"""Longest time between the beginnings of two attempts, which doubles while nobody waits."""
MAX_HANGING_S = 1.5
"""Longest time between the beginnings of two attempts while somebody waits and earlier ones hang, which doubles with
each of these. TCP repeats each by itself, with newer kernels every second at first, so that together they ask three or
four times a second. Ten at once asked ten times: with the answers to those that were given up that filled a link of 10
kbit/s, and none came through any more. Below the 2 s after which the parties are together again once a link is back."""
MAX_ATTEMPTS = 4
"""That are under way at once: as many as begin within the time that one may take, so that there is always a new one."""

Attempt = Callable[[], Coroutine[Any, Any, Connection]]
"""One attempt at a proven connection; raises OSError, TimeoutError or ProtocolError."""


class Dialling:
    """Attempts at one connection until one of them succeeds.

    An attempt does not wait for the end of the one before: what was sent into a link that was cut is repeated by TCP
    after ever longer pauses, while the link may be back. An end that says when to come back is not asked before.
    """

    def __init__(
        self, attempt: Attempt, on_refusal: Callable[[ProtocolError], None], num_failed: int = 0
    ) -> None:
        """on_refusal is told of refusals, and may raise to give up; num_failed: attempts that failed just before."""
        self._attempt = attempt
        self._on_refusal = on_refusal
        self._num_unawaited = num_failed  # attempts since somebody waited
        self._begun_s = -inf  # of the event loop's clock
        self._not_before_s = -inf  # of that clock, too: as the other end said
        self._attempts: set[asyncio.Task[Connection]] = set()

    def hurry(self) -> None:
        """Somebody waits: try again soon, and often."""
        self._num_unawaited = min(self._num_unawaited, 1)

    async def run(self) -> Connection:
        """The first connection that an attempt opens."""
        if self._num_unawaited:
            self._begun_s = asyncio.get_running_loop().time()
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

    def _pause_s(self) -> float:
        """From the beginning of the latest attempt to that of the next one."""
        unawaited_s = RETRY_S * 2.0 ** min(self._num_unawaited - 1, 10)
        hanging_s = RETRY_S * 2.0 ** len(self._attempts)
        return max(min(unawaited_s, MAX_RETRY_S), min(hanging_s, MAX_HANGING_S))

    async def _round(self) -> Connection | None:
        """Begin an attempt where one is due; wait for a result, but no longer than RETRY_S."""
        loop = asyncio.get_running_loop()
        due_s = max(self._begun_s + self._pause_s(), self._not_before_s)
        if (now_s := loop.time()) >= due_s and len(self._attempts) < MAX_ATTEMPTS:
            self._attempts.add(loop.create_task(self._attempt()))
            self._begun_s = now_s
            self._num_unawaited += 1
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
            if isinstance(error, Refused) and error.retry_after_s is not None:
                self._not_before_s = asyncio.get_running_loop().time() + error.retry_after_s
        except (OSError, TimeoutError):
            pass
        return None
