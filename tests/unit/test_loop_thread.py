"""The client's event loop: an interrupted call ends with its clean-up done, and the other calls go on."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandem.sites.port import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


class Waiting:
    """Work that waits for `release`, and takes a while to clean up when it is cancelled."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.release = threading.Event()
        self.is_cleaned_up = False

    async def work(self) -> str:
        try:
            self.has_begun.set()
            await asyncio.to_thread(self.release.wait, 5)
            return "done"
        except asyncio.CancelledError:
            self.release.set()  # ends the thread that waits for it
            await asyncio.sleep(0.05)
            self.is_cleaned_up = True
            raise


def interrupt_when(event: threading.Event) -> None:
    """Ctrl-C in the main thread, once `event` has happened."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        event.wait(60)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()


def test_ctrl_c_in_one_thread_leaves_the_others_alone(loop: LoopThread) -> None:
    interrupted, other = Waiting(), Waiting()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(lambda: loop.run(other.work()))
        assert other.has_begun.wait(60)
        interrupt_when(interrupted.has_begun)
        with pytest.raises(KeyboardInterrupt):
            loop.run(interrupted.work())
        assert interrupted.is_cleaned_up
        other.release.set()
        assert result.result(5) == "done"
    assert not other.is_cleaned_up


def test_closing_cancels_what_still_runs() -> None:
    loop, waiting = LoopThread(), Waiting()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(lambda: loop.run(waiting.work()))
        assert waiting.has_begun.wait(60)
        loop.close()
        loop.close()
        assert result.exception(5) is not None
    assert waiting.is_cleaned_up
