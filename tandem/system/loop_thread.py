"""An event loop in its own thread, for callers that are synchronous or on another loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")
CLEAN_UP_LIMIT_S = 5.0


class LoopThread:
    """Runs coroutines from any thread, side by side; close it when done."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tandem", daemon=True)
        self._thread.start()

    @property
    def event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself, for `asyncio.run_coroutine_threadsafe`."""
        return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interruption (Ctrl-C) cancels it, and nothing else, and waits for its clean-up."""
        future = None
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return future.result()
        except BaseException:
            if future is None or not future.done():
                self._wait_for(_cancel(work))
            raise

    def close(self) -> None:
        """Stop the loop and its thread; what still runs is cancelled."""
        if self._loop.is_closed():
            return
        self._wait_for(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait_for(self, clean_up: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(CancelledError, TimeoutError):
            asyncio.run_coroutine_threadsafe(clean_up, self._loop).result(CLEAN_UP_LIMIT_S)


async def _cancel(work: Coroutine[Any, Any, Any]) -> None:
    """Cancel the task that runs `work`, and wait for it."""
    await _cancel_tasks([task for task in asyncio.all_tasks() if task.get_coro() is work])


async def _cancel_others() -> None:
    """Cancel all other tasks of this loop, and wait for them."""
    await _cancel_tasks([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])


async def _cancel_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
