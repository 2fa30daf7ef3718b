"""Actors that share a process: the same answers as apart, and one that fails does not hurt the others. No Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tandem.actors.base import SharedProcess, SiteActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import AggregatorActor, ProfilerActor, SchedulerActor
from tandem.client.request import spec_of
from tandem.codecs import codec_of
from tandem.codecs.votes import write_token
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS
from tandem.engine.tokenizer import Detokenizer
from tandem.errors import TandemError
from tandem.events import DoneEvent, EstimateEvent, Event, TokenEvent
from tandem.messages import Local, Vote, decode, encode
from tandem.protocol.log import Prefix
from tandem.protocol.routes import ActorKind, Send
from tandem.topology import Party

from .conftest import Outbox, runtime

SESSION, VOCAB, NUM_TOKENS = 7, 64, 6
CLASSES: dict[ActorKind, type[SiteActor]] = {
    "draft_queue": DraftQueueActor,
    "aggregator": AggregatorActor,
    "profiler": ProfilerActor,
    "scheduler": SchedulerActor,
}


class Wire(Outbox):
    """A data plane to all actors of the test; what is for none of them, a decoder's messages, is kept."""

    def __init__(self, name: str, site: Site) -> None:
        super().__init__()
        self.name, self.site = name, site
        self.waiting: list[tuple[str, bytes]] = []

    def send(self, to: str, frame: bytes) -> None:
        self.waiting.append((to, frame))

    def flush(self) -> None:
        self.site.frames += [(self.name, *sent) for sent in self.waiting]
        self.waiting = []


class Site:
    """The device's draft queue and light actors, in one process or apart; the test is their decoder."""

    def __init__(self, *, together: bool, classes: Mapping[ActorKind, type[SiteActor]] | None = None) -> None:
        every: dict[ActorKind, type[SiteActor]] = {**CLASSES, **(classes or {})}
        groups = [every] if together else [{role: every[role]} for role in every]
        self.actors: dict[str, SiteActor] = {}
        for group in groups:
            self.actors |= {a.name: a for a in SharedProcess(Party.DEVICE, runtime(), group).actors.values()}
        for name, actor in self.actors.items():
            actor.plane = Wire(name, self)  # type: ignore[assignment]
        self.frames: list[tuple[str, str, bytes]] = []  # sender, receiver, frame
        self.num_frames = 0  # between two actors of the test
        self.to_decoder: list[Any] = []

    @property
    def queue(self) -> Any:
        return self.actors["device/draft_queue"]

    def run(self) -> None:
        """Deliver frames until there are none."""
        while self.frames:
            source, to, frame = self.frames.pop(0)
            if to in self.actors:
                self.num_frames += 1
                self.actors[to].on_frames(source, [frame])
            else:
                self.to_decoder.append(decode(frame))

    def propose(self, prefix: Prefix, token: int, *, is_solo: bool) -> None:
        """As the decoder does."""
        payload = write_token(token) if is_solo else None
        self.queue.on_frames("device/decoder", [encode(make_proposal(prefix, token, payload))])
        self.run()


def make_proposal(prefix: Prefix, token: int, payload: bytes | None = None) -> Local:
    dense = np.full(VOCAB, 0.01) + np.eye(VOCAB)[token]
    codec = spec_of(Config()).rules.codec_of_votes(codec_of(Config().codec, "the test")).open()
    vote = Vote(
        step=len(prefix),
        digest=prefix.digest,
        tokens=(token,),
        payloads=(payload or codec.encode(dense / dense.sum())[0],),
        log_weights=(0.0,),
        decode_us=1,
    )
    return Local(session=SESSION, body=vote)


async def answer(site: Site, *, only: Party | None = Party.DEVICE) -> list[Event]:
    """Events of a query whose drafts are tokens 3, 4, 5 ... of a sharp distribution."""
    await site.queue.set_detokenizer(Detokenizer((WEIGHTS / "tokenizer.json").read_text("utf-8")))
    spec = replace(
        spec_of(Config()), session=SESSION, query="q", only=only, vocab_size=VOCAB, eos_token_ids=(2,)
    )
    spec = replace(spec, sampling=replace(spec.sampling, max_new_tokens=NUM_TOKENS, temperature=0.0))
    await site.queue.open(spec.to_json())
    site.run()
    prefix = Prefix(SESSION)
    for step in range(NUM_TOKENS):
        site.propose(prefix, 3 + step, is_solo=only is not None)
        prefix.append(3 + step)
    events: list[Event] = await site.queue.events(SESSION, 0, 1.0, False)
    await asyncio.sleep(0)  # its timer begins
    await site.queue.close()
    return events


def test_together_answers_as_apart_without_a_frame_between_them() -> None:
    def run(*, together: bool) -> tuple[list[Any], list[Any], int]:
        site = Site(together=together)
        events = asyncio.run(answer(site))
        tokens = [(event.token, event.aggregator) for event in events if isinstance(event, TokenEvent)]
        assert isinstance(events[-1], DoneEvent)
        return tokens, [type(message) for message in site.to_decoder], site.num_frames

    apart, together = run(together=False), run(together=True)
    assert [token for token, _ in together[0]] == [3 + step for step in range(NUM_TOKENS)]
    assert together[:2] == apart[:2]
    assert apart[2] >= 2 * NUM_TOKENS
    assert together[2] == 0


class BrokenProfiler(ProfilerActor):
    """Fails on every message, also on the way to say so."""

    num_failures = 0

    def handle(self, message: Any, source: str) -> list[Send]:
        raise ValueError("broken")

    def on_error(self, message: Any, error: TandemError) -> None:
        BrokenProfiler.num_failures += 1
        raise ValueError("broken again")


def test_a_broken_actor_does_not_hurt_those_beside_it() -> None:
    BrokenProfiler.num_failures = 0
    site = Site(together=True, classes={"profiler": BrokenProfiler})
    events = asyncio.run(answer(site, only=None))  # a solo query would not need a profiler
    sound = Site(together=True)
    assert [type(event) for event in events] == [
        type(event) for event in asyncio.run(answer(sound, only=None)) if not isinstance(event, EstimateEvent)
    ]
    assert BrokenProfiler.num_failures > 0
