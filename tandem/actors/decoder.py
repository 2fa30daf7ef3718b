"""The decoder: one side's language model, drafting ahead of the committed prefix.

    DraftQueue --Begin/Local/End--> Decoder --Local--> DraftQueue
    Decoder --RetrieveRequest--> Retriever --RetrieveResult--> Decoder

The model runs in a thread of its own. Whenever it is free, it computes the next jobs of all sessions that wait in one
batch; the session table decides what to compute. A batch of which no session wants its part any more is abandoned at
the next layer boundary. If a batch fails, its jobs are tried one by one, so that a session's failure is its own. What
a session's grammar allows is computed by another process meanwhile; where that takes longer than the batch, the session
leaves it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from tandem.actors.base import Runtime, SiteActor, remedy_for, report_failure, sendable
from tandem.aggregation.document_weights import Evidence, Weights, log_evidence
from tandem.aggregation.rules import Step
from tandem.codecs import Codec, codec_of
from tandem.codecs.base import ROOT
from tandem.config.extensions import is_extension
from tandem.errors import Code, ConfigError, TandemError, describe_origin
from tandem.messages import OLDEST_VERSION, PROTOCOL_VERSION, Begin, End
from tandem.modes import SessionSpec
from tandem.protocol.decoding import DecodingSession, DecodingTable, Forward, Job, Prefill, compute_steps
from tandem.protocol.routes import ActorKind, Send
from tandem.scheduler import load_length_policy, load_policy
from tandem.topology import PARTIES, SERVER, Party, at_start

_log = logging.getLogger("tandem")

if TYPE_CHECKING:
    from tandem.engine.drafter import Drafter
    from tandem.engine.engine import Engine
    from tandem.engine.pieces import Passes, PieceLists, PieceReader, Reading, TextTokens
    from tandem.engine.port import Logits
    from tandem.engine.privacy import Privacy
    from tandem.engine.prompt import Prompt
    from tandem.engine.shaping import Grammar
    from tandem.engine.tokenizer import Detokenizer

T = TypeVar("T")
BASELINE = "/bare"
"""After the name of a session: its question without any document."""
MAX_ROWS = 128
"""Rows of one batch. More rows at once are no faster each, and the first would wait for the last."""
GRAMMAR_WAIT_S = 0.01
"""How long the results of a batch wait for what grammars allow, before the sessions concerned are left out."""


class PrefillResult(NamedTuple):
    """The result of one prefill job."""

    result: Prompt
    prefill_us: int
    question: tuple[float, ...]  # log likelihood of the question in each row, as far as it is wanted


class Grammars:
    """The grammars of open queries, and the sessions that wait for theirs to answer. On the event loop."""

    def __init__(self, on_answer: Callable[[], None], on_error: Callable[[int, TandemError], None]) -> None:
        """on_answer: called when a session waits no more. on_error: when it cannot go on."""
        self.open: dict[int, Grammar] = {}
        self.waiting: set[int] = set()
        self._on_answer, self._on_error = on_answer, on_error

    def begin(self, session: int, grammar: Grammar) -> None:
        """A query has this grammar, which is being built."""
        self.open[session] = grammar
        self.wait_for(session)

    def wait_for(self, session: int) -> None:
        """A session, if it has a grammar, waits until that has answered all that it was asked."""
        if session in self.open and session not in self.waiting and not self._has_answered(session):
            self.waiting.add(session)
            asyncio.get_running_loop().add_reader(self.open[session].fileno(), self._on_news, session)

    def end(self, session: int) -> None:
        """A query is over, and with it all work on its grammar."""
        self._stop_waiting(session)
        if (grammar := self.open.pop(session, None)) is not None:
            grammar.close()

    def _on_news(self, session: int) -> None:
        if self._has_answered(session):
            self._stop_waiting(session)
            self._on_answer()

    def _has_answered(self, session: int) -> bool:
        try:
            return self.open[session].poll()
        except TandemError as error:
            self._on_error(session, error)
            return True

    def _stop_waiting(self, session: int) -> None:
        if session in self.waiting:
            self.waiting.discard(session)
            asyncio.get_running_loop().remove_reader(self.open[session].fileno())


class DecoderActor(SiteActor):
    """Runs the jobs that its session table plans."""

    role: ClassVar[ActorKind] = "decoder"
    dials: ClassVar[tuple[ActorKind, ...]] = ("retriever",)

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self.table: DecodingTable = DecodingTable(party, is_private=self.config.party(party).privacy > 0)
        self.num_forwards = 0
        self.num_passes = 0  # batches of forwards
        self.num_abandoned = 0
        self.num_malformed_proposals = 0  # unreadable, so they counted as none, in sessions that have ended
        self.decode_s = 0.0
        self.wake = asyncio.Event()  # a message arrived, so the plan may have changed
        self._loaded: Engine | None = None
        self._drafters: dict[int, Drafter] = {}  # by session: the state of the codec
        self._ended: list[int] = []  # sessions to free in the engine
        self._readers: dict[str, PieceReader] = {}  # by list of pieces
        self._readings: dict[int, Reading] = {}  # by session, of those whose answers are of pieces
        self._kv_notes: list[str] = []  # for the next answer: about the store of caches, or the budget
        self.grammars = Grammars(self.wake.set, self.fail)

    @property
    def engine(self) -> Engine:
        """The loaded model. Raises TandemError before `prepare`."""
        if self._loaded is None:
            raise TandemError(f"{self.name} has not loaded its model yet; await prepare() first.")
        return self._loaded

    @cached_property
    def codec(self) -> Codec:
        """The codec of this party's distributions. Raises ConfigError if it cannot be loaded."""
        return codec_of(self.config.codec, self.place)

    # ---- control plane ---------------------------------------------------------------------------------------

    async def prepare(self) -> dict[str, Any]:
        """Load the model. The description is compared with the other side's before the first query."""
        from tandem.corpora import model_path
        from tandem.engine.kv import DiskStore
        from tandem.engine.places import describe_card
        from tandem.profiler.profiles import cached_line
        from tandem.system.paths import cache_folder

        codec, decoding = self.codec.fingerprint(), self.config.decoding
        parameters = self.config.scheduler.parameters
        policy = load_policy(decoding.placement, parameters, self.place)
        if self.party in (Party.DEVICE, SERVER):
            load_length_policy(decoding.length_policy, parameters, self.place)
        self._loaded = engine = await self.in_thread(self._load)
        party = self.config.party(self.party)
        line = await self.in_thread(lambda: cached_line(party, cache_folder(), _log.warning))
        store = engine.caches.store
        self.spawn(self.work(), "work")
        self.description = {
            "model": party.model,
            **await self.in_thread(engine.describe),
            "drafter_for": describe_card(model_path(party.model)),  # its target; {} if unknown
            "codec": codec,
            "race_depth": self.config.codec.race_depth,  # 0: votes are whole distributions
            "policy": policy,  # empty: no custom one
            "length_policy": decoding.length_policy if is_extension(decoding.length_policy) else "",
            "protocol_version": PROTOCOL_VERSION,
            "oldest_version": OLDEST_VERSION,
            "has_grammars": find_spec("llguidance") is not None,
            "has_stale_caches": isinstance(store, DiskStore) and store.is_of_another_model(),
            "decode_line": line,  # k_a, k_b, k_c, start; [] without a profile of these settings here
        }
        return self.description

    @cached_property
    def _lists(self) -> PieceLists:
        from tandem.engine.pieces import PieceLists

        return PieceLists()

    @cached_property
    def _vocabulary(self) -> TextTokens:
        from tandem.engine.pieces import TextTokens

        return TextTokens(self.engine, self.config.party(self.party).model)

    async def vocabulary(self) -> bytes:
        """This party's vocabulary, for those that have another one. Raises GenerationError."""
        return await self.in_thread(lambda: self._vocabulary.packed)

    async def share(self, vocabularies: dict[str, bytes]) -> dict[str, Any]:
        """Have a list of the pieces of these parties' vocabularies; returns what is added to the description."""
        pieces = await self.in_thread(lambda: self._lists.add(vocabularies))
        added = {"pieces": pieces.fingerprint, "num_pieces": pieces.size, "vocabularies": pieces.describe()}
        self.description |= added
        return added

    async def shared(self) -> list[dict[str, bytes]]:
        """What `share` was given, for actors that are replaced."""
        return self._lists.vocabularies

    async def count_tokens(self, texts: list[str]) -> int:
        """Tokens of these texts, for clients; a tokenizer of their own would take 150 MB."""
        return await asyncio.to_thread(self.engine.count_tokens, texts)

    async def detokenizer(self) -> Detokenizer:
        """A detokenizer for the draft queue, which has no model."""
        return self.engine.detokenizer

    async def answer_room(self, spec: str, context: int) -> int:
        """Tokens that the answer to a question may have in a context of so many tokens. spec: as JSON."""
        from tandem.engine.pieces import TOKENS_PER_PIECE

        asked = SessionSpec.from_json(spec)
        # in a thread: a long question holds up no other query's messages
        room = await asyncio.to_thread(
            self.engine.answer_room, asked.query, asked.history, asked.frame, context
        )
        return max(1, room // TOKENS_PER_PIECE) if asked.pieces else room

    async def forget_sessions(self) -> None:
        """Forget all sessions, in the engine, too."""
        for session in list(self.table.sessions):
            self.handle(End(session=session), self.name)
        await super().forget_sessions()

    async def close(self) -> None:
        """End all work on grammars, then what every actor closes."""
        for session in list(self.grammars.open):
            self.grammars.end(session)
        await super().close()

    # ---- data plane ------------------------------------------------------------------------------------------

    def handle(self, message: Any, source: str) -> list[Send]:
        """Update the plan and wake the worker."""
        sends = self.table.receive(message)
        if isinstance(message, Begin) and message.session in self.table.sessions:
            spec = self.table.sessions[message.session].spec
            spec.check_weights(self.party, self.description["weights_fingerprint"])
            if spec.grammar and message.session not in self.grammars.open:
                follower = self._lists.find(spec.pieces) or self.engine
                grammar = follower.follow(spec.grammar, spec.vocab_size, spec.eos_token_ids)
                self.grammars.begin(message.session, grammar)
        elif isinstance(message, End):
            self._end(message.session)
        self.wake.set()
        return sends

    def on_error(self, message: Any, error: TandemError) -> None:
        """A message that cannot be handled ends its session, not the actor."""
        self.fail(message.session, error)

    def on_lost(self, name: str) -> None:
        """Without the retriever, no session of this side can continue."""
        if name == f"{self.party}/retriever":
            sentence = f"{at_start(self.party)}'s retriever has stopped; {remedy_for(self.party)}."
            lost = TandemError(sentence, code=Code.LOST)
            self.dispatch(
                [Send("draft_queue", report_failure(session, lost)) for session in self.table.sessions]
            )

    def fail(self, session: int, error: Exception) -> None:
        """Give one session up; the others continue."""
        if not isinstance(error, TandemError):
            kind, where = describe_origin(error)
            _log.error("%s: session %08x failed with %s at %s", self.name, session, kind, where)
            error = TandemError(
                f"{at_start(self.party)}'s decoder failed on this query with {kind}; see its log."
            )
        self.table.sessions.pop(session, None)
        self._end(session)
        self.dispatch([Send("draft_queue", report_failure(session, error))])

    def _end(self, session: int) -> None:
        self.grammars.end(session)
        self._ended.append(session)

    # ---- the model's thread ----------------------------------------------------------------------------------

    async def work(self) -> None:
        """The decoder's whole life: compute what is planned next and send the results."""
        while True:
            self.free_ended()
            jobs = self.table.next_jobs(MAX_ROWS, self.grammars.waiting)
            if not jobs:
                self.wake.clear()
                await self.wake.wait()
                continue
            try:
                results = await self.compute(jobs)
            except Exception as error:  # none is expected; the next queries must not wait for ever
                results = [error] * len(jobs)
            for job, result in zip(jobs, results, strict=True):
                try:
                    if isinstance(result, Exception):
                        raise result
                    self.dispatch(result)
                except Exception as error:
                    self.fail(job.session, error)

    async def compute(self, jobs: Sequence[Job]) -> list[list[Send] | Exception]:
        """Run jobs of one kind in one batch. For each: what is to be sent (nothing if abandoned), or what failed."""
        sessions = [self.table.sessions[job.session] for job in jobs]
        results: Sequence[PrefillResult | list[Step] | Exception | None]
        if prefills := [job for job in jobs if isinstance(job, Prefill)]:
            results = await self.in_thread(
                lambda: compute_prompts(
                    self.engine, prefills, self.open_prompt, lambda job: job.session in self.table.sessions
                )
            )
        else:
            results = await self.draft(sessions, [job for job in jobs if isinstance(job, Forward)])
        return [self._finish(*each) for each in zip(sessions, jobs, results, strict=True)]

    def _finish(
        self, session: DecodingSession, job: Job, result: PrefillResult | list[Step] | Exception | None
    ) -> list[Send] | Exception:
        """The messages that the result of a job, or its failure, sends."""
        match result:
            case None:
                return []
            case Exception():
                return result if self.table.sessions.get(job.session) is session else []  # it ended meanwhile
            case PrefillResult():
                notes = self.notes(result.result, is_home=session.spec.home == self.party)
                opened = (result.prefill_us, notes, result.result.documents, result.question)
                return _attempt(partial(session.finish_prefill, *opened))
            case _:
                assert isinstance(job, Forward)
                return _attempt(partial(session.finish, job, result))

    async def draft(
        self, sessions: Sequence[DecodingSession], jobs: Sequence[Forward]
    ) -> list[list[Step] | Exception | None]:
        """Compute the drafts or votes of each job; None where it was abandoned, or is planned again for its grammar."""
        drafts = await self.in_thread(
            lambda: compute_drafts(
                self.engine, self._drafter, jobs, sessions, self.grammars.open, self._readings
            )
        )
        self.num_passes += 1
        for job, draft in zip(jobs, drafts, strict=True):
            if isinstance(draft, list):
                self.num_forwards += 1
                self.decode_s += draft[-1].decode_us / 1e6
            elif draft is None:
                self.num_abandoned += 1
                self.grammars.wait_for(job.session)
        return drafts

    def open_prompt(self, job: Prefill) -> Prompt:
        """Open the session in the engine, with the documents of the job as its rows."""
        from tandem.engine.pieces import TOKENS_PER_PIECE, Reading

        reader = self._reader(self.table.sessions[job.session].spec)
        prompt = self.engine.open(
            str(job.session),
            job.query,
            job.documents,
            job.max_new_tokens * (1 if reader is None else TOKENS_PER_PIECE),
            history=job.history,
            num_stored=job.num_stored,
            scores_question=job.scores_question,
            frame=job.frame,
        )
        if reader is not None:
            longest = max(len(row.tokens) for row in prompt.rows())
            context = self.engine.context_length
            self._readings[job.session] = Reading(reader, context and context - longest)
        return prompt

    def _reader(self, spec: SessionSpec) -> PieceReader | None:
        """How this party reads a query's answer; None: as the model's own tokens."""
        from tandem.engine.pieces import MAX_LISTS, PieceReader, forget_first

        if (pieces := self._lists.find(spec.pieces)) is None:
            return None
        if spec.pieces not in self._readers:
            self._readers[spec.pieces] = PieceReader(self._vocabulary, pieces)
            forget_first(self._readers, MAX_LISTS)
        return self._readers[spec.pieces]

    def _drafter(self, session: DecodingSession) -> Drafter:
        """The drafter of one session, which holds the state of its codec. Raises ConfigError."""
        spec, party, privacy = session.spec, self.config.party(self.party), None
        if spec.session not in self._drafters:
            if party.privacy and spec.num_documents(self.party):
                from tandem.engine.privacy import make_privacy

                privacy = make_privacy(party, spec.sampling.temperature, self._on_kv)
            grammar = self.grammars.open.get(spec.session)
            self._drafters[spec.session] = make_drafter(self.codec, spec, self.party, privacy, grammar)
        return self._drafters[spec.session]

    def _load(self) -> Engine:
        from tandem.actors.loading import open_engine
        from tandem.retrieval.retriever import kv_folder

        return open_engine(self.config.party(self.party), kv_folder(self.party, self.config), self._on_kv)

    def _on_kv(self, sentence: str) -> None:
        """Log that the store left something unused, or that the budget is used up, and note it for the next answer."""
        _log.warning("%s: %s", self.name, sentence)
        self._kv_notes.append(sentence)

    def free_ended(self) -> None:
        """Close the engine's sessions that have ended."""
        while self._ended:
            session = self._ended.pop()
            if (drafter := self._drafters.pop(session, None)) is not None:
                self.num_malformed_proposals += drafter.num_malformed
            self._readings.pop(session, None)
            self.engine.close(str(session))

    def notes(self, opened: Prompt, *, is_home: bool) -> tuple[str, ...]:
        """Sentences about documents and stored caches, each given once; elsewhere than at home without local paths."""
        notes, self._kv_notes = [sendable(note) for note in self._kv_notes], []
        if notes and not is_home:
            notes = [f"{at_start(self.party)} cannot use its stored caches; its log says why."]
        return (*notes, *opened.notes)

    def _extra_statistics(self) -> dict[str, float]:
        return {
            "num_forwards": self.num_forwards,
            "num_passes": self.num_passes,
            "num_abandoned": self.num_abandoned,
            "num_malformed_proposals": self.num_malformed_proposals
            + sum(drafter.num_malformed for drafter in self._drafters.values()),
            "decode_s": self.decode_s,
            **(self._loaded.caches.statistics() | self._loaded.turns.statistics() if self._loaded else {}),
        }


def compute_prompts(
    engine: Engine,
    jobs: Sequence[Prefill],
    open_prompt: Callable[[Prefill], Prompt],
    is_open: Callable[[Prefill], bool],
) -> list[PrefillResult | Exception | None]:
    """Open the sessions and compute their prompts; None where it was abandoned."""
    started_s = time.perf_counter()
    opened = [_attempt(partial(open_prompt, job)) for job in jobs]
    ready = [job for job, result in zip(jobs, opened, strict=True) if not isinstance(result, Exception)]
    asked = {str(job.session): partial(_one_pass, (), 1) for job in ready}
    is_current = [partial(is_open, job) for job in ready]
    computed = dict(zip(asked, _forward(engine, asked, is_current), strict=True))

    def finish(job: Prefill, result: Prompt | Exception) -> PrefillResult | None:
        if isinstance(result, Exception):
            raise result
        logits = computed[str(job.session)]
        if isinstance(logits, Exception):
            raise logits
        if logits is None:
            return None
        question = score_question(engine, str(job.session), job)
        return PrefillResult(result, elapsed_us(started_s), question)

    return [_attempt(partial(finish, *each)) for each in zip(jobs, opened, strict=True)]


def score_question(engine: Engine, session: str, job: Prefill) -> tuple[float, ...]:
    """Log likelihood of the question in each row; with a baseline, what the documents add to it.

    session: of the engine, whose prompt is computed.
    """
    if not job.scores_question:
        return ()
    likelihoods = engine.question_likelihoods(session)
    if not job.has_baseline:
        return likelihoods
    name = f"{session}{BASELINE}"
    engine.open(
        name, job.query, (), job.max_new_tokens, history=job.history, scores_question=True, frame=job.frame
    )
    try:
        engine.next_logits(name, ())
        (bare,) = engine.question_likelihoods(name)
    finally:
        engine.close(name)
    return tuple(likelihood - bare for likelihood in likelihoods)


def compute_drafts(
    engine: Engine,
    drafter_of: Callable[[DecodingSession], Drafter],
    jobs: Sequence[Forward],
    sessions: Sequence[DecodingSession],
    grammars: Mapping[int, Grammar] = MappingProxyType({}),
    readings: Mapping[int, Reading] = MappingProxyType({}),
) -> list[list[Step] | Exception | None]:
    """The drafts of each job, by step; None where they are no longer wanted, or where its grammar takes too long.

    grammars: by session. What they allow is computed during the pass. readings: by session, of answers of pieces.
    """
    from tandem.engine.pieces import run_passes

    started_s = time.perf_counter()
    followed = {job.session: grammars[job.session] for job in jobs if job.session in grammars}
    for job in jobs:
        if job.session in followed:
            followed[job.session].expect([job.tokens[:step] for step in range(job.first_drawn, job.step + 1)])
    asked = {str(job.session): partial(_ask, job, readings.get(job.session)) for job in jobs}
    is_current = [partial(session.is_current, job) for session, job in zip(sessions, jobs, strict=True)]
    computed = _forward(engine, asked, is_current)
    end_s = time.perf_counter() + GRAMMAR_WAIT_S

    def draw(session: DecodingSession, job: Forward, logits: Logits | Exception | None) -> list[Step] | None:
        if isinstance(logits, Exception):
            raise logits
        if logits is None or not session.is_current(job):
            return None
        grammar = followed.get(job.session)
        if grammar is not None and not grammar.poll(lambda: end_s - time.perf_counter()):
            return None
        model = _Logits(session, job, drafter_of(session), logits)
        if (reading := readings.get(job.session)) is not None:
            model.learn_from(reading, lambda passes: run_passes(engine, {str(job.session): passes}))
        return compute_steps(job, model, lambda: elapsed_us(started_s))

    return [_attempt(partial(draw, *each)) for each in zip(sessions, jobs, computed, strict=True)]


def make_drafter(
    codec: Codec,
    spec: SessionSpec,
    party: str,
    privacy: Privacy | None = None,
    grammar: Grammar | None = None,
) -> Drafter:
    """The drafter of a party for one session. grammar: of the query, followed with this party's tokenizer. Raises
    ConfigError if there is no such rule, or `privacy` cannot be kept."""
    from tandem.engine.drafter import Drafter, TokenDrafter, TokenVoter
    from tandem.engine.shaping import Shaper

    role, rules = spec.roles.role(party), spec.rules
    shaper = Shaper(spec.sampling, dict(spec.logit_bias), grammar)
    are_whole = role.votes and not (rules.votes_are_tokens or rules.has_race_lists)
    if privacy is not None and (are_whole or rules.needs_drafts):
        raise ConfigError(
            f"{at_start(party)} bounds what its documents say, but with draft_rule {spec.decoding.draft_rule!r} and "
            f"race_depth {spec.race_depth} a codec cuts its distributions off, after which no bound holds; choose "
            'draft_rule "coupled" with race lists, or set privacy to 0.'
        )
    shows_more = rules.num_named(party) is not None or (role.votes and not rules.votes_are_tokens)
    if privacy is not None and privacy.has_budget and shows_more:
        raise ConfigError(
            f"{at_start(party)} has a privacy budget, which holds where nothing but drawn tokens crosses, but with "
            f'draft_rule "{rules.draft_rule}", or asked for log probabilities, it shows how probable they are; choose '
            'draft_rule "lottery" and ask for none, or set privacy_budget to 0.'
        )
    common = spec.sampling, rules.drawing_rule, spec.vocab_size
    if role.votes and not rules.votes_are_tokens:
        return Drafter(rules.codec_of_votes(codec), *common, privacy, shaper)
    make = TokenDrafter if role.drafts else TokenVoter
    return make(
        codec,
        *common,
        sends_drafts=rules.needs_drafts,
        num_named=rules.num_named(party),
        privacy=privacy,
        shaper=shaper,
    )


def elapsed_us(started_s: float) -> int:
    """Microseconds since `started_s` of the performance counter."""
    return int((time.perf_counter() - started_s) * 1e6)


class _Logits:
    """The logits of one job, [rows, steps, vocab], as `compute_steps` asks for them."""

    def __init__(self, session: DecodingSession, job: Forward, drafter: Drafter, logits: Logits) -> None:
        self._session, self._job, self._drafter, self._logits = session, job, drafter, logits
        self._last: int | None = None  # the step that was drawn last
        self._evidence: Callable[[Sequence[int], int], Evidence] | None = None

    def learn_from(self, reading: Reading, forward: Callable[[Passes], Any]) -> None:
        """Let the evidence of pieces be that of the model's tokens. forward: runs passes of this session."""
        self._evidence = partial(reading.evidence, forward=forward)

    def draw(self, step: int, weights: Weights) -> Step:
        """The draft or vote at one step."""
        from tandem.engine.drafter import DraftPlace

        job, session = self._job, self._session
        self._last = step
        place = DraftPlace(
            session.spec.seed,
            step,
            Party(session.party) if session.party in PARTIES else Party.CLOUD,  # of no matter there
            job.lineage[: step + 1] or ROOT,
            job.proposed[step - job.first_drawn] if job.proposed else None,
        )
        return self._drafter.draft(
            self._logits[:, step - job.first], weights or (0.0,), place, job.tokens[:step]
        )

    def learn(self, step: int, token: int) -> Evidence:
        """The probability of a token in each row."""
        from tandem.engine.drafter import row_probabilities
        from tandem.engine.pieces import END

        if self._evidence is not None and token != END:
            return self._evidence(self._job.tokens[:step], token)
        rows = self._drafter.rows if step == self._last else None
        if rows is None:
            logits = self._logits[:, step - self._job.first, : self._session.spec.vocab_size]
            rows = row_probabilities(logits)  # as the drafter's: over the tokens that all parties have
        return log_evidence(rows[:, token].tolist())


def _ask(job: Forward, reading: Reading | None) -> Passes:
    num_logits = 1 + job.num_earlier
    if reading is None:
        return _one_pass(job.tokens, num_logits)
    return reading.passes(job.tokens, num_logits, learns=job.weights.moves)


def _one_pass(tokens: Sequence[int], num_logits: int) -> Passes:
    """What a query asks of an engine whose answer is of its own tokens."""
    return (yield tokens, num_logits)


def _forward(
    engine: Engine, asked: Mapping[str, Callable[[], Passes]], is_current: Sequence[Callable[[], bool]]
) -> list[Logits | Exception | None]:
    from tandem.engine.pieces import run_passes
    from tandem.engine.port import Preempted

    if not asked:
        return []
    try:
        passes = {name: ask() for name, ask in asked.items()}
        return list(run_passes(engine, passes, lambda: not any(ask() for ask in is_current)))
    except Preempted:
        return [None] * len(asked)
    except Exception as error:
        if len(asked) == 1:
            return [error]
        each = zip(asked.items(), is_current, strict=True)
        return [_forward(engine, {name: ask}, [is_wanted])[0] for (name, ask), is_wanted in each]


def _attempt(act: Callable[[], T]) -> T | Exception:
    try:
        return act()
    except Exception as error:
        return error
