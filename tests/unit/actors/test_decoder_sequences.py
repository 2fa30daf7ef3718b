"""Whole sequences of a lone session: kept where asked for, waited for, given once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tandem.actors.base import Runtime
from tandem.actors.decoder import MAX_SEQUENCES, DecoderActor, Step
from tandem.config import Config
from tandem.errors import TandemError
from tandem.protocol.drafting import Forward
from tandem.protocol.messages import Begin, End
from tandem.request import spec_of
from tandem.topology import Party

STEPS = {0: Step(5, b"q0", b"d0", -1.5), 1: Step(6, b"q1", b"d1", -9.0)}


def decoder(*settings: str) -> DecoderActor:
    config = Config.load(None, settings)
    return DecoderActor(Party.CLOUD, Runtime(secret=b"s", directory="unused", config=config))


def test_a_sequence_is_given_once() -> None:
    actor = decoder()
    actor._sequences[1] = dict(STEPS)
    found = asyncio.run(actor.sequence(1, 2))
    assert found == {"tokens": [5, 6], "laws": [b"q0", b"q1"], "log_weight": -1.5}
    with pytest.raises(TandemError, match="2 steps were asked for and 0 are there"):
        asyncio.run(actor.sequence(1, 2))


def test_without_a_length_the_end_is_waited_for() -> None:
    actor = decoder()

    async def run() -> dict[str, Any]:
        waiting = asyncio.ensure_future(actor.sequence(1, None, True))
        await asyncio.sleep(0.01)  # it has not begun
        actor.host.sessions[1] = object()  # type: ignore[assignment]
        actor._sequences[1] = {0: STEPS[0]}
        await asyncio.sleep(0.01)
        assert not waiting.done()
        actor._sequences[1][1] = STEPS[1]
        del actor.host.sessions[1]
        return await asyncio.wait_for(waiting, 2)

    assert asyncio.run(run()) == {"tokens": [5, 6], "laws": [b"d0", b"d1"], "log_weight": -1.5}


def test_a_session_that_never_comes_is_one_sentence() -> None:
    actor = decoder("cluster.query_timeout_s=0.05")
    with pytest.raises(TandemError, match=r"A session must end within 0\.05 s"):
        asyncio.run(actor.sequence(1))


def begun(actor: DecoderActor, *sessions: int) -> None:
    for session in sessions:
        spec = replace(
            spec_of(Config()),
            session=session,
            query="?",
            eos_token_ids=(0,),
            only=Party.CLOUD,
            keeps_distributions=True,
        )
        actor.handle(Begin(session=session, spec=spec.to_json()), "cloud/draft_queue")


def job(session: int, step: int) -> Forward:
    return Forward(session, step, b"", (), (0.0,))


@pytest.mark.parametrize("num_steps", [0, 2])
def test_a_session_that_failed_leaves_no_laws_and_nobody_waiting(
    num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = decoder()
    told: list[Any] = []
    monkeypatch.setattr(actor, "dispatch", told.extend)

    async def run() -> None:
        begun(actor, 1)
        for step in range(num_steps):
            actor._keep(job(1, step), STEPS[step])
        waiting = asyncio.ensure_future(actor.sequence(1))
        await asyncio.sleep(0.01)
        actor._fail(1, TandemError("no room"))
        with pytest.raises(TandemError, match="1 steps were asked for and 0 are there"):
            await asyncio.wait_for(waiting, 1)

    asyncio.run(run())
    assert [send.message.reason for send in told] == ["no room"]


def test_a_session_that_ended_before_it_was_asked_for_is_given_at_once() -> None:
    actor = decoder()
    begun(actor, 1)
    actor._keep(job(1, 0), STEPS[0])
    actor.handle(End(session=1), "cloud/draft_queue")
    assert asyncio.run(asyncio.wait_for(actor.sequence(1), 1))["tokens"] == [5]


def test_a_step_that_comes_after_the_end_or_the_fetch_is_not_kept() -> None:
    actor = decoder()
    begun(actor, 1, 2)
    for session in (1, 2):
        actor._keep(job(session, 0), STEPS[0])
    asyncio.run(actor.sequence(1, 1))
    actor.handle(End(session=2), "cloud/draft_queue")
    for session in (1, 2, 3):
        actor._keep(job(session, 1), STEPS[1])
    assert actor._sequences == {2: {0: STEPS[0]}}


def test_the_oldest_sequence_makes_room() -> None:
    actor = decoder()
    begun(actor, *range(MAX_SEQUENCES + 1))
    assert list(actor._sequences) == [1, 2, 3, 4]
    actor.handle(End(session=0), "cloud/draft_queue")
    actor.handle(End(session=7), "cloud/draft_queue")
    begun(actor, 7)  # its end overtook its beginning
    assert 7 not in actor._sequences
