"""One session as a decoder sees it: what to compute next, and what a commit, a rollback or a Resync changes.

It decides what to compute and does no computation: the driver runs each `Job` on the model and returns the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from tandem.aggregation.document_weights import log_weight
from tandem.conversation import Message
from tandem.protocol.line import DraftLine
from tandem.protocol.messages import (
    Adopt,
    Commit,
    DecoderFailed,
    DecoderReady,
    Proposal,
    ProposalReady,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    Window,
)
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.relevance import RelevanceWeights, Weights
from tandem.protocol.spec import SessionSpec
from tandem.protocol.wire import to_float32
from tandem.topology import PARTIES, Party


@dataclass(frozen=True, slots=True)
class Prefill:
    """Open the session in the engine: one row per document given here."""

    session: int
    query: str
    documents: tuple[str, ...]
    max_new_tokens: int
    history: tuple[Message, ...] = ()  # of the conversation, before the query

    @property
    def num_rows(self) -> int:
        """Rows of the model's batch."""
        return max(1, len(self.documents))


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute this party's distribution for one step."""

    session: int
    step: int
    digest: bytes  # of `tokens`
    tokens: tuple[int, ...]  # x_<t
    weights: Weights  # one per document
    lineage: tuple[bytes, ...] = field(default=(), compare=False)  # digests of all beginnings of `tokens`

    @property
    def num_rows(self) -> int:
        """Rows of the model's batch."""
        return max(1, len(self.weights))


Job = Prefill | Forward


class DraftingSession:
    """The state of one query in a decoder.

    Invariant: one proposal per prefix, ever; what was computed is stored and emitted again from the store.
    """

    def __init__(self, spec: SessionSpec, party: Party, text: Callable[[Sequence[int]], str]) -> None:
        """text: turns answer tokens into text, for the re-estimation of relevance."""
        self.spec = spec
        self.party = party
        self.line = DraftLine(spec.session)
        self.relevance = RelevanceWeights(spec, text)
        self.window = 1 if spec.synchronous else min(4, spec.max_window)
        self._retrieved: RetrieveResult | None = None
        self._is_filtered_out = False
        self._is_prefilled = False
        self._ready: DecoderReady | None = None  # what the coordinator knows of the documents
        self._has_ended = False  # the answer is complete
        self._proposals: dict[bytes, Proposal] = {}  # by digest of their prefix

    @property
    def prefix(self) -> Prefix:
        """The committed tokens, then the own drafts."""
        return self.line.prefix

    @property
    def num_proposals(self) -> int:
        """Proposals that are stored."""
        return len(self._proposals)

    # ---- entries ---------------------------------------------------------------------------------------------

    def begin(self) -> list[Send]:
        """Ask for documents."""
        spec = self.spec
        num_documents = spec.num_documents(self.party)
        if num_documents == 0:
            nothing = RetrieveResult(session=spec.session, ids=(), texts=(), scores=(), retrieve_us=0)
            return self.receive(nothing)
        request = RetrieveRequest(
            session=spec.session,
            query=spec.query,
            num_documents=num_documents,
            filter=spec.filter(self.party),
        )
        return [Send("retriever", request)]

    def begin_again(self) -> list[Send]:
        """The coordinator was restarted, or waits for too long, and will Adopt.

        What was retrieved, prefilled and drafted here stays; what the retriever owes is asked for again.
        """
        if self._retrieved is None:
            return self.begin()
        self.relevance.forget_request()
        ready = [] if self._ready is None else [Send("draft_queue", self._ready)]
        return [*ready, *self.request_weights()]

    def receive(
        self, message: RetrieveResult | RetrieveFailed | RescoreResult | Commit | Adopt | Window
    ) -> list[Send]:
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
            case Window():
                if not self.spec.synchronous:
                    self.window = max(1, min(message.size, self.spec.max_window))
                return self._replay()  # what was drafted under a wider window
            case _:
                assert_never(message)

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
        return (f"The {self.party} has no document that its filter lets through; it answers without.",)

    def finish_forward(self, job: Forward, payload: bytes, token: int, decode_us: int) -> list[Send]:
        """Propose the result of `job`. payload: its encoded distribution; token: drawn from the decoded form."""
        if not self.is_current(job):
            return []
        proposal = Proposal(
            party=PARTIES.index(self.party),
            step=job.step,
            digest=job.digest,
            tokens=(token,),
            payloads=(payload,),
            log_weights=(to_float32(log_weight(job.weights)),),
            decode_us=decode_us,
        )
        self._proposals[job.digest] = proposal
        return self._emit(proposal)

    def request_weights(self) -> list[Send]:
        """Ask the retriever for the next estimation that the line will need."""
        # Until the prefill it is not known which documents have a row.
        if self._retrieved is None or not self._is_prefilled or self._has_ended:
            return []
        return self.relevance.request_next(self.prefix, self._retrieved.ids)

    def _replay(self) -> list[Send]:
        """Emit again what was already drafted on the present prefix: the stored bytes."""
        sends: list[Send] = []
        while self._may_draft() and (stored := self._proposals.get(self.prefix.digest)) is not None:
            sends += self._emit(stored)
        return sends

    # ---- planning --------------------------------------------------------------------------------------------

    def next_job(self) -> Job | None:
        """What to compute now, or None: nothing may be drafted, or a weight is still missing."""
        if self._retrieved is None or self._has_ended:
            return None
        if not self._is_prefilled:
            return Prefill(
                session=self.spec.session,
                query=self.spec.query,
                documents=self._retrieved.texts,
                max_new_tokens=self.spec.sampling.max_new_tokens,
                history=self.spec.history,
            )
        step = len(self.prefix)
        if not self._may_draft():
            return None
        weights = self.relevance.weights_for(self.prefix, self._retrieved.ids)
        if weights is None:
            return None
        tokens, lineage = tuple(self.prefix.tokens), tuple(self.prefix.digests)
        return Forward(self.spec.session, step, self.prefix.digest, tokens, weights, lineage)

    def is_current(self, job: Forward) -> bool:
        """Whether the result of `job` is still wanted; the model asks between layers."""
        return not self._has_ended and len(self.prefix) == job.step and self.prefix.digest == job.digest

    def _may_draft(self) -> bool:
        step = len(self.prefix)
        if (
            self._has_ended
            or step >= self.spec.sampling.max_new_tokens
            or step - self.line.num_committed >= self.window
        ):
            return False
        return step == 0 or self.prefix.tokens[-1] not in self.spec.eos_token_ids

    # ---- changes ---------------------------------------------------------------------------------------------

    def _emit(self, proposal: Proposal) -> list[Send]:
        self.prefix.extend(proposal.tokens)
        ready = ProposalReady(session=self.spec.session, proposal=proposal)
        return [Send("draft_queue", ready), *self.request_weights()]

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
        return [*self.request_weights(), *self._replay()]

    def _forget(self) -> None:
        """Drop what no later step can need: proposals and weights well before the committed prefix."""
        num_committed = self.line.num_committed
        horizon = num_committed - 2 * (self.spec.weight_interval + self.spec.weight_lag)
        if horizon > 0 and num_committed % 32 == 0:
            self.relevance.forget(self.prefix)
            self._proposals = {key: kept for key, kept in self._proposals.items() if kept.step >= horizon}


def _select(retrieved: RetrieveResult, rows: Sequence[int] | None) -> RetrieveResult:
    if rows is None:
        return retrieved
    ids = tuple(retrieved.ids[row] for row in rows)
    texts = tuple(retrieved.texts[row] for row in rows)
    scores = tuple(retrieved.scores[row] for row in rows)
    return replace(retrieved, ids=ids, texts=texts, scores=scores)
