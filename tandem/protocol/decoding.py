"""One session as a decoder sees it: its documents, and what a commit, a rollback or a Resync changes.

It decides what to compute and does no computation: the driver runs each `Job` on the model and returns the result.
What is computed depends on the party's role: own drafts (`drafting`), or votes on what another proposes (`following`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tandem.aggregation.document_weights import DocumentWeights, Evidence, Weights, log_weight
from tandem.aggregation.rules import Proposed
from tandem.conversation import Message
from tandem.messages import (
    Adopt,
    Commit,
    DecoderFailed,
    DecoderReady,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
)
from tandem.messages.wire import to_float32
from tandem.modes.spec import SessionSpec
from tandem.protocol.line import DraftLine
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix, extend_digest
from tandem.protocol.rows import Row, arrange_rows
from tandem.topology import at_start

MAX_BLOCK = 16
"""Steps of one pass at most where the evidence of tokens is computed again."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Open the session in the engine: one row per text given here; an empty one is a row without document."""

    session: int
    query: str
    documents: tuple[str, ...]
    max_new_tokens: int
    history: tuple[Message, ...] = ()  # of the conversation, before the query
    day: str = ""  # of the query, where a chat template writes it
    num_stored: int | None = None  # rows whose caches are worth storing, the first ones; None: all
    scores_question: bool = False  # whether the likelihood of the question in each row is wanted
    has_baseline: bool = False  # whether it counts against that of a row without document

    @property
    def num_rows(self) -> int:
        """Rows of the model's batch."""
        return max(1, len(self.documents))


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute this party's distribution for one step, and for some steps before it in the same pass.

    At a step before `wanted` nothing is asked but what its token says of the rows.
    """

    session: int
    step: int
    digest: bytes  # of `tokens`
    tokens: tuple[int, ...]  # x_<t
    weights: DocumentWeights
    evidence: Evidence  # at the first step
    lineage: tuple[bytes, ...] = field(default=(), compare=False)  # digests of all beginnings of `tokens`
    num_earlier: int = 0  # steps before this one
    num_learned: int = 0  # of these, the first ones that are not wanted
    proposed: tuple[Proposed | None, ...] = ()  # by another party at the wanted steps, or nothing

    @property
    def first(self) -> int:
        """The first step that is computed."""
        return self.step - self.num_earlier

    @property
    def wanted(self) -> int:
        """The first step whose result is wanted."""
        return self.first + self.num_learned

    @property
    def is_catching_up(self) -> bool:
        """Whether nothing is wanted but what the tokens say of the rows."""
        return self.wanted > self.step

    @property
    def num_rows(self) -> int:
        """Rows of the model's batch."""
        return max(1, len(self.weights.prior)) * (1 + self.num_earlier)


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
    def log_weight(self) -> float:
        """Of the party's rows at this step, as it is sent."""

    @property
    def decode_us(self) -> int:
        """Time of the pass, microseconds."""

    @property
    def evidence(self) -> Evidence:
        """After the token that follows in the job; after the last step, after `token`."""


class Result(NamedTuple):
    """A plain `Computed`."""

    token: int
    payload: bytes
    decode_us: int
    log_weight: float = -float("inf")
    evidence: Evidence = ()


class StepModel(Protocol):
    """What `compute_steps` asks of a model that has the logits of a job."""

    def draw(self, step: int, weights: Weights) -> tuple[int, bytes]:
        """The token at one step and what is sent, by the log weights of the rows."""

    def learn(self, step: int, token: int) -> Evidence:
        """`log_evidence` of a token at one step."""


def compute_steps(job: Forward, model: StepModel, elapsed_us: Callable[[], int] = lambda: 0) -> list[Result]:
    """The results of a job at each of its steps: weights follow the evidence of the tokens in between."""
    results = []
    evidence = job.evidence
    for step in range(job.first, job.step + (not job.is_catching_up)):
        weights = job.weights.weigh(evidence)
        token, payload = model.draw(step, weights) if step >= job.wanted else (job.tokens[step], b"")
        following = job.tokens[step] if step < job.step else token
        if job.weights.moves:
            evidence = job.weights.learn(evidence, model.learn(step, following))
        weight = to_float32(log_weight(weights))
        results.append(Result(token, payload, elapsed_us(), weight, evidence))
    return results


class DecodingSession(ABC):
    """The state of one query in a decoder.

    Invariant: one result per prefix, ever; what was computed is stored and emitted again from the store. The weights of
    the rows are a function of the prefix alone, so timing cannot change an answer, and they roll back with it.
    """

    def __init__(self, spec: SessionSpec, party: str) -> None:
        self.spec = spec
        self.party = party
        self.line = DraftLine(spec.session)
        self.weights = DocumentWeights(())
        self._evidence: dict[bytes, Evidence] = {}  # by digest of the prefix
        self._retrieved: RetrieveResult | None = None
        self._rows: tuple[Row, ...] = ()
        self._is_filtered_out = False
        self._is_prefilled = False
        self._ready: DecoderReady | None = None  # what the coordinator knows of the documents
        self._has_ended = False  # the answer is complete

    @property
    def prefix(self) -> Prefix:
        """The committed tokens, then those that this party computes on."""
        return self.line.prefix

    @property
    def num_evidence(self) -> int:
        """Prefixes whose evidence is stored."""
        return len(self._evidence)

    # ---- what the roles differ in ------------------------------------------------------------------------------

    @abstractmethod
    def finish(self, job: Forward, results: Sequence[Computed]) -> list[Send]:
        """What a pass gave at the steps of `job`."""

    @abstractmethod
    def is_current(self, job: Forward) -> bool:
        """Whether the result of `job` is still wanted; the model asks between layers."""

    @abstractmethod
    def _next_forward(self) -> Forward | None:
        """What to compute now; None: nothing."""

    @abstractmethod
    def _on_order(self, message: Any) -> list[Send]:
        """A message that only this role knows."""

    @abstractmethod
    def _extend(self) -> list[Send]:
        """Go on with what is known of the tokens after the line, which has changed."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what no later step can need."""

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
        return [] if self._ready is None else [Send("draft_queue", self._ready)]

    def receive(self, message: Any) -> list[Send]:
        """Any message of this session."""
        match message:
            case RetrieveResult():
                self._retrieved = message
                self._is_filtered_out = self._lets_nothing_through(message)
                self._rows = arrange_rows(message, self.spec.row_layout(self.party))
                return []
            case RetrieveFailed():
                failed = DecoderFailed(session=self.spec.session, reason=message.reason, fault=message.fault)
                return [Send("draft_queue", failed)]
            case Commit():
                return self._on_commit(message)
            case Adopt():
                return self._on_adopt(message)
            case _:
                return self._on_order(message)

    def finish_prefill(
        self,
        prefill_us: int,
        notes: tuple[str, ...],
        rows: Sequence[int] | None = None,
        question: Sequence[float] = (),
    ) -> list[Send]:
        """The engine holds the query and the texts `rows` of the job, one row each (indices; None: all).

        question: the log likelihood of the question in each of these rows; empty: unknown.
        """
        assert self._retrieved is not None
        self._is_prefilled = True
        if rows is not None:
            self._rows = tuple(self._rows[row] for row in rows)
        self.weights = self._weigh_rows(question)
        self._evidence[self.prefix.digests[0]] = self.weights.start
        scores = dict(zip(self._retrieved.ids, self._retrieved.scores, strict=True))
        sources = tuple(dict.fromkeys(name for row in self._rows for name in row.ids))
        self._ready = DecoderReady(
            session=self.spec.session,
            sources=sources,
            scores=tuple(scores[name] for name in sources),
            retrieve_us=self._retrieved.retrieve_us,
            prefill_us=prefill_us,
            notes=(*self._notes_on_filter(), *notes),
        )
        # A restarted decoder, or a cloud that joins late, begins in the middle of an answer.
        return [Send("draft_queue", self._ready)]

    def _weigh_rows(self, question: Sequence[float]) -> DocumentWeights:
        """The rule by which the rows weigh. Evidence is left out where it cannot change the target: with one row, and
        no other party whose documents count."""
        spec = self.spec
        return DocumentWeights(
            tuple(spec.relevance_scale * row.score for row in self._rows),
            spec.evidence_weight if self._can_matter else 0.0,
            spec.evidence_memory,
            tuple(spec.question_weight * likelihood for likelihood in question),
        )

    @property
    def _can_matter(self) -> bool:
        """Whether weights of the rows can change the target."""
        roles = self.spec.roles
        num_holders = sum(self.spec.num_documents(voter) > 0 for voter in roles.voters)
        return len(self._rows) > 1 or (len(self._rows) == 1 and roles.weighs_by_documents and num_holders > 1)

    def _lets_nothing_through(self, retrieved: RetrieveResult) -> bool:
        """Whether documents were searched for, and the filter left none."""
        is_searched = self.spec.num_documents(self.party) > 0 and bool(self.spec.filter(self.party))
        return is_searched and not retrieved.ids

    def _notes_on_filter(self) -> tuple[str, ...]:
        if not self._is_filtered_out:
            return ()
        return (f"{at_start(self.party)} has no document that its filter lets through; it answers without.",)

    # ---- planning ------------------------------------------------------------------------------------------------

    def next_job(self) -> Job | None:
        """What to compute now, or None: there is nothing to do."""
        if self._retrieved is None or self._has_ended:
            return None
        if not self._is_prefilled:
            scores_question = (
                self.spec.question_weight > 0 and self.spec.evidence_weight > 0 and self._can_matter
            )
            return Prefill(
                session=self.spec.session,
                query=self.spec.query,
                documents=tuple(row.text for row in self._rows),
                max_new_tokens=self.spec.sampling.max_new_tokens,
                history=self.spec.history,
                day=self.spec.day,
                num_stored=sum(row.is_stored for row in self._rows),
                scores_question=scores_question,
                has_baseline=scores_question and self.spec.has_several_models,
            )
        return self._next_forward()

    def _plan(self, wanted: int, last: int, proposed: Sequence[Proposed | None] = ()) -> Forward:
        """The pass that gives the results at the steps from `wanted` to `last` of the line.

        It begins where the evidence is known. If that is far back, such as after a restart, it only catches up.
        """
        prefix = self.prefix
        first, evidence = wanted, self.weights.start
        if self.weights.moves:
            first = next(step for step in range(wanted, -1, -1) if prefix.digests[step] in self._evidence)
            evidence = self._evidence[prefix.digests[first]]
        if wanted - first > MAX_BLOCK:
            last = first + MAX_BLOCK
            wanted, proposed = last + 1, ()
        return Forward(
            self.spec.session,
            last,
            prefix.digests[last],
            tuple(prefix.tokens[:last]),
            self.weights,
            evidence,
            tuple(prefix.digests[: last + 1]),
            num_earlier=last - first,
            num_learned=wanted - first,
            proposed=tuple(proposed),
        )

    def _forget_evidence(self) -> None:
        """Drop that of other prefixes."""
        digests = set(self.prefix.digests)
        self._evidence = {digest: kept for digest, kept in self._evidence.items() if digest in digests}

    def _learn(self, job: Forward, results: Sequence[Computed]) -> None:
        """Keep the evidence of a pass."""
        if not self.weights.moves:
            return
        for step, result in enumerate(results, job.first):
            digest = job.lineage[step + 1] if step < job.step else extend_digest(job.digest, result.token)
            self._evidence[digest] = result.evidence

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
        return self._extend()
