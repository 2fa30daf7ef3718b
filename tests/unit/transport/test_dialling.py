"""When attempts at a connection begin, what becomes of those that lose, and what earlier connections mean for them.

Attempts are scripted.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tandem.errors import ProtocolError
from tandem.transport import sockets
from tandem.transport.port import Refused
from tandem.transport.sockets import MAX_ATTEMPTS, MAX_REFUSALS, Attempt, Connection, Dialler

RETRY_S = 0.05  # of the conftest


def dialler(attempt: Attempt) -> Dialler:
    return Dialler("device/draft_queue", "cloud/draft_queue", attempt)


async def give_up(*tasks: asyncio.Task[Connection]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Attempts:
    """Attempts that hang until they are told how they end."""

    def __init__(self) -> None:
        self.begun_s: list[float] = []
        self.ends: list[asyncio.Future[Any]] = []
        self.dialler = dialler(self.attempt)

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


async def test_an_attempt_begins_while_others_hang_and_the_first_to_succeed_wins() -> None:
    attempts = Attempts()
    dialled = asyncio.create_task(attempts.dialler.run())
    await attempts.number(3)
    won = object()
    attempts.ends[1].set_result(won)
    assert await dialled is won
    assert attempts.ends[0].cancelled()
    assert attempts.ends[2].cancelled()


async def test_so_many_at_once_and_no_more() -> None:
    attempts = Attempts()
    dialled = asyncio.create_task(attempts.dialler.run())
    for _ in range(8 * MAX_ATTEMPTS):
        attempts.dialler.hurry()
        await asyncio.sleep(RETRY_S / 4)
    assert len(attempts.ends) == MAX_ATTEMPTS
    await give_up(dialled)


async def test_the_time_between_attempts_doubles_until_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = Attempts()
    monkeypatch.setattr(sockets, "MAX_RETRY_S", 0.8)

    async def fails() -> Connection:
        attempts.begun_s.append(asyncio.get_running_loop().time())
        raise OSError

    dialled = asyncio.create_task(dialler(fails).run())
    await asyncio.sleep(1.6)
    waits = [later - earlier for earlier, later in zip(attempts.begun_s, attempts.begun_s[1:], strict=False)]
    assert waits[2] > 3 * RETRY_S, waits
    assert len(attempts.begun_s) <= 6
    await give_up(dialled)


async def test_an_actor_that_was_never_reached_is_given_up_after_refusals_for_good() -> None:
    """Also after many for now; one that was reached before is dialled for ever."""
    answers: list[ProtocolError] = [Refused("busy", 0.0)] * 4 + [Refused("revoked")] * MAX_REFUSALS

    async def refused() -> Connection:
        raise answers.pop(0) if answers else ProtocolError("another key")

    one = dialler(refused)
    with pytest.raises(ProtocolError, match="revoked"):
        await one.run()
    assert not answers
    one.opened(0.0)
    answers += [Refused("revoked")] * 2 * MAX_REFUSALS
    dialled = asyncio.create_task(one.run())
    async with asyncio.timeout(60):
        while answers:
            one.hurry()
            await asyncio.sleep(0.01)
    assert not dialled.done()
    await give_up(dialled)


async def test_an_end_that_says_when_to_come_back_is_not_asked_before() -> None:
    """However much somebody hurries."""
    begun_s: list[float] = []

    async def refused() -> Connection:
        begun_s.append(asyncio.get_running_loop().time())
        raise Refused("busy", 6 * RETRY_S)

    one = dialler(refused)
    dialled = asyncio.create_task(one.run())
    for _ in range(30):
        one.hurry()
        await asyncio.sleep(RETRY_S / 2)
    assert 2 <= len(begun_s) <= 3
    assert begun_s[1] - begun_s[0] >= 6 * RETRY_S
    await give_up(dialled)
