"""Whole sequences of a session that one side answers: kept where wanted, waited for, given once."""

from __future__ import annotations

import asyncio

import pytest

from tandem.errors import TandemError
from tandem_lab.baselines.sequences import MAX_SEQUENCES, SequenceResult, SequenceStore, Step

STEPS = (Step(5, b"q0", b"d0", -1.5), Step(6, b"q1", b"d1", -9.0))


def store(session: int, num_steps: int = 2) -> SequenceStore:
    kept = SequenceStore()
    kept.begin(session)
    for number, step in enumerate(STEPS[:num_steps]):
        kept.add(session, number, step)
    return kept


def test_a_sequence_is_given_once() -> None:
    kept = store(1)
    assert kept.take(1, 2, dense=False) == SequenceResult((5, 6), (b"q0", b"q1"), -1.5)
    with pytest.raises(TandemError, match="2 steps were requested and 0 are there"):
        kept.take(1, 2, dense=False)


def test_its_beginning_alone() -> None:
    assert store(1).take(1, 1, dense=True) == SequenceResult((5,), (b"d0",), -1.5)
    assert store(1).take(1, None, dense=False).up_to(1) == SequenceResult((5,), (b"q0",), -1.5)


def test_without_a_length_the_end_is_waited_for() -> None:
    async def run() -> SequenceResult:
        kept = SequenceStore()
        waiting = asyncio.ensure_future(kept.wait_for_end(1, 90))
        await asyncio.sleep(0.01)  # it has not begun
        kept.begin(1)
        kept.add(1, 0, STEPS[0])
        await asyncio.sleep(0.01)
        assert not waiting.done()
        kept.add(1, 1, STEPS[1])
        kept.end(1)
        await asyncio.wait_for(waiting, 60)
        return kept.take(1, None, dense=True)

    assert asyncio.run(run()) == SequenceResult((5, 6), (b"d0", b"d1"), -1.5)


def test_a_session_that_never_comes_is_one_sentence() -> None:
    with pytest.raises(TandemError, match=r"^The session did not end within 0\.05 s"):
        asyncio.run(SequenceStore().wait_for_end(1, 0.05))


@pytest.mark.parametrize("num_steps", [0, 2])
def test_a_session_that_failed_leaves_nothing_and_nobody_waiting(num_steps: int) -> None:
    async def run() -> None:
        kept = store(1, num_steps)
        waiting = asyncio.ensure_future(kept.wait_for_end(1, 90))
        await asyncio.sleep(0.01)
        kept.end(1, failed=True)
        await asyncio.wait_for(waiting, 60)
        with pytest.raises(TandemError, match="1 steps were requested and 0 are there"):
            kept.take(1, None, dense=False)

    asyncio.run(run())


def test_a_session_that_ended_before_it_was_asked_for_is_given_at_once() -> None:
    kept = store(1, 1)
    kept.end(1)
    asyncio.run(asyncio.wait_for(kept.wait_for_end(1, 90), 60))
    assert kept.take(1, None, dense=False).tokens == (5,)


def test_a_step_that_comes_after_the_end_or_the_fetch_is_not_kept() -> None:
    kept = store(1, 1)
    kept.begin(2)
    kept.add(2, 0, STEPS[0])
    kept.take(1, 1, dense=False)
    kept.end(2)
    for session in (1, 2, 3):
        assert not kept.is_keeping(session)
        kept.add(session, 1, STEPS[1])
    assert kept.take(2, None, dense=False).tokens == (5,)
    for session in (1, 3):
        with pytest.raises(TandemError):
            kept.take(session, None, dense=False)


def test_the_oldest_sequence_makes_room() -> None:
    kept = SequenceStore()
    for session in range(MAX_SEQUENCES + 1):
        kept.begin(session)
    assert [kept.is_keeping(session) for session in range(MAX_SEQUENCES + 1)] == [
        False,
        True,
        True,
        True,
        True,
    ]
