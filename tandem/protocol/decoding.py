"""One session as a decoder sees it: its documents, and what a commit, a rollback or a Resync changes.

It decides what to compute and does no computation: the driver runs each `Job` on the model and returns the result.
What is computed depends on the party's role: own drafts (`drafting`), or votes on what another proposes (`following`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from tandem.aggregation.proposals import Proposed
from tandem.conversation import Message
from tandem.protocol.line import DraftLine
from tandem.protocol.messages import (
    Adopt,
    Commit,
    DecoderFailed,
    DecoderReady,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
)
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.relevance import RelevanceWeights, Weights
from tandem.protocol.spec import SessionSpec
from tandem.topology import at_start


@dataclass(frozen=True, slots=True)
class Prefill:
    """Open the session in the engine: one row per document given here."""

    session: int
    query: str
    documents: tuple[str, ...]
    max_new_tokens: int
    history: tuple[Message, ...] = ()  # of the conversation, before the query
    day: str = ""  # of the query, where a chat template writes it

    @property
    def num_rows(self) -> int:
        """Rows of the model's batch."""
        return max(1, len(self.documents))


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute this party's distribution for one step, and for some steps before it in the same pass."""

    session: int
    step: int
    digest: bytes  # of `tokens`
    tokens: tuple[int, ...]  # x_<t
    weights: Weights  # one per document
    lineage: tuple[bytes, ...] = field(default=(), compare=False)  # digests of all beginnings of `tokens`
    earlier: tuple[Weights, ...] = ()  # of the steps before it that are wanted too, in order
    proposed: tuple[Proposed | None, ...] = ()  # by another party at these steps and at this one, or nothing

    @property
    def first(self) -> int:
        """The first step that is wanted."""
        return self.step - len(self.earlier)

    @property
    def num_rows(self) -> int:
        """Rows of the model's batch."""
        return max(1, len(self.weights)) * (1 + len(self.earlier))


Job = Prefill | Forward


class Computed(Protocol):
    """What a forward pass gave at one step."""

    @property
    def token(self) -> int:
        """Drawn from the distribution, or chosen by the rule."""

    @property
    def payload(self) -> bytes:
        """What is sent of it."""

    @property
    def decode_us(self) -> int:
        """Time of the pass, microseconds."""


class Result(NamedTuple):
    """A plain `Computed`."""

    token: int
    payload: bytes
    decode_us: int


class DecodingSession(ABC):
    """The state of one query in a decoder.

    Invariant: one result per prefix, ever; what was computed is stored and emitted again from the store.
    """

    def __init__(self, spec: SessionSpec, party: str, text: Callable[[Sequence[int]], str]) -> None:
        """text: turns answer tokens into text, for the re-estimation of relevance."""
        self.spec = spec
        self.party = party
        self.line = DraftLine(spec.session)
        self.relevance = RelevanceWeights(spec, text)
        self._retrieved: RetrieveResult | None = None
        self._is_filtered_out = False
        self._is_prefilled = False
        self._ready: DecoderReady | None = None  # what the coordinator knows of the documents
        self._has_ended = False  # the answer is complete

    @property
    def prefix(self) -> Prefix:
        """The committed tokens, then those that this party computes on."""
        return self.line.prefix

    # ---- what the roles differ in ------------------------------------------------------------------------------

    @abstractmethod
    def finish(self, job: Forward, results: Sequence[Computed]) -> list[Send]:
        """What a pass gave at the steps of `job`."""

    @abstractmethod
    def is_current(self, job: Forward) -> bool:
        """Whether the result of `job` is still wanted; the model asks between layers."""

    @abstractmethod
    def _next_forward(self, ids: tuple[str, ...]) -> Forward | None:
        """What to compute now with these documents; None: nothing, or a weight is still missing."""

    @abstractmethod
    def _on_order(self, message: Any) -> list[Send]:
        """A message that only this role knows."""

    @abstractmethod
    def _extend(self) -> list[Send]:
        """Go on with what is known of the tokens after the line, which has changed."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what no later step can need."""

    @property
    def _first_step(self) -> int:
        """The first step whose weights are needed."""
        return len(self.prefix)

    # ---- entries -------------------------------------------------------------------------------------------------

    def begin(self) -> list[Send]:
        """Ask for documents."""
        spec = self.spec
        num_documents = spec.num_documents(self.party)
        if num_documents == 0:
            nothing = RetrieveResult(session=spec.session, ids=(), texts=(), scores=(), retrieve_us=0)
            return self.receive(nothing)
        request = RetrieveRequest(
            session=spec.session,
            query=spec.search_text,
            num_documents=num_documents,
            filter=spec.filter(self.party),
        )
        return [Send("retriever", request)]

    def begin_again(self) -> list[Send]:
        """The coordinator was restarted, or waits for too long, and will Adopt.

        What was retrieved, prefilled and computed here stays; what the retriever owes is asked for again.
        """
        if self._retrieved is None:
            return self.begin()
        self.relevance.forget_request()
        ready = [] if self._ready is None else [Send("draft_queue", self._ready)]
        return [*ready, *self.request_weights()]

    def receive(self, message: Any) -> list[Send]:
        """Any message of this session."""
        match message:
            case RetrieveResult():
                self._retrieved = message
                self._is_filtered_out = self._lets_nothing_through(message)
                self.relevance.weights[self.prefix.digests[0]] = self.relevance.scale(message.scores)
                return []
            case RetrieveFailed():
                failed = DecoderFailed(
                    session=self.spec.session, reason=message.reason, is_refused=message.is_refused
                )
                return [Send("draft_queue", failed)]
            case RescoreResult():
                self.relevance.receive(message, self.prefix)
                return self.request_weights()
            case Commit():
                return self._on_commit(message)
            case Adopt():
                return self._on_adopt(message)
            case _:
                return self._on_order(message)

    def finish_prefill(
        self, prefill_us: int, notes: tuple[str, ...], rows: Sequence[int] | None = None
    ) -> list[Send]:
        """The engine holds the query and the documents `rows` of the job, one row each (indices; None: all)."""
        assert self._retrieved is not None
        self._is_prefilled = True
        self._retrieved = retrieved = _select(self._retrieved, rows)
        self.relevance.weights[self.prefix.digests[0]] = self.relevance.scale(retrieved.scores)
        self._ready = DecoderReady(
            session=self.spec.session,
            sources=retrieved.ids,
            scores=retrieved.scores,
            retrieve_us=retrieved.retrieve_us,
            prefill_us=prefill_us,
            notes=(*self._notes_on_filter(), *notes),
        )
        # A restarted decoder, or a cloud that joins late, begins in the middle of an answer.
        return [Send("draft_queue", self._ready), *self.request_weights()]

    def _lets_nothing_through(self, retrieved: RetrieveResult) -> bool:
        """Whether documents were searched for, and the filter left none."""
        is_searched = self.spec.num_documents(self.party) > 0 and bool(self.spec.filter(self.party))
        return is_searched and not retrieved.ids

    def _notes_on_filter(self) -> tuple[str, ...]:
        if not self._is_filtered_out:
            return ()
        return (f"{at_start(self.party)} has no document that its filter lets through; it answers without.",)

    def request_weights(self) -> list[Send]:
        """Ask the retriever for the next estimation that the line will need."""
        # Until the prefill it is not known which documents have a row.
        if self._retrieved is None or not self._is_prefilled or self._has_ended:
            return []
        return self.relevance.request_next(self.prefix, self._retrieved.ids, self._first_step)

    # ---- planning ------------------------------------------------------------------------------------------------

    def next_job(self) -> Job | None:
        """What to compute now, or None: there is nothing to do, or a weight is still missing."""
        if self._retrieved is None or self._has_ended:
            return None
        if not self._is_prefilled:
            return Prefill(
                session=self.spec.session,
                query=self.spec.query,
                documents=self._retrieved.texts,
                max_new_tokens=self.spec.sampling.max_new_tokens,
                history=self.spec.history,
                day=self.spec.day,
            )
        return self._next_forward(self._retrieved.ids)

    def _may_continue(self, step: int) -> bool:
        """Whether the answer can have a token at `step`, behind the line's tokens before it."""
        if self._has_ended or step >= self.spec.sampling.max_new_tokens:
            return False
        return step == 0 or self.prefix.tokens[step - 1] not in self.spec.eos_token_ids

    # ---- changes -------------------------------------------------------------------------------------------------

    def _on_commit(self, commit: Commit) -> list[Send]:
        if not self.line.commit(commit):
            return []
        self._has_ended = commit.is_last
        self._forget()
        return self._continue()

    def _on_adopt(self, adopt: Adopt) -> list[Send]:
        if not self.line.adopt(adopt):
            return []
        self._has_ended = adopt.is_last
        return self._continue()

    def _continue(self) -> list[Send]:
        """After a change of what is committed."""
        if (following := self.line.take_next()) is not None:
            return self._on_commit(following)
        return [*self.request_weights(), *self._extend()]


def _select(retrieved: RetrieveResult, rows: Sequence[int] | None) -> RetrieveResult:
    if rows is None:
        return retrieved
    ids = tuple(retrieved.ids[row] for row in rows)
    texts = tuple(retrieved.texts[row] for row in rows)
    scores = tuple(retrieved.scores[row] for row in rows)
    return replace(retrieved, ids=ids, texts=texts, scores=scores)
