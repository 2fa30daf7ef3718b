"""Both sides in one process: real model, real index, the protocol's state machines under a virtual clock.

Answers equal those of the running cluster token for token with coupled drafts, since they are a function of seed,
documents, models and codec alone. Knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.actors.decoder import score_question
from tandem.aggregation.document_weights import Evidence, Weights, log_evidence
from tandem.aggregation.race_lists import RaceList
from tandem.aggregation.rules import LOTTERY
from tandem.client.request import have_several_models
from tandem.client.steps import ask_in_steps, choice_query, find_cases, last_query, read_said
from tandem.codecs import Codec, RaceLists
from tandem.codecs.base import ROOT
from tandem.codecs.votes import read_vote
from tandem.engine.drafter import Drafter, DraftPlace, row_probabilities
from tandem.engine.engine import Engine
from tandem.engine.privacy import Privacy
from tandem.engine.shaping import Shaper
from tandem.engine.tokenizer import StopRule
from tandem.events import Answer, Event, Source, SourcesEvent, TokenEvent, collect
from tandem.messages import RetrieveRequest, RetrieveResult
from tandem.modes import SessionSpec, reference, reference_shaping
from tandem.protocol.decoding import DecodingTable, Prefill, arrange_rows
from tandem.protocol.log import Prefix
from tandem.protocol.services import ProfilingTable, find_documents, to_result
from tandem.retrieval.retriever import DocumentSearch
from tandem.topology import PARTIES, Party
from tandem_lab.quality.pieces import PieceEngine
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.oracle import Documents, can_matter
from tandem_lab.simulation.virtual import Outcome, VirtualRun
from tandem_lab.simulation.world import Prefilled


class LocalParty:
    """One side's retriever and model, called directly. Implements `tandem_lab.simulation.virtual.SiteModel`."""

    def __init__(
        self,
        engine: Engine,
        retriever: DocumentSearch,
        drafter: Drafter,
        key: str,
    ) -> None:
        """`key` names this side's session in the engine, which both sides may share."""
        self._engine, self._retriever, self._drafter = engine, retriever, drafter
        self._key = key

    def retrieve(self, message: RetrieveRequest) -> RetrieveResult:
        """Search the index."""
        return to_result(self._retriever, message, find_documents(self._retriever, message))

    def prefill(self, job: Prefill) -> Prefilled:
        """Open the session in the engine."""
        frame: dict[str, Any] = (
            {"frame": job.frame} if any(job.frame) else {}
        )  # engines that stand in for the product's take none
        opened = self._engine.open(
            self._key,
            job.query,
            job.documents,
            job.max_new_tokens,
            history=job.history,
            scores_question=job.scores_question,
            **frame,
        )
        if job.scores_question:
            self._engine.next_logits(self._key, ())
        return Prefilled(opened.documents, score_question(self._engine, self._key, job))

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        """One forward pass, mixed and encoded."""
        logits = self._engine.next_logits(self._key, tokens)
        place = DraftPlace(seed=0, step=len(tokens), party=Party.DEVICE, lineage=lineage or ROOT)
        return self._drafter.draft(logits, weights or (0.0,), place, tokens).payload or b""

    def dense(self, tokens: Sequence[int], weights: Weights) -> NDArray[np.float64]:
        """The party's distribution after these tokens [vocab], as no codec has seen it."""
        logits = self._engine.next_logits(self._key, tokens)
        return self._drafter.distribution(logits, weights or (0.0,), tokens)

    def evidence(self, tokens: Sequence[int], token: int, num_rows: int) -> Evidence:
        """What a token after these says of each row."""
        return log_evidence(self.likelihoods(tokens, token))

    def probabilities(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """How probable each row finds each token after these, [rows, vocab]."""
        return row_probabilities(self._engine.next_logits(self._key, tokens))

    def likelihoods(self, tokens: Sequence[int], token: int) -> list[float]:
        """How probable each row finds one token after these."""
        if isinstance(self._engine, PieceEngine):
            return self._engine.likelihoods(self._key, tokens, token)
        return list(self.probabilities(tokens)[:, token].tolist())

    def close(self) -> None:
        """Free the session in the engine."""
        self._engine.close(self._key)


class LocalVoter(Documents):
    """A party's documents before its model, as the reference page takes them."""

    def __init__(self, spec: SessionSpec, party: str, local: LocalParty, codec: Codec | None = None) -> None:
        """codec: of votes that are no race lists; None: they are given in full, as float32."""
        self._codec = None if spec.rules.has_race_lists else codec
        request = RetrieveRequest(
            session=spec.session,
            query=spec.search_text,
            num_documents=(number := spec.num_documents(party)),
            filter=spec.filter(party),
            before=spec.question_before,
        )
        nothing = RetrieveResult(session=spec.session, ids=(), texts=(), scores=(), retrieve_us=0)
        rows = arrange_rows(local.retrieve(request) if number else nothing, spec.row_layout(party))
        self.local = local
        scores_question = spec.question_weight > 0 and can_matter(spec, party, len(rows))
        kept, question = local.prefill(
            Prefill(
                session=spec.session,
                query=spec.query,
                documents=tuple(row.text for row in rows),
                max_new_tokens=spec.sampling.max_new_tokens,
                history=spec.history,
                frame=spec.frame,
                scores_question=scores_question,
                has_baseline=scores_question and spec.has_several_models,
            )
        )
        if kept is not None:  # those that fit the model's context
            rows = tuple(rows[row] for row in kept)
        readers = [partial(_ModelRow, local, row) for row in range(len(rows))]
        super().__init__(spec, party, rows, question or (0.0,) * len(rows), readers)

    def __call__(self, tokens: Sequence[int]) -> reference_shaping.Forecast:
        """The party's distribution as it is counted, and how much its documents weigh."""
        return reference_shaping.Forecast(self.distribution(tokens).tolist(), self.log_weight(tokens))

    def distribution(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """What the decider reads from the vote in full, or the party draws its token from, [vocab]."""
        if self.spec.rules.votes_are_tokens:
            return self.local.dense(tokens, self.weights(tokens))
        payload = self.local.payload(tokens, self.weights(tokens), Prefix(self.spec.session, tokens).digests)
        if self._codec is not None:
            return self._codec.decode(payload, self.spec.vocab_size).dense(self.spec.vocab_size)
        vote = read_vote(payload, self.spec.vocab_size)
        assert not isinstance(vote, RaceList)
        return vote.astype(np.float64)


class _ModelRow:
    """How probable one row finds each token after some tokens."""

    def __init__(self, local: LocalParty, row: int, tokens: Sequence[int]) -> None:
        self._local, self._row, self._tokens = local, row, tokens

    def __getitem__(self, token: int) -> float:
        return self._local.likelihoods(self._tokens, token)[self._row]


class LocalPair:
    """A device and a cloud that share one loaded model (or not), for evaluation and tests.

    As in the running system, the profilers live on from answer to answer.
    """

    def __init__(
        self,
        engines: Mapping[Party, Engine],
        retrievers: Mapping[Party, DocumentSearch],
        codec: Codec,
        privacy: float = 0.0,
    ) -> None:
        """privacy: by how many nats the device's documents may change a log probability; 0: no bound."""
        self.engines, self.retrievers, self.codec = engines, retrievers, codec
        self.privacy = privacy
        self.divergences: list[float] = []  # of the draws of the last answer, as an accountant adds them up
        self._detokenizer = engines[Party.DEVICE].detokenizer
        self._profilers = {party: ProfilingTable(party) for party in PARTIES}

    def answer(
        self,
        spec: SessionSpec,
        *,
        link: Link | None = None,
        decode_s: Callable[[Party, Random], float] = lambda party, rng: 0.01,
        seed: int = 0,
        make_run: Callable[..., VirtualRun] = VirtualRun,
    ) -> tuple[str, Outcome]:
        """The answer's text and what the run showed. make_run: another driver, for the laboratory's policies."""
        spec = with_engines(replace(spec, session=secrets.randbits(32)), self.engines)
        rule = StopRule.of(spec.eos_token_ids, spec.sampling, self._detokenizer, spec.grammar)
        is_private = self.privacy > 0 and spec.num_documents(Party.DEVICE) > 0
        is_whole = spec.rules.votes_are_tokens and not spec.rules.needs_drafts
        codec = RaceLists() if is_whole else self.codec  # what is drawn at once no codec has cut
        self.divergences = []
        readers = {
            party: LocalParty(
                self.engines[party],
                self.retrievers[party],
                Drafter(
                    spec.rules.codec_of_votes(codec),
                    spec.sampling,
                    spec.rules.drawing_rule,
                    spec.vocab_size,
                    Privacy(self.privacy, self._spend) if is_private and party == Party.DEVICE else None,
                    find_shaper(spec, self.engines[party]),
                ),
                f"{spec.session}/{party}",
            )
            for party in PARTIES
        }
        try:
            run = make_run(
                spec,
                dict(readers),
                codec,
                finished=rule.find_reason,
                link=link,
                decode_s=decode_s,
                seed=seed,
            )
            for party in map(Party, spec.parties):
                run.parties[party].profiler = self._profilers[party]
            run.parties[Party.DEVICE].decoder = DecodingTable(Party.DEVICE, is_private=is_private)
            outcome = run.run()
        finally:
            for reader in readers.values():
                reader.close()
        return rule.text(outcome.tokens[Party(spec.home)]).strip(), outcome

    def answer_in_steps(self, spec: SessionSpec, *, always: bool, **options: Any) -> tuple[Answer, Outcome]:
        """As `answer`, in steps: always, or where the client would take them. The outcome has the tokens of all queries
        of the home. options: of `answer`."""
        outcomes, tokens = list[Outcome](), list[int]()

        async def ask(spec: SessionSpec, notes: tuple[str, ...] = ()) -> AsyncGenerator[Event, None]:
            for known in find_sources(spec, self.retrievers):
                yield known
            text, outcome = self.answer(spec, **options)
            outcomes.append(outcome)
            tokens.extend(outcome.tokens[Party(spec.home)])
            first, *rest = outcome.of(TokenEvent)
            yield replace(first, text=text)
            for event in (*rest, outcome.done):
                assert event is not None
                yield event

        async def follow() -> list[Event]:
            return [event async for event in ask_in_steps(spec, ask, always=always)]

        answer = collect(asyncio.run(follow()), spec.seed)
        num_bytes = sum(outcome.num_bytes for outcome in outcomes)
        last = outcomes[-1]
        return answer, replace(last, tokens={**last.tokens, Party(spec.home): tokens}, num_bytes=num_bytes)

    def _spend(self, nats: float) -> bool:
        self.divergences.append(nats)
        return True


def with_engines(spec: SessionSpec, engines: Mapping[Any, Engine]) -> SessionSpec:
    """A query as the parties of these models would open it."""
    described = {
        party: {"weights_fingerprint": engine.runner.weights_fingerprint} for party, engine in engines.items()
    }
    first = next(iter(engines.values()))
    size = first.vocab_size if isinstance(first, PieceEngine) else spec.vocab_size
    has_several = have_several_models(described, spec)
    eos = tuple(first.eos_token_ids)
    return replace(spec, eos_token_ids=eos, vocab_size=size, has_several_models=has_several)


def find_shaper(spec: SessionSpec, engine: Engine) -> Shaper:
    """What shapes a party's distributions as a query asks."""
    grammar = None
    if spec.grammar:
        grammar = engine.follow(spec.grammar, spec.vocab_size, spec.eos_token_ids)
    return Shaper(spec.sampling, dict(spec.logit_bias), grammar)


def answer_uncompressed(
    spec: SessionSpec, engines: Mapping[Party, Engine], retrievers: Mapping[Party, DocumentSearch]
) -> list[int]:
    """The tokens of a query in dual mode with coupled drafts, or at temperature 0; in mode speculative the cloud's.

    The draft-free loop: no drafts, no link, no compression. With race lists as votes the running system commits these.
    """
    spec = with_engines(replace(spec, session=1), engines)
    rule = StopRule.of(spec.eos_token_ids, spec.sampling, engines[Party.DEVICE].detokenizer, spec.grammar)
    models = {
        party: LocalParty(
            engines[party],
            retrievers[party],
            Drafter(
                RaceLists(),
                spec.sampling,
                spec.rules.drawing_rule,
                spec.vocab_size,
                shaper=find_shaper(spec, engines[party]),
            ),
            f"uncompressed/{party}",
        )
        for party in PARTIES
    }

    def is_complete(tokens: Sequence[int]) -> bool:
        return bool(tokens) and rule.find_reason(tokens) is not None

    try:
        seed = spec.seed if spec.sampling.temperature > 0 else None
        if spec.only is not None:
            return reference.solo(LocalVoter(spec, spec.only, models[Party(spec.only)]), is_complete, seed)
        if spec.decoding.mode == "speculative":
            return reference.speculative(
                LocalVoter(spec, Party.CLOUD, models[Party.CLOUD]), is_complete, seed
            )
        device, cloud = (LocalVoter(spec, party, models[party]) for party in PARTIES)
        by_lottery = spec.rules.draft_rule == LOTTERY
        return reference.dual(device, cloud, is_complete, seed, spec.max_peer_share, by_lottery)
    finally:
        for model in models.values():
            model.close()


def find_sources(
    spec: SessionSpec, retrievers: Mapping[Party, DocumentSearch]
) -> tuple[SourcesEvent, SourcesEvent]:
    """What a query tells the client of both parties' documents."""
    found = []
    for party in PARTIES:
        number, wants = spec.num_documents(party), spec.wants_marks
        request = RetrieveRequest(session=0, query=spec.search_text, num_documents=number, wants_marks=wants)
        hits = find_documents(retrievers[party], request)
        sources = tuple(
            Source(party=party, id=hit.id, score=hit.score, text=hit.document.page_content) for hit in hits
        )
        marks = to_result(retrievers[party], request, hits).marks.hex()
        found.append(SourcesEvent(party=party, sources=sources, retrieve_s=0.0, prefill_s=0.0, marks=marks))
    device, cloud = found
    return device, cloud


def say_in_steps(
    spec: SessionSpec, engines: Mapping[Party, Engine], retrievers: Mapping[Party, DocumentSearch]
) -> list[str]:
    """What the device says of an answer that is written in steps wherever a name is shared, and that, as
    `answer_uncompressed`; the answer alone where none is."""
    detokenizer = engines[Party.DEVICE].detokenizer
    sources = find_sources(replace(spec, wants_marks=True), retrievers)
    cases = find_cases(spec.query, sources, always=True) or ()
    said = list(cases) if len(cases) == 1 else []

    def plan(tokens: Sequence[list[int]]) -> Callable[[], list[int]] | None:
        if len(said) == (2 if cases else 1):
            return None
        step = last_query(spec, said[0]) if said else choice_query(spec, cases) if cases else spec
        rule = StopRule.of(step.eos_token_ids, step.sampling, detokenizer, step.grammar)

        def ask() -> list[int]:
            answer = answer_uncompressed(step, engines, retrievers)
            said.append(read_said(rule.text(answer).strip()) if not said else rule.text(answer).strip())
            return answer

        return ask

    reference.in_steps(plan)
    return said
