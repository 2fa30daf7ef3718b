"""A count of what leaves a party for a question, by kind: every frame is counted as it is handed to the link.

Each byte belongs to one kind, so that the kinds add up to what the link's own counters say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tandem.actors.draft_queue import DraftQueueActor
from tandem.aggregation.rules import LOTTERY
from tandem.messages import LinkFrame, ListRequest, Open, Probe, Resync, Sources, Verdict, Vote, encode
from tandem.messages.wire import varint_bytes
from tandem.modes import SessionSpec
from tandem.protocol.routes import Send
from tandem.transport.port import join_frames

KINDS = {
    "handshake": "the token of the join link, versions and a random number, once per connection",
    "question": "the question and earlier turns of the conversation, as text",
    "filter": "the metadata filter for the peer's documents",
    "opening": "sampling options, seed, stop texts and settings of the question",
    "drafts": "ids of drafted tokens",
    "race lists": "the likeliest candidates of each draft or vote, with their scores",
    "distributions": "the probabilities behind each draft or vote",
    "document weights": "how well the own documents fit, one number for each draft or vote",
    "committed tokens": "ids of tokens of the answer",
    "log probabilities": "how probable committed tokens and the likeliest ones were, where the question asks for it",
    "source ids": "opaque ids of the documents that were used, and notes on them",
    "list requests": "where a race list of the peer left the winner open",
    "probes": "zeros that measure the link's speed",
    "headers and receipts": "counts, digests, stamps and what was received, in every frame",
}
"""All kinds of bytes, and what each holds."""
LOG_WEIGHT_BYTES = 4
OnFrame = Callable[[LinkFrame, bytes], None]


@dataclass
class Tally:
    """Counts and bytes of each kind that has left so far."""

    num_frames: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # items: questions, drafts, lists, ...
    num_bytes: dict[str, int] = field(default_factory=dict)
    _payloads: str = "distributions"  # of drafts and votes, as the question was opened

    @property
    def total_bytes(self) -> int:
        """The bytes of everything that has left."""
        return sum(self.num_bytes.values())

    def add_handshake(self, hello: bytes) -> None:
        """One connection was opened."""
        self._add("handshake", 1, len(join_frames([hello])))

    def add(self, frame: LinkFrame, encoded: bytes) -> None:
        """One frame leaves."""
        before = self.total_bytes
        self._add_body(frame.body)
        self.num_frames += 1
        rest = len(join_frames([encoded])) - (self.total_bytes - before)
        self._add("headers and receipts", 1, rest)

    def _add_body(self, body: Any) -> None:
        match body:
            case Open(spec=text):
                self._add_opening(SessionSpec.from_json(text), len(text.encode()))
            case Vote():
                self._add("drafts", len(body.tokens), sum(varint_bytes(token) for token in body.tokens))
                self._add_votes(body.payloads, len(body.log_weights))
            case Verdict() | Resync():
                size = sum(varint_bytes(token) for token in body.tokens)
                self._add("committed tokens", len(body.tokens), size)
                if isinstance(body, Verdict):
                    known = [tail for place in range(len(body.tokens)) if (tail := body.tail_at(place))]
                    self._add("log probabilities", len(known), sum(len(encode(tail)) for tail in known))
            case Sources():
                size = sum(len(text.encode()) for text in (*body.ids, *body.notes))
                self._add("source ids", len(body.ids), size)
            case Probe():
                self._add("probes", 1, len(body.padding))
            case ListRequest():
                self._add("list requests", 1, len(body.digest))

    def _add_opening(self, spec: SessionSpec, num_bytes: int) -> None:
        question = sum(len(text.encode()) for text in spec.texts)
        filters = len(spec.device_filter.encode()) + len(spec.cloud_filter.encode())
        by_lottery = spec.rules.draft_rule == LOTTERY
        self._payloads = "drafts" if by_lottery else "race lists" if spec.race_depth else "distributions"
        self._add("question", 1, question)
        self._add("filter", int(filters > 0), filters)
        self._add("opening", 1, num_bytes - question - filters)

    def _add_votes(self, payloads: tuple[bytes, ...], num_weights: int) -> None:
        self._add(self._payloads, len(payloads), sum(map(len, payloads)))
        self._add("document weights", num_weights, num_weights * LOG_WEIGHT_BYTES)

    def _add(self, kind: str, count: int, num_bytes: int) -> None:
        if count:
            self.counts[kind] = self.counts.get(kind, 0) + count
            self.num_bytes[kind] = self.num_bytes.get(kind, 0) + num_bytes


def listening_queue(party: str, on_frame: OnFrame) -> type[DraftQueueActor]:
    """A draft queue that shows every frame of one party as it is handed to the link; for `actor_classes`."""

    class ListeningQueue(DraftQueueActor):
        """Shows what it sends."""

        def send_to_peer(self, send: Send, frame: bytes) -> None:
            """To the peer, and to all listeners."""
            if self.party == party:
                on_frame(send.message, frame)
            super().send_to_peer(send, frame)

    return ListeningQueue
