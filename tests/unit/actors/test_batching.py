"""Decoders with the real model: many queries at once get the tokens that each gets alone, and caches are stored and
noted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.actors.base import Runtime
from tandem.actors.decoder import DecoderActor
from tandem.actors.loading import load_engine, open_engine
from tandem.config.schema import Config, PartyConfig
from tandem.engine.engine import Engine
from tandem.engine.kv import DiskStore, MemoryStore
from tandem.engine.prompt import Prompt
from tandem.errors import GenerationError
from tandem.messages import Begin, DecoderFailed, End, Local
from tandem.protocol.decoding import DecodingTable, Forward, Prefill
from tandem.protocol.log import Prefix
from tandem.protocol.routes import Send
from tandem.retrieval.retriever import kv_folder
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import decided
from tests.unit.transport.conftest import PLANES, until

QUESTIONS = [
    "Which game should Mira try?",
    "What podcast should Dila pick next?",
    "Which film should Zev watch tonight?",
]
NUM_TOKENS = 5


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Decoder(DecoderActor):
    """The real actor and model; it keeps what it sends by session."""

    def __init__(self, tmp_path: Path) -> None:
        config = Config.load(None, ())
        super().__init__(
            Party.CLOUD, Runtime(secret=b"s", directory=str(tmp_path / "sockets"), config=config)
        )
        self.sent: dict[int, asyncio.Queue[Any]] = {}

    def dispatch(self, sends: list[Send]) -> None:
        for send in sends:
            self.sent.setdefault(send.message.session, asyncio.Queue()).put_nowait(send.message)


def begin(session: int) -> Begin:
    spec = make_spec(
        session=session,
        query=QUESTIONS[session % len(QUESTIONS)],
        seed=session,
        eos_token_ids=(1 << 17,),
        only=Party.CLOUD,
        cloud_documents=0,
        max_new_tokens=NUM_TOKENS,
        temperature=1.0,
    )
    return Begin(session=session, spec=spec.to_json())


async def answer(actor: Decoder, session: int) -> list[int] | str:
    """The committed tokens, or why it failed."""
    actor.dispatch(actor.handle(begin(session), "q"))
    prefix = Prefix(session)
    queue = actor.sent.setdefault(session, asyncio.Queue())
    while len(prefix) < NUM_TOKENS:
        message = await asyncio.wait_for(queue.get(), 60)
        if isinstance(message, DecoderFailed):
            return message.reason
        if isinstance(message, Local) and message.body.digest == prefix.digest:
            # Every third draft is replaced, so that sessions are rolled back.
            step = len(prefix)
            prefix.append(message.body.tokens[0] if (session + step) % 3 else 7)
            is_last = len(prefix) == NUM_TOKENS
            commit = decided(step, prefix.tokens[-1], session=session, is_last=is_last)
            actor.dispatch(actor.handle(commit, "q"))
    actor.dispatch(actor.handle(End(session=session), "q"))
    return prefix.tokens


async def started(tmp_path: Path) -> Decoder:
    actor = Decoder(tmp_path)
    await actor.prepare()
    return actor


async def test_many_at_once_give_the_tokens_of_one_at_a_time(tmp_path: Path) -> None:
    actor = await started(tmp_path)
    assert actor.engine.runner.fault is None
    together = await asyncio.gather(*(answer(actor, session) for session in range(16)))
    extra = (await actor.statistics()).extra
    assert extra["num_passes"] < extra["num_forwards"] / 4
    other = await started(tmp_path)
    some = range(0, 16, 2)
    assert [await answer(other, session) for session in some] == [together[session] for session in some]
    assert len({tuple(tokens) for tokens in together}) > 4
    actor.wake.set()
    await until(lambda: not actor.engine.runner.sessions)
    for one in (actor, other):
        await one.close()


async def test_a_query_that_fails_in_a_batch_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Engine.forward

    def broken(self: Engine, answers: dict[str, Any], *how: Any, **options: Any) -> list[torch.Tensor]:
        if len(answers.get("2", ())) == 1:
            raise GenerationError("Session 2 is broken.")
        return forward(self, answers, *how, **options)

    monkeypatch.setattr(Engine, "forward", broken)
    actor = await started(tmp_path)
    results = await asyncio.gather(*(answer(actor, session) for session in range(4)))
    assert results[2] == "Session 2 is broken."
    assert all(len(results[session]) == NUM_TOKENS for session in (0, 1, 3))
    await actor.close()


def test_a_batch_has_one_job_of_each_session_in_turn() -> None:
    """Jobs of one kind, in order of waiting; who is left out comes first the next time."""
    table = DecodingTable(Party.CLOUD)
    for session in range(5):
        table.receive(begin(session))
    assert [job.session for job in table.next_jobs(3)] == [0, 1, 2]
    assert [job.session for job in table.next_jobs(3)] == [3, 4, 0]
    for session in (0, 1, 2, 3):
        table.sessions[session].finish_prefill(0, ())
    kinds = [type(job) for job in table.next_jobs(128)]
    assert kinds in ([Forward] * 4, [Prefill])
    second = [type(job) for job in table.next_jobs(128)]
    assert {*kinds, *second} == {Forward, Prefill}


TEXTS = ["Mira likes puzzle games.", "The best rated puzzle game is Vantelu Cor."]


async def decoder(party: Party, tmp_path: Path, *settings: str) -> DecoderActor:
    config = Config.load(None, settings)
    actor = DecoderActor(party, Runtime(secret=b"s", directory=str(tmp_path / "sockets"), config=config))
    PLANES.append(actor)
    await actor.prepare()
    return actor


def prefill(actor: DecoderActor) -> Prompt:
    """As the worker does."""
    engine = actor.engine
    opened = engine.open("s", "Which game should Mira try?", TEXTS, 8)
    engine.next_logits("s", [])
    engine.close("s")
    return opened


def counters(extra: dict[str, float]) -> tuple[float, float]:
    return extra["kv_hits"], extra["kv_misses"]


async def test_a_restarted_decoder_finds_what_the_first_one_computed(tmp_path: Path) -> None:
    first = await decoder(Party.DEVICE, tmp_path)
    assert (await first.statistics()).extra["kv_bytes"] == 0
    prefill(first)
    assert counters((await first.statistics()).extra) == (0, 2)
    again = await decoder(Party.DEVICE, tmp_path)
    prefill(again)
    extra = (await again.statistics()).extra
    assert counters(extra) == (2, 0)
    files = list(kv_folder(Party.DEVICE, again.config).glob("*/*/*"))
    assert extra["kv_bytes"] == sum(path.stat().st_size for path in files) > 0


async def with_damaged_store(party: Party, folder: Path) -> DecoderActor:
    """The decoder of a party whose stored caches have lost their last byte."""
    first = await decoder(party, folder)
    prefill(first)
    for path in kv_folder(party, first.config).glob("*/*/*"):
        path.write_bytes(path.read_bytes()[:-1])
    return await decoder(party, folder)


async def test_what_the_store_left_unused_is_noted_once(tmp_path: Path) -> None:
    again = await with_damaged_store(Party.DEVICE, tmp_path)
    notes = again.notes(prefill(again), is_home=True)
    assert len(notes) == 2
    assert all("is damaged or of another kind" in note for note in notes)
    assert again.notes(prefill(again), is_home=True) == ()
    other = await decoder(Party.DEVICE, tmp_path, "device.dtype=bfloat16")
    assert (again.description["has_stale_caches"], other.description["has_stale_caches"]) == (False, True)
    assert other.notes(prefill(other), is_home=True) == (), "that nothing is wrong with"


async def test_no_path_of_this_machine_goes_elsewhere(tmp_path: Path) -> None:
    again = await with_damaged_store(Party.CLOUD, tmp_path)
    notes = again.notes(prefill(again), is_home=False)
    assert notes == ("The cloud cannot use its stored caches; its log says why.",)


TEXT = "Mira likes puzzle games."


def device(*settings: str) -> PartyConfig:
    return Config.load(None, settings).device


@pytest.mark.parametrize(
    ("kind", "store"), [("disk", DiskStore), ("memory", MemoryStore), ("off", type(None))]
)
def test_the_store_is_that_of_the_settings(tmp_path: Path, kind: str, store: type) -> None:
    warnings: list[str] = []
    engine = open_engine(device(f"device.kv_store={kind}"), tmp_path / "kv", warnings.append)
    assert type(engine.caches.store) is store
    engine.document_cache(TEXT)
    assert (tmp_path / "kv").exists() == (kind == "disk")
    assert warnings == []


def test_parties_with_equal_models_share_their_weights() -> None:
    first, second = load_engine(device()), load_engine(device("device.template=plain"))
    own, other = (dict(engine.runner.model.named_parameters()) for engine in (first, second))
    assert all(own[name] is other[name] for name in own)
    assert first.runner.model is not second.runner.model
    first.open("x", "Which game should Mira try?", [TEXT], 4)
    second.open("x", "Why?", ["Else."], 4)
    apart = load_engine(device("device.dtype=bfloat16"))
    assert not set(map(id, apart.runner.model.parameters())) & set(map(id, own.values()))
    before, after = ([engine.next_logits("x", ()) for engine in (first, second)] for _ in range(2))
    assert all(map(torch.equal, before, after))


def test_weights_that_nobody_uses_any_more_are_freed() -> None:
    engine = load_engine(device("device.dtype=float16"))
    weights = weakref.ref(engine.runner.shared)
    assert weights() is not None
    del engine
    gc.collect()
    assert weights() is None
