"""Actors that share a process: the same answers as apart, without a frame between them. No Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from tandem.actors.base import SharedProcess, SiteActor
from tandem.actors.draft_queue import DraftQueueActor
from tandem.actors.retriever import AggregatorActor, ProfilerActor, SchedulerActor
from tandem.client.request import spec_of
from tandem.codecs import codec_of
from tandem.codecs.votes import write_token
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS
from tandem.engine.tokenizer import Detokenizer
from tandem.events import DoneEvent, Event, TokenEvent
from tandem.messages import Local, Vote, decode, encode
from tandem.protocol.log import Prefix
from tandem.protocol.routes import ActorKind
from tandem.protocol.services import AggregatingTable
from tandem.topology import Party

from .conftest import Outbox, runtime

SESSION, NUM_TOKENS = 7, 6
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

    def __init__(self, *, together: bool) -> None:
        groups = [CLASSES] if together else [{role: CLASSES[role]} for role in CLASSES]
        self.actors: dict[str, SiteActor] = {}
        for group in groups:
            self.actors |= {a.name: a for a in SharedProcess(Party.DEVICE, runtime(), group).actors.values()}
        for name, actor in self.actors.items():
            actor.plane = Wire(name, self)  # type: ignore[assignment]
        codec = codec_of(Config().codec, "the test")
        self.actors["device/aggregator"].table = AggregatingTable(Party.DEVICE, codec)  # as `bind` does
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

    def propose(self, prefix: Prefix, token: int) -> None:
        """As the decoder does."""
        vote = Vote(
            step=len(prefix),
            digest=prefix.digest,
            tokens=(token,),
            payloads=(write_token(token),),
            log_weights=(0.0,),
            decode_us=1,
        )
        self.queue.on_frames("device/decoder", [encode(Local(session=SESSION, body=vote))])
        self.run()


async def answer(site: Site) -> list[Event]:
    """Events of a query of the device alone whose drafts are tokens 3, 4, 5 ..."""
    await site.queue.set_detokenizer(Detokenizer((WEIGHTS / "tokenizer.json").read_text("utf-8")))
    asked = {"session": SESSION, "query": "q", "only": Party.DEVICE, "vocab_size": 64, "eos_token_ids": (2,)}
    spec = replace(spec_of(Config()), **asked)  # type: ignore[arg-type]
    spec = replace(spec, sampling=replace(spec.sampling, max_new_tokens=NUM_TOKENS, temperature=0.0))
    await site.queue.open(spec.to_json())
    site.run()
    prefix = Prefix(SESSION)
    for step in range(NUM_TOKENS):
        site.propose(prefix, 3 + step)
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
