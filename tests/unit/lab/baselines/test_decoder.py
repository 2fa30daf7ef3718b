"""The laboratory's decoder: caches that are lent, texts that are not stored, distributions and padded times."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.actors.base import Runtime
from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem.messages import Begin, DecoderFailed, End, Local
from tandem.protocol.decoding import Forward, Prefill
from tandem.protocol.outbox import Send
from tandem.retrieval.factory import kv_folder
from tandem.topology import Party
from tandem_lab.baselines.actors import BaselineDecoder
from tandem_lab.baselines.experiments import Treatment
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import decided

QUESTION = "Which game should Mira try?"
TEXTS = ["Mira likes puzzle games.", "The best rated puzzle game is Vantelu Cor."]


class Decoder(BaselineDecoder):
    """The real actor with what it sends."""

    def __init__(self, party: Party, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    def dispatch(self, sends: list[Send]) -> None:
        for send in sends:
            self.sent.put_nowait(send.message)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def decoder(party: Party, tmp_path: Path, *settings: str) -> Decoder:
    config = Config.load(None, settings)
    actor = Decoder(party, Runtime(secret=b"s", directory=str(tmp_path / "sockets"), config=config))
    await actor.prepare()
    await asyncio.sleep(0)  # its task begins
    return actor


def prompt(actor: BaselineDecoder) -> None:
    """Open a session with the texts and compute its prompt."""
    actor.open_prompt(Prefill(1, QUESTION, tuple(TEXTS), 8))
    actor.engine.next_logits("1", [])
    actor.engine.close("1")


def test_the_cloud_lends_and_the_device_does_not(tmp_path: Path) -> None:
    async def run() -> None:
        cloud = await decoder(Party.CLOUD, tmp_path)
        device = await decoder(Party.DEVICE, tmp_path, "device.kv_store=off")
        with pytest.raises(TandemError) as raised:
            await device.pack_caches(TEXTS)
        assert str(raised.value) == (
            "Only the cloud hands out caches of documents, this is device/decoder; ask cloud/decoder."
        )
        data = await cloud.pack_caches(TEXTS)
        await device.lend_caches(TEXTS, data)
        prompt(device)
        extra = (await device.statistics()).extra
        assert (extra["kv_hits"], extra["kv_misses"]) == (2, 0)
        with pytest.raises(TandemError, match="use the same documents, tokenizer and template"):
            await device.lend_caches([TEXTS[0], "Another."], data)
        assert not kv_folder(Party.DEVICE, device.config).exists()
        for actor in (cloud, device):
            await actor.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("treatment", "num_files"),
    [
        (Treatment(), 2),
        (Treatment(extra_documents=("Another.",)), 0),
        (Treatment(concat_documents=True), 0),
    ],
)
def test_texts_of_an_experiment_do_not_go_to_the_disk(
    tmp_path: Path, treatment: Treatment, num_files: int
) -> None:
    async def run() -> None:
        actor = await decoder(Party.DEVICE, tmp_path)
        await actor.treat(treatment)
        prompt(actor)
        assert len(list(kv_folder(Party.DEVICE, actor.config).glob("*/*/*"))) == num_files
        await actor.close()

    asyncio.run(run())


def begin(session: int) -> Begin:
    spec = make_spec(
        session=session,
        query=QUESTION,
        eos_token_ids=(0,),
        only=Party.CLOUD,
        cloud_documents=0,
        max_new_tokens=3,
    )
    return Begin(session=session, spec=spec.to_json())


async def drive(actor: Decoder, session: int) -> list[int]:
    """Commit every draft of a session; the tokens."""
    tokens: list[int] = []
    actor.dispatch(actor.handle(begin(session), "q"))
    while len(tokens) < 3:
        message = await asyncio.wait_for(actor.sent.get(), 60)
        assert not isinstance(message, DecoderFailed)
        if isinstance(message, Local):
            step = len(tokens)
            tokens.append(message.body.tokens[0])
            commit = decided(step, tokens[-1], session=session, is_last=step == 2)
            actor.dispatch(actor.handle(commit, "q"))
    return tokens


def test_distributions_are_kept_where_wanted(tmp_path: Path) -> None:
    async def run() -> None:
        actor = await decoder(Party.CLOUD, tmp_path)
        tokens = await drive(actor, 1)
        actor.handle(End(session=1), "q")
        with pytest.raises(TandemError, match=r"3 steps were requested and 0 are there"):
            await actor.fetch_sequence(1, 3)
        await actor.treat(Treatment(keeps_distributions=True))
        waiting = asyncio.ensure_future(actor.fetch_sequence(2, None, True))
        assert await drive(actor, 2) == tokens
        actor.handle(End(session=2), "q")
        sequence = await asyncio.wait_for(waiting, 60)
        assert sequence.tokens == tuple(tokens)
        dense = [np.frombuffer(distribution, "<f2") for distribution in sequence.distributions]
        assert {len(distribution) for distribution in dense} == {actor.engine.vocab_size}
        assert [int(distribution.argmax()) for distribution in dense] == tokens
        await actor.close()

    asyncio.run(run())


def test_a_padded_draft_takes_its_time_and_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        actor = await decoder(Party.CLOUD, tmp_path)
        await actor.pad_decode_time(0.1)
        started_s = time.monotonic()
        await drive(actor, 1)
        assert time.monotonic() - started_s >= 0.3
        extra = (await actor.statistics()).extra
        assert round(extra["decode_s"], 6) >= round(0.1 * extra["num_forwards"], 6) >= 0.3
        await actor.close()

    asyncio.run(run())


def test_a_padded_draft_that_is_no_longer_wanted_ends_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        actor = await decoder(Party.CLOUD, tmp_path)
        await actor.pad_decode_time(30.0)
        actor.dispatch(actor.handle(begin(1), "q"))
        session = actor.table.sessions[1]
        await asyncio.wait_for(actor.sent.get(), 60)  # it is prefilled
        job = session.next_job()
        assert isinstance(job, Forward)
        drafting = asyncio.ensure_future(actor.draft([session], [job]))
        await asyncio.sleep(0.2)
        commit = decided(0, 7, is_last=True)
        actor.dispatch(actor.handle(commit, "q"))
        await asyncio.wait_for(drafting, 60)
        await actor.close()

    asyncio.run(run())
