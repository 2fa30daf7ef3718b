"""When attempts at a connection begin, and what becomes of those that lose; attempts are scripted."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tandem.errors import ProtocolError
from tandem.transport import sockets
from tandem.transport import sockets as dialling
from tandem.transport.handshake import Refused
from tandem.transport.sockets import MAX_ATTEMPTS, Connection, Dialling
from tests.unit.transport.conftest import run

RETRY_S = 0.05  # of the conftest


class Attempts:
    """Attempts that hang until they are told how they end."""

    def __init__(self) -> None:
        self.begun_s: list[float] = []
        self.ends: list[asyncio.Future[Any]] = []
        self.refused: list[str] = []
        self.dialling = Dialling(self.attempt, lambda error: self.refused.append(str(error)))

    async def attempt(self) -> Connection:
        """One more."""
        loop = asyncio.get_running_loop()
        self.begun_s.append(loop.time())
        self.ends.append(loop.create_future())
        return cast(Connection, await self.ends[-1])

    async def number(self, count: int) -> None:
        """Wait until so many have begun."""
        async with asyncio.timeout(5):
            while len(self.ends) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def test_an_attempt_begins_while_others_hang_and_the_first_to_succeed_wins() -> None:
    async def main() -> None:
        attempts = Attempts()
        dialled = asyncio.create_task(attempts.dialling.run())
        await attempts.number(3)
        won = object()
        attempts.ends[1].set_result(won)
        assert await dialled is won
        assert attempts.ends[0].cancelled()
        assert attempts.ends[2].cancelled()

    run(main)


def test_so_many_at_once_and_no_more() -> None:
    async def main() -> None:
        attempts = Attempts()
        dialled = asyncio.create_task(attempts.dialling.run())
        for _ in range(8 * MAX_ATTEMPTS):
            attempts.dialling.hurry()
            await asyncio.sleep(RETRY_S / 4)
        assert len(attempts.ends) == MAX_ATTEMPTS
        dialled.cancel()
        await asyncio.gather(dialled, return_exceptions=True)

    run(main)


def test_while_attempts_hang_there_is_always_a_new_one() -> None:
    """Those that began before a link was cut may hang for good: four of them once kept a fifth from trying."""
    assert MAX_ATTEMPTS * dialling.MAX_HANGING_S >= sockets.DIAL_LIMIT_S


def test_attempts_that_hang_are_few_however_much_somebody_hurries() -> None:
    """TCP repeats each of them every second: ten at once filled a link of 10 kbit/s, and none of them came through."""

    async def main() -> None:
        begun_s: list[float] = []

        async def hangs() -> Connection:
            begun_s.append(asyncio.get_running_loop().time())
            await asyncio.sleep(10 * RETRY_S)
            raise TimeoutError

        one = Dialling(hangs, lambda error: None)
        dialled = asyncio.create_task(one.run())
        for _ in range(80):
            one.hurry()
            await asyncio.sleep(RETRY_S / 2)
        assert 10 <= len(begun_s) <= 17, "40 rounds, and after the first two an attempt in every third"
        dialled.cancel()
        await asyncio.gather(dialled, return_exceptions=True)

    run(main)


def test_the_time_between_attempts_doubles_until_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        attempts = Attempts()
        monkeypatch.setattr(dialling, "MAX_RETRY_S", 0.8)

        async def fails() -> Connection:
            attempts.begun_s.append(asyncio.get_running_loop().time())
            raise OSError

        dialled = asyncio.create_task(run_failing(fails))
        await asyncio.sleep(1.6)
        waits = [
            later - earlier for earlier, later in zip(attempts.begun_s, attempts.begun_s[1:], strict=False)
        ]
        assert waits[2] > 3 * RETRY_S, waits
        assert len(attempts.begun_s) <= 6
        dialled.cancel()
        await asyncio.gather(dialled, return_exceptions=True)

    async def run_failing(fails: Any) -> Connection:
        return await Dialling(fails, lambda error: None).run()

    run(main)


def test_whoever_waits_does_not_wait_for_the_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        begun: list[float] = []

        async def fails() -> Connection:
            begun.append(asyncio.get_running_loop().time())
            raise ConnectionRefusedError

        one = Dialling(fails, lambda error: None)
        dialled = asyncio.create_task(one.run())
        await asyncio.sleep(0.9)  # the next but one attempt would begin after 1.6 s
        count = len(begun)
        for _ in range(100):
            one.hurry()
        await asyncio.sleep(3 * RETRY_S)
        assert count < len(begun) <= count + 3
        dialled.cancel()
        await asyncio.gather(dialled, return_exceptions=True)

    run(main)


def test_refusals_are_told_and_may_end_it() -> None:
    async def main() -> None:
        told = 0

        async def refused() -> Connection:
            raise ProtocolError("no")

        def tell(error: ProtocolError) -> None:
            nonlocal told
            told += 1
            if told == 2:
                raise error

        with pytest.raises(ProtocolError, match="no"):
            await Dialling(refused, tell).run()

    run(main)


def test_an_end_that_says_when_to_come_back_is_not_asked_before() -> None:
    """However much somebody hurries."""

    async def main() -> None:
        begun_s: list[float] = []

        async def refused() -> Connection:
            begun_s.append(asyncio.get_running_loop().time())
            raise Refused("busy", 6 * RETRY_S)

        one = Dialling(refused, lambda error: None)
        dialled = asyncio.create_task(one.run())
        for _ in range(30):
            one.hurry()
            await asyncio.sleep(RETRY_S / 2)
        assert 2 <= len(begun_s) <= 3
        assert begun_s[1] - begun_s[0] >= 6 * RETRY_S
        dialled.cancel()
        await asyncio.gather(dialled, return_exceptions=True)

    run(main)


def test_attempts_that_failed_before_count() -> None:
    async def main() -> None:
        begun_s: list[float] = []
        start_s = asyncio.get_running_loop().time()

        async def opens() -> Connection:
            begun_s.append(asyncio.get_running_loop().time())
            return cast(Connection, object())

        await Dialling(opens, lambda error: None, num_failed=3).run()
        assert begun_s[0] - start_s >= 4 * RETRY_S

    run(main)
