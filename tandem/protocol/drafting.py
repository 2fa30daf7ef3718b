"""One session as a decoder sees it: what to compute next, and what a commit, a rollback or a Resync changes.

It plans and never computes: the driver runs a `Job` on the model and brings the law back. Weights of documents
are a function of the prefix alone (DRAGON 4.1 with a fixed lag), so timing cannot change an answer.
Knows nothing of models, Ray or clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from tandem.aggregation.document_weights import blend, kappa, log_weight, text_to_score
from tandem.protocol.messages import (
    Adopt,
    Commit,
    DecoderFailed,
    DecoderReady,
    Proposal,
    ProposalReady,
    RescoreRequest,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    Window,
)
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.spec import SessionSpec
from tandem.protocol.wire import to_float32
from tandem.topology import Party

Weights = tuple[float, ...]
"""R(d, x) = scale * score of each row of this side: of each document, in the order of `RetrieveResult.ids`."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Open the session in the engine: one row per document given here."""

    session: int
    query: str
    documents: tuple[str, ...]
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute this side's law for one step."""

    session: int
    step: int
    digest: bytes  # of `tokens`
    tokens: tuple[int, ...]  # x_<t
    weights: Weights  # one per document


Job = Prefill | Forward


class DraftingSession:
    """The state of one query in a decoder."""

    def __init__(self, spec: SessionSpec, party: Party, text: Callable[[Sequence[int]], str]) -> None:
        """`text` turns answer tokens into text, for the re-estimation of relevance."""
        self.spec = spec
        self.party = party
        self.prefix = Prefix(spec.session)  # committed tokens, then own drafts
        self.num_committed = 0
        self.epoch = 0
        self.window = 1 if spec.synchronous else min(4, spec.max_window)
        self.num_forwards = 0
        self._text = text
        self._found: RetrieveResult | None = None
        self._is_filtered_out = False
        self._is_prefilled = False
        self._ready: DecoderReady | None = None  # what was told of the documents
        self._has_ended = False  # the answer is complete
        self._drafts: dict[bytes, tuple[Proposal, int]] = {}  # by prefix digest: one draft per prefix, ever
        self._weights: dict[bytes, Weights] = {}  # by digest of x_<kappa
        self._scoring: bytes | None = None  # digest under way at the retriever
        self._view = 0
        # Commits that overtook an earlier one, or an Adopt: the data plane may be Ray calls. By generation and step.
        self._early: dict[tuple[int, int], Commit] = {}

    # ---- entries ---------------------------------------------------------------------------------------------

    def begin(self) -> list[Send]:
        """Ask for documents."""
        spec = self.spec
        num_documents = spec.num_documents(self.party)
        if num_documents == 0:
            nothing = RetrieveResult(session=spec.session, ids=(), texts=(), scores=(), retrieve_us=0)
            return self.receive(nothing)
        search = RetrieveRequest(
            session=spec.session,
            query=spec.query,
            num_documents=num_documents,
            filter=spec.filter(self.party),
        )
        return [Send("retriever", search)]

    def restart_peer(self) -> list[Send]:
        """The draft queue was started anew and will Adopt; what was found, prefilled and drafted here stays."""
        return [] if self._ready is None else [Send("draft_queue", self._ready)]

    def receive(
        self, message: RetrieveResult | RetrieveFailed | RescoreResult | Commit | Adopt | Window
    ) -> list[Send]:
        """Any message of this session."""
        match message:
            case RetrieveResult():
                self._found = message
                self._is_filtered_out = self._lets_nothing_through(message)
                self._weights[self.prefix.digests[0]] = self._scaled(message.scores)
                return []
            case RetrieveFailed():
                failed = DecoderFailed(
                    session=self.spec.session, reason=message.reason, is_refused=message.is_refused
                )
                return [Send("draft_queue", failed)]
            case RescoreResult():
                return self._on_relevance(message)
            case Commit():
                return self._on_commit(message)
            case Adopt():
                return self._on_adopt(message)
            case Window():
                if not self.spec.synchronous:
                    self.window = max(1, min(message.size, self.spec.max_window))
                return self.replay()  # what was drafted under a wider window
            case _:
                assert_never(message)

    def prefilled(
        self, prefill_us: int, notes: tuple[str, ...], rows: Sequence[int] | None = None
    ) -> list[Send]:
        """The engine holds the query and, one row each, the documents `rows` of the job (indices; None: all)."""
        assert self._found is not None
        self._is_prefilled = True
        self._found = found = _only(self._found, rows)
        self._weights[self.prefix.digests[0]] = self._scaled(found.scores)
        self._ready = DecoderReady(
            session=self.spec.session,
            sources=found.ids,
            scores=found.scores,
            retrieve_us=found.retrieve_us,
            prefill_us=prefill_us,
            notes=(*self._notes_on_filter(), *notes),
        )
        # A decoder that was started anew, or a cloud that joins late, begins amid an answer.
        return [Send("draft_queue", self._ready), *self.missing_weights()]

    def _lets_nothing_through(self, found: RetrieveResult) -> bool:
        """Whether documents were searched for, and the filter left none."""
        is_searched = self.spec.num_documents(self.party) > 0 and bool(self.spec.filter(self.party))
        return is_searched and not found.ids

    def _notes_on_filter(self) -> tuple[str, ...]:
        if not self._is_filtered_out:
            return ()
        return (f"The {self.party} has no document that its filter lets through; it answers without.",)

    def drafted(self, job: Forward, payload: bytes, token: int, decode_us: int) -> list[Send]:
        """The law of `job` is there, encoded, with the token drawn from its decoded form."""
        self.num_forwards += 1
        if not self.is_current(job):
            return []
        draft = Proposal(
            party=self.party,
            step=job.step,
            epoch=self.epoch,
            digest=job.digest,
            log_weight=to_float32(log_weight(job.weights)),
            decode_us=decode_us,
            payload=payload,
        )
        self._drafts[job.digest] = (draft, token)
        return self._emit(draft, token)

    def replay(self) -> list[Send]:
        """Emit again what was already drafted for the present prefix (after a Resync): the stored bytes."""
        sends: list[Send] = []
        while self._may_draft() and (stored := self._drafts.get(self.prefix.digest)) is not None:
            sends += self._emit(*stored)
        return sends

    # ---- planning --------------------------------------------------------------------------------------------

    def next_job(self) -> Job | None:
        """What to compute now, or None: nothing may be drafted, or a weight is still awaited."""
        if self._found is None or self._has_ended:
            return None
        if not self._is_prefilled:
            return Prefill(self.spec.session, self.spec.query, self._found.texts, self.spec.max_new_tokens)
        step = len(self.prefix)
        if not self._may_draft():
            return None
        position = self._kappa(step) if self._found.ids else 0  # without documents nothing is re-estimated
        weights = self._weights.get(self.prefix.digests[position])
        if weights is None:
            return None
        return Forward(self.spec.session, step, self.prefix.digest, tuple(self.prefix.tokens), weights)

    def is_current(self, job: Forward) -> bool:
        """Whether the law of `job` is still wanted; asked by the model between layers."""
        return not self._has_ended and len(self.prefix) == job.step and self.prefix.digest == job.digest

    def missing_weights(self) -> list[Send]:
        """Ask the retriever for the next re-estimation that this prefix will need; one at a time, in order."""
        every = self.spec.weight_interval
        if (
            every == 0
            or self._scoring is not None
            or self._found is None
            or not self._is_prefilled  # until then it is not known which documents have a row
            or not self._found.ids
            or self._has_ended
        ):
            return []
        for position in range(every, len(self.prefix) + 1, every):
            digest = self.prefix.digests[position]
            if digest not in self._weights:
                self._scoring = digest
                text = text_to_score(self.spec.query, self._text(self.prefix.tokens[:position]))
                message = RescoreRequest(
                    session=self.spec.session, digest=digest, ids=self._found.ids, text=text
                )
                return [Send("retriever", message)]
        return []

    def _kappa(self, step: int) -> int:
        every = self.spec.weight_interval
        return kappa(step, every, self.spec.weight_lag) if every else 0

    def _may_draft(self) -> bool:
        step = len(self.prefix)
        if self._has_ended or step >= self.spec.max_new_tokens or step - self.num_committed >= self.window:
            return False
        return step == 0 or self.prefix.tokens[-1] not in self.spec.eos_token_ids

    # ---- changes ---------------------------------------------------------------------------------------------

    def _emit(self, draft: Proposal, token: int) -> list[Send]:
        self.prefix.append(token)
        drafted = ProposalReady(session=self.spec.session, draft=draft, token=token)
        return [Send("draft_queue", drafted), *self.missing_weights()]

    def _on_relevance(self, message: RescoreResult) -> list[Send]:
        """Momentum mixes with the weights of the previous estimation of the same prefix, so it rolls back with it."""
        if message.digest == self._scoring:
            self._scoring = None
        position = self._position(message.digest)
        before = None if position is None else self.prefix.digests[position - self.spec.weight_interval]
        if before is not None and (previous := self._weights.get(before)) is not None:
            fresh = self._scaled(message.scores)
            self._weights[message.digest] = blend(previous, fresh, self.spec.weight_momentum)
        return self.missing_weights()

    def _position(self, digest: bytes) -> int | None:
        """Where `digest` stands in the present prefix; None: that prefix was rolled back meanwhile."""
        every = self.spec.weight_interval
        for position in range(every, len(self.prefix) + 1, every):
            if self.prefix.digests[position] == digest:
                return position
        return None

    def _on_commit(self, commit: Commit) -> list[Send]:
        key = commit.view, commit.step
        if key != (self._view, self.num_committed):
            if key > (self._view, self.num_committed):
                self._early[key] = commit
            return []
        self.num_committed += 1
        self.epoch = commit.epoch
        self._has_ended = commit.is_last
        tokens = self.prefix.tokens
        if commit.step >= len(tokens) or tokens[commit.step] != commit.token:
            self.prefix.truncate(commit.step)
            self.prefix.append(commit.token)
        self._forget()
        return self._go_on()

    def _on_adopt(self, adopt: Adopt) -> list[Send]:
        length = len(adopt.tokens)
        if (adopt.view, length) < (self._view, self.num_committed):
            return []  # overtaken by what came after it
        self._view = adopt.view
        self.epoch = adopt.epoch
        self._has_ended = adopt.is_last
        self.prefix.truncate(self.prefix.common_length(adopt.tokens))
        self.prefix.extend(adopt.tokens[len(self.prefix) :])
        self.num_committed = len(self.prefix)
        self._early = {key: kept for key, kept in self._early.items() if key >= (adopt.view, length)}
        return self._go_on()

    def _go_on(self) -> list[Send]:
        """After a change of what is committed."""
        if (following := self._early.pop((self._view, self.num_committed), None)) is not None:
            return self._on_commit(following)
        return [*self.missing_weights(), *self.replay()]

    def _forget(self) -> None:
        """Drop what no later step can need: drafts and weights well before the committed prefix."""
        horizon = self.num_committed - 2 * (self.spec.weight_interval + self.spec.weight_lag)
        if horizon > 0 and self.num_committed % 32 == 0:
            wanted = set(self.prefix.digests[: len(self.prefix) + 1])
            self._weights = {key: kept for key, kept in self._weights.items() if key in wanted}
            self._drafts = {key: kept for key, kept in self._drafts.items() if kept[0].step >= horizon}

    def _scaled(self, scores: Sequence[float]) -> Weights:
        return tuple(self.spec.relevance_scale * score for score in scores)


def _only(found: RetrieveResult, rows: Sequence[int] | None) -> RetrieveResult:
    if rows is None:
        return found
    return replace(
        found,
        ids=tuple(found.ids[row] for row in rows),
        texts=tuple(found.texts[row] for row in rows),
        scores=tuple(found.scores[row] for row in rows),
    )
