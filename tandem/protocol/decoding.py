"""The decoder of one party: its documents as rows, its line of tokens, and what it drafts or votes.

It decides what to compute and does no computation: the driver runs each `Job` on the model and returns the result.
What is computed depends on the party's role: own drafts, or votes on what another party proposes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Container, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile, zip_longest
from typing import Any, Protocol

from tandem.aggregation.document_weights import DocumentWeights, Evidence, Weights
from tandem.aggregation.rules import Step
from tandem.conversation import NO_FRAME, Frame, Message
from tandem.errors import GenerationError
from tandem.messages import (
    Alone,
    Attribution,
    DecoderFailed,
    DecoderReady,
    DraftWindow,
    Local,
    Resync,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    Sources,
    Verdict,
    Vote,
)
from tandem.messages.wire import MAX_FRAME_BYTES, to_float32
from tandem.modes import SessionSpec
from tandem.modes.mode import MAX_PROPOSAL
from tandem.profiler.estimates import SHORTEST
from tandem.protocol.ballots import count_accepted, is_open
from tandem.protocol.log import Prefix, digests_along, extend_digest
from tandem.protocol.routes import Send
from tandem.protocol.table import ActorSession, SessionTable
from tandem.scheduler import make_length_policy
from tandem.topology import Party, at_start

MAX_BLOCK = 16
"""Steps of one pass at most where the evidence of tokens is computed again."""
FORGET_STEPS = 16
"""Committed steps after which what no later step can need is dropped."""
KEPT_DRAFTS = 8
"""Drafts of committed steps that are kept: a Resync may take some tokens back."""
MAX_VOTES_BYTES = MAX_FRAME_BYTES // 2
"""One message of several votes has at most so many bytes of them."""

# ---- rows ------------------------------------------------------------------------------------------------------------

JOINT = "\n\n"
"""Between the documents of one row."""
BARE_SCORE = 0.5
"""The score of the row without document where a party's documents are private, whatever these score."""


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """One row of a party's model."""

    text: str  # empty: without document
    ids: tuple[str, ...]  # of the documents in it
    score: float  # how well they fit the question

    @property
    def is_stored(self) -> bool:
        """Whether its cache is worth storing: others hardly ever come again, or take no time."""
        return len(self.ids) == 1


def arrange_rows(retrieved: RetrieveResult, layout: str) -> tuple[DocumentRow, ...]:
    """The rows of what was retrieved, those that are stored first; none without documents.

    layout: "rows" (each document its own), "joined" (one of all), "both" (these and one without any).

    A row of several documents has them best first, for what does not fit is cut off at its end, and the score of the
    best; the row without any has that of the worst.
    """
    documents = zip(retrieved.texts, retrieved.ids, retrieved.scores, strict=True)
    rows = tuple(DocumentRow(text, (name,), score) for text, name, score in documents)
    if layout == "rows" or not rows:
        return rows
    ranked = sorted(rows, key=lambda row: -row.score)
    joined = DocumentRow(JOINT.join(row.text for row in ranked), retrieved.ids, ranked[0].score)
    if layout == "joined":
        return (joined,)
    bare = DocumentRow("", (), ranked[-1].score)
    return (*rows, bare) if len(rows) == 1 else (*rows, joined, bare)


# ---- jobs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prefill:
    """Open the session in the engine: one row per text given here; an empty one is a row without document."""

    session: int
    query: str
    documents: tuple[str, ...]
    max_new_tokens: int
    history: tuple[Message, ...] = ()  # of the conversation, before the query
    frame: Frame = NO_FRAME
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

    Of the steps before `first_drawn` only the evidence is computed.
    """

    session: int
    step: int
    digest: bytes  # of `tokens`
    tokens: tuple[int, ...]  # x_<t
    weights: DocumentWeights
    evidence: Evidence  # at the first step
    lineage: tuple[bytes, ...] = field(default=(), compare=False)  # digests of all beginnings of `tokens`
    num_earlier: int = 0  # steps before this one
    num_learned: int = 0  # of these, the first ones, at which nothing is drawn
    proposed: tuple[Step | None, ...] = ()  # by another party, from `first_drawn` on, or nothing

    @property
    def first(self) -> int:
        """The first step that is computed."""
        return self.step - self.num_earlier

    @property
    def first_drawn(self) -> int:
        """The first step at which a token is drawn."""
        return self.first + self.num_learned

    @property
    def is_catching_up(self) -> bool:
        """Whether it computes evidence alone."""
        return self.first_drawn > self.step

    @property
    def num_rows(self) -> int:
        """Rows of the model's batch."""
        return max(1, len(self.weights.prior)) * (1 + self.num_earlier)


Job = Prefill | Forward


class StepModel(Protocol):
    """The port by which `compute_steps` asks a model that has the logits of a job."""

    def draw(self, step: int, weights: Weights) -> Step:
        """The draft or vote at one step, by the log weights of the rows."""

    def learn(self, step: int, token: int) -> Evidence:
        """`log_evidence` of a token at one step."""


def compute_steps(job: Forward, model: StepModel, elapsed_us: Callable[[], int] = lambda: 0) -> list[Step]:
    """The drafts or votes of a job, step by step: weights follow the evidence of the tokens in between."""
    steps = []
    evidence = job.evidence
    for number in range(job.first, job.step + (not job.is_catching_up)):
        weights, masses = job.weights.weigh(evidence), tuple[float, ...]()
        step = model.draw(number, weights) if number >= job.first_drawn else Step(number, job.tokens[number])
        if job.weights.moves:
            token = job.tokens[number] if number < job.step else step.token
            assert token is not None
            learned = model.learn(number, token)
            evidence, masses = job.weights.learn(evidence, learned), job.weights.masses(weights, learned)
        log_weight = to_float32(job.weights.public_log_weight(weights))
        steps.append(
            replace(step, decode_us=elapsed_us(), log_weight=log_weight, evidence=evidence, masses=masses)
        )
    return steps


# ---- the line ------------------------------------------------------------------------------------------------------


class DraftLine:
    """The tokens that a decoder drafts on, and how verdicts change them.

    Invariants: the first `num_committed` tokens are committed. Verdicts take effect in the order of (view, step),
    whatever the order of arrival.
    """

    def __init__(self, session: int) -> None:
        self.prefix = Prefix(session)
        self.num_committed = 0
        self.view = 0
        self.early: dict[tuple[int, int], Local] = {}  # by view and step: overtook a verdict, or a Resync

    def commit(self, message: Local) -> bool:
        """Take in a verdict; False: it is not the next one."""
        key, following = (message.view, message.body.step), (self.view, self.num_committed)
        if key != following:
            if key > following:
                self.early[key] = message
            return False
        for token in message.body.tokens:
            self.num_committed += 1
            self.replace(self.num_committed - 1, token)
        return True

    def replace(self, step: int, token: int) -> None:
        """Put `token` at `step`; drafts that were conditioned on another token there are rolled back."""
        tokens = self.prefix.tokens
        if step >= len(tokens) or tokens[step] != token:
            self.prefix.truncate(step)
            self.prefix.append(token)

    def adopt(self, message: Local) -> bool:
        """Take over committed tokens; False: a later verdict is already here."""
        tokens = message.body.tokens
        following = message.view, len(tokens)
        if following < (self.view, self.num_committed):
            return False
        self.view = message.view
        self.prefix.adopt(tokens)
        self.num_committed = len(self.prefix)
        self.early = {key: kept for key, kept in self.early.items() if key >= following}
        return True

    def take_next(self) -> Local | None:
        """The verdict that follows, if it has overtaken something."""
        return self.early.pop((self.view, self.num_committed), None)


class Attributions:
    """How the documents of this party predicted the tokens of its passes, and which of it waits for the next vote.

    Invariants: the first attribution of a prefix counts. It stays until the prefix is forgotten, for a message may be
    lost.
    """

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Attribution] = {}  # of the prefix that ends with the token
        self._unsent: list[Attribution] = []

    def add(self, attribution: Attribution) -> None:
        """The token at the end of a prefix was predicted so."""
        self._unsent.append(self._by_digest.setdefault(attribution.digest, attribution))

    def take_unsent(self) -> tuple[Attribution, ...]:
        """Take those that go along with the next vote."""
        unsent, self._unsent = tuple(self._unsent), []
        return unsent

    def resend(self) -> None:
        """Send all again: what was sent may be lost."""
        self._unsent = list(self._by_digest.values())

    def forget(self, digests: Set[bytes]) -> None:
        """Drop all but those of these prefixes."""
        self._by_digest = {key: kept for key, kept in self._by_digest.items() if key in digests}


# ---- sessions ------------------------------------------------------------------------------------------------------


class DecodingSession(ActorSession):
    """The state of one query in a decoder.

    Invariant: one draft or vote per prefix, ever; it is stored and sent again from the store. The
    weights of the rows are a function of the prefix alone, so timing cannot change an answer, and they roll back with
    it.
    """

    def __init__(self, spec: SessionSpec, party: str, *, is_private: bool = False) -> None:
        """is_private: whether what this party says of its documents is bounded, where it reads any."""
        self.spec = spec
        self.party = party
        self.is_private = is_private and spec.num_documents(party) > 0
        self.line = DraftLine(spec.session)
        self.weights = DocumentWeights(())
        self._steps: dict[bytes, Step] = {}  # drawn here, by digest of the prefix
        self._evidence: dict[bytes, Evidence] = {}  # by digest of the prefix
        self._attributions = Attributions()  # at home alone
        self._retrieved: RetrieveResult | None = None
        self._rows: tuple[DocumentRow, ...] = ()
        self._ready: DecoderReady | None = None  # for the coordinator, once the documents are prefilled
        self._has_ended = False  # the answer is complete

    @property
    def prefix(self) -> Prefix:
        """The committed tokens, then those that this party computes on."""
        return self.line.prefix

    @property
    def num_steps(self) -> int:
        """Drafts or votes that are stored."""
        return len(self._steps)

    @property
    def num_evidence(self) -> int:
        """Prefixes whose evidence is stored."""
        return len(self._evidence)

    # ---- what the roles differ in ------------------------------------------------------------------------------

    @abstractmethod
    def finish(self, job: Forward, steps: Sequence[Step]) -> list[Send]:
        """Take what a pass gave at the steps of `job`."""

    @abstractmethod
    def is_current(self, job: Forward) -> bool:
        """Whether anything of `job` is still of use; the model asks between layers."""

    @abstractmethod
    def _next_forward(self) -> Forward | None:
        """The forward pass to compute now; None: nothing."""

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
            return self.receive(RetrieveResult(session=spec.session))
        request = RetrieveRequest(
            session=spec.session,
            query=spec.search_text,
            num_documents=num_documents,
            filter=spec.filter(self.party),
            before=spec.question_before,
            wants_marks=spec.wants_marks and not self.is_private,
        )
        return [Send("retriever", request)]

    def begin_again(self) -> list[Send]:
        """The coordinator was restarted, or waits for too long, and will send a Resync.

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
                self._rows = arrange_rows(message, self.spec.row_layout(self.party))
                if self.is_private:  # the row without document bounds what the others say
                    self._rows = (*(row for row in self._rows if row.ids), DocumentRow("", (), BARE_SCORE))
                return []
            case RetrieveFailed() if self.is_private:  # what peers see must not depend on what is there
                note = f"{at_start(self.party)} answers without documents: {message.reason}"
                return self.receive(RetrieveResult(session=self.spec.session, notes=(note,)))
            case RetrieveFailed():
                failed = DecoderFailed(session=self.spec.session, reason=message.reason, fault=message.fault)
                return [Send("draft_queue", failed)]
            case Local(body=Verdict()):
                return self._on_verdict(message)
            case Local(body=Resync()):
                return self._on_resync(message)
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
        if rows is not None:
            self._rows = tuple(self._rows[row] for row in rows)
        if self.is_private and (not self._rows or self._rows[-1].ids):
            raise GenerationError(
                f"{at_start(self.party)} bounds what its documents say by a row without document, which its model does "
                "not give; use another model, or set privacy to 0."
            )
        self.weights = self._weigh_rows(question)
        self._evidence[self.prefix.digests[0]] = self.weights.start
        scores = dict(zip(self._retrieved.ids, self._retrieved.scores, strict=True))
        ids = self._document_ids
        is_filtered = self.spec.num_documents(self.party) > 0 and bool(self.spec.filter(self.party))
        if is_filtered and not (self._retrieved.ids or self._retrieved.notes):
            note = f"{at_start(self.party)} has no document that its filter lets through; it answers without."
            notes = (note, *notes)
        notes = (*self._retrieved.notes, *notes)
        times = (self._retrieved.retrieve_us, prefill_us)
        if self.is_private and self.party != self.spec.home:
            ids, notes, times = (), (), (0, 0)  # they would say which documents fit the question
        self._ready = DecoderReady(
            session=self.spec.session,
            sources=Sources(
                party=self.spec.roles.topology.index(self.party),
                ids=ids,
                retrieve_us=times[0],
                prefill_us=times[1],
                notes=notes,
                marks=self._retrieved.marks if self.party in (self.spec.home, Party.CLOUD) else b"",
            ),
            scores=tuple(scores[name] for name in ids),
            masses=() if self.weights.moves or len(self._rows) != 1 else self._by_document((1.0,)),
        )
        return [Send("draft_queue", self._ready), *self._extend()]

    def _by_document(self, masses: Sequence[float]) -> tuple[float, ...]:
        """Masses of documents, and of all rows without any, from those of rows, whose documents share them evenly."""
        place = {name: number for number, name in enumerate(self._document_ids)}
        parts = [0.0] * (len(place) + 1)
        for row, mass in zip(self._rows, masses, strict=True):
            for name in row.ids:
                parts[place[name]] += mass / len(row.ids)
            parts[-1] += 0.0 if row.ids else mass
        return tuple(map(to_float32, parts))

    @property
    def _document_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for row in self._rows for name in row.ids))

    def _weigh_rows(self, question: Sequence[float]) -> DocumentWeights:
        """The rule by which the rows weigh. Evidence is left out where it cannot change the target: with one row, and
        no other party whose documents count."""
        spec = self.spec
        return DocumentWeights(
            tuple(spec.relevance_scale * row.score for row in self._rows),
            spec.evidence_weight if self._can_matter else 0.0,
            spec.evidence_memory,
            tuple(spec.question_weight * likelihood for likelihood in question),
            shows_last_only=self.is_private,
        )

    @property
    def _can_matter(self) -> bool:
        """Whether weights of the rows can change the target; where they are private, whatever was found."""
        if self.is_private:
            return True
        roles = self.spec.roles
        num_parties = sum(self.spec.num_documents(voter) > 0 for voter in roles.voters)
        return len(self._rows) > 1 or (len(self._rows) == 1 and roles.weighs_by_documents and num_parties > 1)

    # ---- planning ------------------------------------------------------------------------------------------------

    def next_job(self) -> Job | None:
        """The job to compute now; None: there is nothing to do."""
        if self._retrieved is None or self._has_ended:
            return None
        if self._ready is not None:
            return self._next_forward()
        spec = self.spec
        scores_question = spec.question_weight > 0 and spec.evidence_weight > 0 and self._can_matter
        return Prefill(
            session=spec.session,
            query=spec.query,
            documents=tuple(row.text for row in self._rows),
            max_new_tokens=spec.sampling.max_new_tokens,
            history=spec.history,
            frame=spec.frame,
            num_stored=sum(row.is_stored for row in self._rows),
            scores_question=scores_question,
            has_baseline=scores_question and spec.has_several_models,
        )

    def _plan(self, drawn: int, last: int, proposed: Sequence[Step | None] = ()) -> Forward:
        """The pass that draws at the steps from `drawn` to `last` of the line.

        It begins where the evidence is known. If that is far back, such as after a restart, it only catches up.
        """
        prefix = self.prefix
        first, evidence = drawn, self.weights.start
        if self.weights.moves:
            first = next(step for step in range(drawn, -1, -1) if prefix.digests[step] in self._evidence)
            evidence = self._evidence[prefix.digests[first]]
        if drawn - first > MAX_BLOCK:
            last = first + MAX_BLOCK
            drawn, proposed = last + 1, ()
        return Forward(
            self.spec.session,
            last,
            prefix.digests[last],
            tuple(prefix.tokens[:last]),
            self.weights,
            evidence,
            tuple(prefix.digests[: last + 1]),
            num_earlier=last - first,
            num_learned=drawn - first,
            proposed=tuple(proposed),
        )

    def _learn(self, job: Forward, steps: Sequence[Step]) -> None:
        if not self.weights.moves:
            return
        # where votes are mixtures of the rows
        is_cited = self.party == self.spec.home and not self.is_private
        for number, step in enumerate(steps, job.first):
            assert step.token is not None
            digest = job.lineage[number + 1] if number < job.step else extend_digest(job.digest, step.token)
            self._evidence[digest] = step.evidence
            if is_cited:
                masses = self._by_document(step.masses)
                self._attributions.add(Attribution(step=number, digest=digest, masses=masses))

    def _may_continue(self, step: int) -> bool:
        """Whether the answer can have a token at `step`, behind the line's tokens before it."""
        if self._has_ended or step >= self.spec.sampling.max_new_tokens:
            return False
        return step == 0 or self.prefix.tokens[step - 1] not in self.spec.eos_token_ids

    # ---- votes ---------------------------------------------------------------------------------------------------

    def _make_vote(self, step: int, digest: bytes, steps: Sequence[Step]) -> Send:
        """The vote on the prefix of `digest`, which ends before `step`, and on the tokens of the line behind it."""
        roles = self.spec.roles
        role = roles.role(self.party)
        num_tokens = len(steps) if role.drafts else len(steps) - 1
        is_weighed = role.votes and roles.weighs_by_documents
        vote = Vote(
            step=step,
            digest=digest,
            tokens=tuple(self.prefix.tokens[step : step + num_tokens]),
            payloads=tuple(each.payload or b"" for each in steps),
            log_weights=tuple(each.log_weight for each in steps if each.log_weight is not None) * is_weighed,
            decode_us=sum(each.decode_us for each in steps) if role.drafts else 0,
        )
        attributions = self._attributions.take_unsent()
        return Send("draft_queue", Local(session=self.spec.session, body=vote, attributions=attributions))

    # ---- changes -------------------------------------------------------------------------------------------------

    def _on_verdict(self, message: Local) -> list[Send]:
        num_before = self.line.num_committed
        if not self.line.commit(message):
            return []
        self._has_ended = message.is_last
        if self.line.num_committed // FORGET_STEPS > num_before // FORGET_STEPS:
            self._forget()
        return self._continue()

    def _on_resync(self, message: Local) -> list[Send]:
        if not self.line.adopt(message):
            return []
        self._has_ended = message.is_last
        self._attributions.resend()
        return self._continue()

    def _continue(self) -> list[Send]:
        """After a change of what is committed."""
        if (following := self.line.take_next()) is not None:
            return self._on_verdict(following)
        return self._extend()

    def _forget_before(self, step: int) -> None:
        """Drop what was drawn at earlier steps, and the evidence of prefixes that are not the line's."""
        digests = set(self.prefix.digests)
        self._evidence = {digest: kept for digest, kept in self._evidence.items() if digest in digests}
        self._attributions.forget(digests)
        self._steps = {digest: kept for digest, kept in self._steps.items() if kept.step >= step}


class DraftingSession(DecodingSession):
    """The state of one query in the decoder of a party that drafts.

    Invariant: one draft per prefix, ever; what was drafted is stored and proposed again from the store. Every token is
    proposed once per line, in proposals of `length` tokens, or shorter ones where nothing can be added now or the
    budget of bits is used up, or longer ones, up to the query's limit, where more were drafted when the length became
    less. A draft that alone exceeds the budget is never proposed: the voter decides its step.
    """

    def __init__(self, spec: SessionSpec, party: str, *, is_private: bool = False) -> None:
        super().__init__(spec, party, is_private=is_private)
        # then each token is a proposal of its own, with its distribution
        self.has_vote = spec.roles.role(party).votes
        self.length = 1 if self.has_vote else spec.rules.longest_proposal
        self.window = min(4, spec.decoding.max_window) if self.has_vote else spec.decoding.max_window
        self._is_alone = False  # no voter is there: the answer continues with what is drafted here
        self._num_proposed = 0  # tokens of the line that are committed or proposed
        self._asked_step = -1  # for which a proposal without tokens asked
        has_policy = spec.rules.proposes(party)
        self._policy = make_length_policy(spec.decoding.length_policy, self.length) if has_policy else None
        self._unjudged: list[Vote] = []  # proposals of which the policy will hear
        self._choose_length()

    # ---- what a pass gave ----------------------------------------------------------------------------------------

    def finish(self, job: Forward, steps: Sequence[Step]) -> list[Send]:
        """Propose the draft of `job`, its last step."""
        if not self.is_current(job):
            return []
        self._learn(job, steps)
        if job.is_catching_up:
            return []
        self._steps[job.digest] = steps[-1]
        return [*self._emit(steps[-1]), *self._ask()]

    def is_current(self, job: Forward) -> bool:
        """Whether the draft of `job` is still of use; the model asks between layers."""
        if self._has_ended or not self.prefix.begins_with(job.digest, job.step):
            return False
        return job.is_catching_up or len(self.prefix) == job.step

    # ---- planning ------------------------------------------------------------------------------------------------

    def _next_forward(self) -> Forward | None:
        step = len(self.prefix)
        return self._plan(step, step) if self._may_draft() else None

    def _may_draft(self) -> bool:
        step = len(self.prefix)
        if not self._may_continue(step) or step - self.line.num_committed >= self.window:
            return False
        if (
            self.has_vote
            and self.window <= SHORTEST
            and self.party not in self.spec.rules.needed(step, self.spec.roles.voters)
        ):
            return False  # the owner's token is here as soon as a draft, and both steps then take one pass
        return self._is_alone or (
            self.length > 0 and not self._waits_for_verdict and not self._exceeds_budget
        )

    @property
    def _waits_for_verdict(self) -> bool:
        """Stop-and-wait: whether a proposal is on its way."""
        if self._is_alone or self.has_vote or self.spec.rules.pacing != "stop_and_wait":
            return False
        return max(self._num_proposed, self._asked_step + 1) > self.line.num_committed

    # ---- proposals -----------------------------------------------------------------------------------------------

    def _emit(self, draft: Step) -> list[Send]:
        assert draft.token is not None
        self.prefix.append(draft.token)
        return self._propose()

    @property
    def _exceeds_budget(self) -> bool:
        left = self._drafts_left(1)
        return bool(left) and self._count_fitting(left) == 0

    def _drafts_left(self, most: int) -> list[Step]:
        """The first drafts of the line that are in no proposal, at most so many."""
        first = max(self._num_proposed, self.line.num_committed)
        end = min(first + most, len(self.prefix))
        return [self._steps[digest] for digest in self.prefix.digests[first:end]]

    def _count_fitting(self, drafts: Sequence[Step]) -> int:
        """How many of them one proposal may hold; nothing of what this party commits alone crosses the link."""
        if self._is_alone:
            return len(drafts)
        return self.spec.rules.count_fitting([draft.payload or b"" for draft in drafts])

    def _propose(self) -> list[Send]:
        """Proposals of the drafts that are in none yet, as soon as they are enough or nothing can be added to them."""
        self._num_proposed = max(self._num_proposed, self.line.num_committed)
        enough = 1 if self._is_alone else self.length
        most = 1 if self.has_vote else max(1, self.spec.rules.longest_proposal)
        sends: list[Send] = []
        while not self._waits_for_verdict and (left := self._drafts_left(most)):
            count = self._count_fitting(left)
            is_full = count < len(left)
            if count == 0 or (count < enough and not is_full and self._may_draft()):
                break
            step = self._num_proposed
            sends.append(self._make_vote(step, self.prefix.digests[step], left[:count]))
            self._num_proposed += count
        if self._policy is not None and not self._is_alone:
            self._unjudged += [send.message.body for send in sends]
        return sends

    def _ask(self) -> list[Send]:
        """Proposals of no tokens ask for the next token, unless the voter continues without being asked."""
        step = self.line.num_committed
        has_none = self.length == 0 or self._exceeds_budget
        is_asking = has_none and not self._is_alone and self.spec.rules.pacing != "cloud_goes_on"
        if (
            not is_asking
            or self._ready is None
            or step <= self._asked_step
            or step < self._num_proposed
            or not self._may_continue(step)
        ):
            return []
        self._asked_step = step
        return [self._make_vote(step, self.prefix.digests[step], ())]

    def _extend(self) -> list[Send]:
        """Propose again what was already drafted on the present prefix, then what is left over."""
        self._num_proposed = min(self._num_proposed, len(self.prefix))
        sends: list[Send] = []
        while self._may_draft() and (draft := self._steps.get(self.prefix.digest)) is not None:
            sends += self._emit(draft)
        return [*sends, *self._propose(), *self._ask()]

    # ---- changes -------------------------------------------------------------------------------------------------

    def _on_order(self, message: Any) -> list[Send]:
        match message:
            case DraftWindow():
                self.window = max(1, min(message.size, self.spec.decoding.max_window))
            case Alone():
                self._is_alone, self._unjudged = message.is_alone, []
        return self._extend()  # what was drafted before under a wider window

    def _on_resync(self, message: Local) -> list[Send]:
        self._num_proposed, self._asked_step, self._unjudged = 0, -1, []  # what was proposed may be lost
        return super()._on_resync(message)

    def _continue(self) -> list[Send]:
        """With what the policy makes of proposals that were decided."""
        num_committed = self.line.num_committed
        for proposal in self._unjudged:
            num_accepted = count_accepted(proposal, self.prefix, num_committed)
            if num_accepted is not None and self._policy is not None:
                self._policy.observe(len(proposal.tokens), num_accepted, proposal.decode_us / 1e6)
        self._unjudged = [kept for kept in self._unjudged if is_open(kept, self.prefix, num_committed)]
        self._choose_length()
        return super()._continue()

    def _choose_length(self) -> None:
        if self._policy is not None:
            self.length = max(0, min(int(self._policy.choose()), self.spec.rules.longest_proposal))

    def _forget(self) -> None:
        self._forget_before(self.line.num_committed - KEPT_DRAFTS)


class FollowingSession(DecodingSession):
    """The state of one query in the decoder of a party that votes and does not draft.

    It answers a proposal with its vote after every prefix of it, one more than that has tokens, each block from one
    pass. A vote behind a rejected token never becomes current. Where this party alone votes, its vote is the token
    that will be committed: it need not wait for the commit, and a proposal that says otherwise is left at once.

    Invariants: one vote per prefix, ever, and one proposed token per prefix, the first that came. The line is the
    committed tokens, then own votes if they decide, then what is proposed behind them.
    """

    def __init__(self, spec: SessionSpec, party: str, *, is_private: bool = False) -> None:
        super().__init__(spec, party, is_private=is_private)
        self._decides = spec.roles.voters == (party,)
        self._proposed: dict[bytes, Step] = {}  # by digest of the prefix before it
        self._asked_for: dict[bytes, int] = {}  # prefixes that a vote is asked for, with their length

    # ---- what a pass gave ----------------------------------------------------------------------------------------

    def finish(self, job: Forward, steps: Sequence[Step]) -> list[Send]:
        """Vote after each prefix of the block, as far as the line still goes this way."""
        self._learn(job, steps)
        digests: list[bytes] = []
        for step, computed in enumerate(steps[job.num_learned :], job.first_drawn):
            digest = job.lineage[step]
            if self._has_ended or step > len(self.prefix) or self.prefix.digests[step] != digest:
                break
            vote = self._steps.setdefault(digest, computed)
            digests.append(digest)
            if self._decides and step >= self.line.num_committed:  # it is the next token: go on with it
                assert vote.token is not None
                self.line.replace(step, vote.token)
                self._follow_proposals()
        return self._send(digests)

    def is_current(self, job: Forward) -> bool:
        """Whether a vote of `job` is still of use; the model asks between layers."""
        first = min(job.first_drawn, job.step)
        return not self._has_ended and self.prefix.begins_with(job.lineage[first], first)

    def _send(self, digests: Sequence[bytes]) -> list[Send]:
        """Stored votes on successive prefixes, in as many messages as they need."""
        sends: list[Send] = []
        while digests:
            sizes = accumulate(len(self._steps[digest].payload or b"") for digest in digests)
            count = max(
                1, sum(size <= MAX_VOTES_BYTES for size in sizes)
            )  # in full, some take megabytes together
            votes = [self._steps[digest] for digest in digests[:count]]
            sends.append(self._make_vote(votes[0].step, digests[0], votes))
            digests = digests[count:]
        return sends

    # ---- planning ------------------------------------------------------------------------------------------------

    @property
    def _first_step(self) -> int:
        digests = self.prefix.digests
        steps = range(self.line.num_committed, len(digests))
        return next((step for step in steps if digests[step] not in self._steps), len(digests))

    def _next_forward(self) -> Forward | None:
        first = self._first_step
        steps = range(first, min(len(self.prefix) + 1, first + MAX_PROPOSAL + 1))
        last = max(takewhile(self._is_asked_for, steps), default=None)
        if last is None:
            return None
        proposed = map(self._proposed.get, self.prefix.digests[first : last + 1])
        return self._plan(first, last, tuple(proposed))

    def _is_asked_for(self, step: int) -> bool:
        """Whether a vote after the first `step` tokens of the line is to be computed now."""
        if not self._may_continue(step):
            return False
        goes_on = self._decides and self.spec.rules.pacing == "cloud_goes_on"
        may_go_on = goes_on and step - self.line.num_committed < self.spec.decoding.max_window
        return may_go_on or self.prefix.digests[step] in self._asked_for

    # ---- changes -------------------------------------------------------------------------------------------------

    def _on_order(self, message: Any) -> list[Send]:
        if not isinstance(message, Local):
            return []
        proposal: Vote = message.body
        digests = enumerate(digests_along(proposal.digest, proposal.tokens), proposal.step)
        drafts = zip_longest(proposal.tokens, proposal.payloads)
        for (step, digest), draft in zip_longest(digests, drafts):
            self._asked_for[digest] = step
            if draft is not None:
                self._proposed.setdefault(digest, Step(step, *draft))
        self._follow_proposals()
        # A vote that is asked for again may be lost.
        is_repeated = not proposal.tokens and proposal.digest in self._steps
        return self._send([proposal.digest]) if is_repeated else []

    def _follow_proposals(self) -> None:
        """Lengthen the line by own votes that decide and by what is proposed behind it."""
        prefix = self.prefix
        while len(prefix) - self.line.num_committed <= 2 * MAX_PROPOSAL:
            vote, proposed = self._steps.get(prefix.digest), self._proposed.get(prefix.digest)
            step = vote if self._decides and vote is not None else proposed
            if step is None or step.token is None:
                return
            prefix.append(step.token)

    def _extend(self) -> list[Send]:
        self._follow_proposals()
        return []

    def _on_resync(self, message: Local) -> list[Send]:
        """After a restart of the coordinator, which has no votes: they are sent again."""
        sends = super()._on_resync(message)
        digests = self.prefix.digests[self.line.num_committed : self._first_step]
        return [*sends, *(self._send(digests) if not self._has_ended else [])]

    def _forget(self) -> None:
        """Drop what no later step can need; a Resync may take some tokens back."""
        horizon = self.line.num_committed - 2 * MAX_PROPOSAL
        self._forget_before(horizon)
        self._proposed = {key: kept for key, kept in self._proposed.items() if kept.step >= horizon}
        self._asked_for = {key: step for key, step in self._asked_for.items() if step >= horizon}


class DecodingTable(SessionTable[DecodingSession]):
    """The decoder of one party: plans for all its sessions, one job of each at a time. After `End` the driver frees the
    session in the engine."""

    def __init__(self, party: str, *, is_private: bool = False) -> None:
        """is_private: as of a `DecodingSession`."""
        super().__init__(party)
        self._is_private = is_private

    def _open(self, spec: SessionSpec) -> DecodingSession:
        make = DraftingSession if spec.roles.role(self.party).drafts else FollowingSession
        return make(spec, self.party, is_private=self._is_private)

    def next_job(self) -> Job | None:
        """The next thing to compute."""
        return next(iter(self.next_jobs(1)), None)

    def next_jobs(self, max_rows: int, waiting: Container[int] = ()) -> list[Job]:
        """The next job of every session that has one of the first's kind, up to about `max_rows` rows in all.

        Sessions take turns: those served go to the end, those left out keep their place. waiting: sessions of which no
        Forward can be computed yet.
        """
        jobs: list[Job] = []
        num_rows = 0
        for session in self.sessions.values():
            job = session.next_job() if num_rows < max_rows else None
            if isinstance(job, Forward) and job.session in waiting:
                continue
            if job is not None and (not jobs or type(job) is type(jobs[0])):
                jobs.append(job)
                num_rows += job.num_rows
        for job in jobs:
            self.sessions[job.session] = self.sessions.pop(job.session)
        return jobs
