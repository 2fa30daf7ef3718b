"""Whole sequences of a lone session: kept where asked for, waited for, given once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.actors.base import Runtime
from tandem.actors.decoder import DecoderActor, Step
from tandem.config import Config
from tandem.errors import TandemError
from tandem.side import Side

STEPS = {0: Step(5, b"q0", b"d0", -1.5), 1: Step(6, b"q1", b"d1", -9.0)}


def decoder(*settings: str) -> DecoderActor:
    config = Config.load(None, settings)
    return DecoderActor(Side.CLOUD, Runtime(secret=b"s", directory="unused", config=config))


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
