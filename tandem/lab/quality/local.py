"""Both sides in one process: real model, real index, the protocol's state machines under a virtual clock.

Answers equal those of the running cluster token for token with coupled drafts, since they are a function of seed,
documents, models and codec alone. Knows nothing of Ray.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tandem.codecs import Codec
from tandem.engine.drafter import Drafter
from tandem.engine.engine import Engine
from tandem.engine.tokenizer import Detokenizer, StopRule
from tandem.lab.simulation.link import Link
from tandem.lab.simulation.virtual import Outcome, VirtualRun
from tandem.protocol.decoding import Forward, Prefill
from tandem.protocol.estimating_tables import ProfilingTable
from tandem.protocol.messages import Message, RescoreRequest, RetrieveRequest
from tandem.protocol.retrieval_requests import find_documents, score_documents, to_result
from tandem.protocol.spec import SessionSpec
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES, Party

if TYPE_CHECKING:
    from tandem.retrieval.langchain import StoreRetriever


class LocalParty:
    """One side's retriever and model, called directly. Implements `tandem.lab.simulation.virtual.SideModel`."""

    def __init__(
        self,
        engine: Engine,
        retriever: Retriever | StoreRetriever,
        drafter: Drafter,
        key: str,
    ) -> None:
        """`key` names this side's session in the engine, which both sides may share."""
        self._engine, self._retriever, self._drafter = engine, retriever, drafter
        self._key = key

    def retrieve(self, message: RetrieveRequest | RescoreRequest) -> Message:
        """Search the index, or score the documents again."""
        if isinstance(message, RescoreRequest):
            return score_documents(self._retriever, message)
        return to_result(message, find_documents(self._retriever, message))

    def prefill(self, job: Prefill) -> tuple[int, ...] | None:
        """Open the session in the engine; indices of the documents that have a row."""
        day: dict[str, Any] = (
            {"day": job.day} if job.day else {}
        )  # engines that stand in for the product's take none
        return self._engine.open(self._key, job.query, job.documents, job.max_new_tokens, **day).documents

    def payload(self, job: Forward) -> bytes:
        """One forward pass, mixed and encoded."""
        logits = self._engine.next_logits(self._key, job.tokens)
        return self._drafter.encode(logits, job.weights or (0.0,), job.lineage)[0]

    def close(self) -> None:
        """Free the session in the engine."""
        self._engine.close(self._key)


class LocalPair:
    """A device and a cloud that share one loaded model (or not), for evaluation and tests.

    As in the running system, the profilers live on from answer to answer.
    """

    def __init__(
        self,
        engines: Mapping[Party, Engine],
        retrievers: Mapping[Party, Retriever | StoreRetriever],
        codec: Codec,
    ) -> None:
        self.engines, self.retrievers, self.codec = engines, retrievers, codec
        self._detokenizer = Detokenizer(engines[Party.DEVICE].tokenizer_json)
        self._profilers = {party: ProfilingTable(party) for party in PARTIES}

    def answer(
        self,
        spec: SessionSpec,
        *,
        link: Link | None = None,
        decode_s: Callable[[Party, Random], float] = lambda party, rng: 0.01,
        seed: int = 0,
    ) -> tuple[str, Outcome]:
        """The answer's text and what the run showed."""
        eos = self.engines[Party.DEVICE].eos_token_ids
        spec = replace(spec, session=secrets.randbits(32), eos_token_ids=tuple(eos))
        rule = StopRule.of(spec.eos_token_ids, spec.sampling, self._detokenizer)
        readers = {
            party: LocalParty(
                self.engines[party],
                self.retrievers[party],
                Drafter(spec.codec_of_votes(self.codec), spec.sampling, spec.draft_rule, spec.vocab_size),
                f"{spec.session}/{party}",
            )
            for party in PARTIES
        }
        try:
            run = VirtualRun(
                spec,
                dict(readers),
                self.codec,
                finished=rule.find_reason,
                text=self._detokenizer.text,
                link=link,
                decode_s=decode_s,
                seed=seed,
            )
            for party in PARTIES:
                run.parties[party].profiler = self._profilers[party]
            outcome = run.run()
        finally:
            for reader in readers.values():
                reader.close()
        return rule.text(outcome.tokens[Party(spec.home)]).strip(), outcome
