"""What the cloud has of one question: the frames that it received, decoded, and the answer that both parties know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.race_lists import RaceList
from tandem.codecs import Codec
from tandem.codecs.race_lists import read_vote
from tandem.messages import LinkFrame, Open, Vote, decode_link
from tandem.messages.wire import varint_bytes
from tandem.modes.spec import SessionSpec
from tandem.protocol.prefix import Prefix

ReadVote: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Ids and probabilities, [n] each: as much of a distribution as was received."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One frame, as bytes."""

    came_s: float  # monotonic
    encoded: bytes


@dataclass(frozen=True, slots=True)
class Drafted:
    """What one proposal says of one step."""

    step: int
    prefix: tuple[int, ...]  # tokens that it was conditioned on, [step]
    token: int
    payload: bytes  # of the distribution; empty where none came along
    log_weight: float | None
    came_s: float
    decode_us: int

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the id and of the distribution."""
        return varint_bytes(self.token), len(self.payload)


@dataclass
class Recorder:
    """Keeps every frame that a device hands to the link, as `listening_queue` shows it."""

    arrivals: list[Arrival] = field(default_factory=list)

    def add(self, frame: LinkFrame, encoded: bytes) -> None:
        """One frame leaves the device."""
        self.arrivals.append(Arrival(time.monotonic(), encoded))

    def take(self) -> list[Arrival]:
        """What came since the last call."""
        taken, self.arrivals = self.arrivals, []
        return taken


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was received of one question, and its answer. spec: None where nothing was received."""

    spec: SessionSpec | None
    drafts: tuple[Drafted, ...]  # in the order in which they came
    answer: tuple[int, ...]
    num_frames: int
    num_bytes: int

    def by_step(self) -> dict[int, Drafted]:
        """The last draft of each step, in the order of the steps."""
        return dict(sorted({draft.step: draft for draft in self.drafts}.items()))

    def vote(self, draft: Drafted, codec: Codec, vocab_size: int) -> ReadVote:
        """The distribution that came with a draft, or the best tokens of it."""
        if self.spec is None or not self.spec.rules.has_race_lists:
            decoded = codec.decode(draft.payload, vocab_size)
            return decoded.ids, decoded.probabilities
        vote = read_vote(draft.payload, vocab_size)
        if isinstance(vote, RaceList):
            return vote.ids, vote.values.astype(np.float64)
        ids = np.flatnonzero(vote)
        return ids, vote[ids].astype(np.float64)


def read_transcript(arrivals: list[Arrival], answer: tuple[int, ...]) -> Transcript:
    """Decode what was received of the question that was opened last; drafts of prefixes nobody knows are left out."""
    received = [(arrival, decode_link(arrival.encoded)) for arrival in arrivals]
    opened = [(frame.session, frame.body.spec) for _, frame in received if isinstance(frame.body, Open)]
    if not opened:
        return Transcript(None, (), answer, 0, 0)
    session, text = opened[-1]
    own = [(arrival, frame) for arrival, frame in received if frame.session == session]
    return Transcript(
        SessionSpec.from_json(text),
        tuple(_drafts(own, Prefix(session, answer))),
        answer,
        len(own),
        sum(len(arrival.encoded) for arrival, _ in own),
    )


def _drafts(received: list[tuple[Arrival, LinkFrame]], answer: Prefix) -> Iterator[Drafted]:
    known = {digest: tuple(answer.tokens[:length]) for length, digest in enumerate(answer.digests)}
    for arrival, frame in received:
        body = frame.body
        if not isinstance(body, Vote) or body.digest not in known:
            continue
        start = known[body.digest]
        for place, token in enumerate(body.tokens):
            prefix = (*start, *body.tokens[:place])
            known[answer.of((*prefix, token)).digest] = (*prefix, token)
            yield Drafted(
                step=body.step + place,
                prefix=prefix,
                token=token,
                payload=body.payloads[place] if body.payloads else b"",
                log_weight=body.log_weights[place] if body.log_weights else None,
                came_s=arrival.came_s,
                decode_us=body.decode_us,
            )
