"""No wake-up of the decoder's worker is lost: a thousand interleavings of one event loop, drawn from seeds.

The model runs on the loop itself and finishes after a drawn number of the loop's turns; so do messages come: before the
worker asks for a job, between question and sleep, in its sleep, as the model finishes. `test_worker_loop` has a
real thread. Nothing here waits for time: a worker that sleeps for good is found by a number of turns.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from tandem.protocol.messages import Commit, End
from tests.unit.protocol.test_worker_loop import _Decoder, begin, has_drafted

NUM_SEEDS = 1000
NUM_TOKENS = 6
MOST_TURNS = 2000
"""Turns of the loop within which any session is through; a worker that sleeps for good takes none."""


class _OnLoop(Executor):
    """A model's thread that is none: a job is done after some turns of the loop."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._later(self.rng.randrange(6), future, job)
        return future

    def _later(self, turns: int, future: Future[Any], job: Callable[[], Any]) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._later, turns - 1, future, job)
        else:
            future.set_result(job())


class _Stepped(_Decoder):
    """The real worker; a job is over at once when its turn comes."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._thread = _OnLoop(rng)  # type: ignore[assignment]

    def _job(self, session: Any, job: Any) -> Callable[[], Any]:
        if hasattr(job, "step"):
            return lambda: lambda: session.finish_forward(job, b"law", 7, 1)
        return lambda: lambda: session.finish_prefill(1, ())


async def _answer(actor: _Stepped, session: int, rng: random.Random) -> None:
    """Begin, commit each draft some turns after it came, end; RuntimeError if the worker sleeps for good."""
    await _turns(rng.randrange(6))
    actor.dispatch(actor.handle(begin(session, synchronous=rng.random() < 0.7), "q"))
    for step in range(NUM_TOKENS):
        for _ in range(MOST_TURNS):
            if has_drafted(actor, session, step):
                break
            await asyncio.sleep(0)
        else:
            raise RuntimeError(f"step {step} is not drafted")
        await _turns(rng.randrange(8))
        token = rng.choice([7, 7, 8])
        commit = Commit(session=session, step=step, token=token, epoch=0, is_last=step == NUM_TOKENS - 1)
        actor.dispatch(actor.handle(commit, "q"))
    await _turns(rng.randrange(6))
    actor.dispatch(actor.handle(End(session=session), "q"))


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def _interleaving(seed: int) -> None:
    rng = random.Random(seed)
    actor = _Stepped(rng)
    actor.spawn(actor._work(), "work")
    num_sessions = rng.choice([1, 1, 2, 3])
    try:
        await asyncio.gather(*(_answer(actor, session, rng) for session in range(num_sessions)))
        await _turns(MOST_TURNS // 10)
        closed = actor._engine().closed  # type: ignore[attr-defined]
        assert sorted(closed) == [str(session) for session in range(num_sessions)]
    finally:
        await actor.close()


def test_no_wake_up_is_lost_in_any_interleaving() -> None:
    async def main() -> None:
        for seed in range(NUM_SEEDS):
            await _interleaving(seed)

    asyncio.run(main())


@pytest.mark.parametrize("where", ["before the clear", "cleared after the model"])
def test_a_worker_that_loses_one_is_found(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: one turn between question and clear; a flag cleared after a job that a message came during."""

    async def work(self: _Stepped) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._free_ended()
            job = self.host.next_job()
            if job is None:
                if where == "before the clear":
                    await asyncio.sleep(0)
                    self._wake.clear()
                await self._wake.wait()
                self._wake.clear()
                continue
            tell = await loop.run_in_executor(self._thread, self._job(self.host.sessions[job.session], job))
            self.dispatch(tell())
            if where != "before the clear" and self.host.next_job() is None:
                await asyncio.sleep(0)
                self._wake.clear()
                await self._wake.wait()

    monkeypatch.setattr(_Stepped, "_work", work)

    async def main() -> None:
        for seed in range(40):
            await _interleaving(seed)

    with pytest.raises((RuntimeError, AssertionError)):
        asyncio.run(main())
