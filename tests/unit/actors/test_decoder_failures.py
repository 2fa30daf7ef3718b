"""A decoder whose answer to one query cannot be sent goes on with the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tandem.errors import TandemError
from tandem.messages import DecoderFailed, DecoderReady
from tandem.protocol.decoding import Job, Prefill
from tandem.protocol.routes import Send
from tests.unit.actors.test_worker_loop import _Decoder, begin


class Broken(_Decoder):
    """Fails on the prefill of session 1, with or without an exception of its own."""

    def __init__(self, how: str) -> None:
        super().__init__(random.Random(0))
        self.how = how

    async def compute(self, jobs: Sequence[Job]) -> list[list[Send] | Exception]:
        results = await super().compute([job for job in jobs if not self._is_bad(job)])
        bad = [self._prefill_badly() for job in jobs if self._is_bad(job)]
        return [(bad if self._is_bad(job) else results).pop(0) for job in jobs]

    @staticmethod
    def _is_bad(job: Job) -> bool:
        return job.session == 1 and isinstance(job, Prefill)

    def _prefill_badly(self) -> list[Send] | Exception:
        if self.how == "an error":
            return TandemError("The file caf\udce9.txt is damaged.")
        return self.table.sessions[1].finish_prefill(1, ("The file caf\udce9.txt was not used.",))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("an error", "The file caf\\udce9.txt is damaged."),
        ("an answer", "character 12 is half a surrogate pair; repair the document or question"),
    ],
)
def test_half_a_character_ends_its_session_alone(how: str, reason: str) -> None:
    """File names that are not UTF-8 hold such characters."""

    async def run() -> list[Any]:
        actor = Broken(how)
        actor.spawn(actor.work(), "work")
        for session in (1, 2):
            actor.dispatch(actor.handle(begin(session), "q"))
        for _ in range(500):
            if any(isinstance(message, DecoderReady) for message in actor.outbox.messages):
                break
            await asyncio.sleep(0.01)
        await actor.close()
        return actor.outbox.messages

    sent = asyncio.run(run())
    (failed,) = (message for message in sent if isinstance(message, DecoderFailed))
    assert failed.session == 1
    assert reason in failed.reason
    assert [message.session for message in sent if isinstance(message, DecoderReady)] == [2]
