"""The parties of a federated cluster in this process: what each says after any tokens, and the loop without drafts.

Real models and documents, and nothing of the protocol: what a cluster with the same settings must answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.race_lists import RaceList
from tandem.client.request import spec_of
from tandem.codecs import Codec, codec_of
from tandem.codecs.race_lists import read_vote
from tandem.config.schema import Config
from tandem.engine.tokenizer import Detokenizer, StopRule
from tandem.modes import reference
from tandem.modes.spec import SessionSpec
from tandem_lab.quality.local import LocalParty, LocalVoter
from tandem_lab.quality.memoized import MemoizedEngine, MemoizedRetriever
from tandem_lab.simulation.specs import change_spec


class WorkerVoter(LocalVoter):
    """One party's vote after any tokens, by its own model and documents."""

    def __init__(self, spec: SessionSpec, party: str, local: LocalParty, codec: Codec) -> None:
        """codec: of votes that are no race lists."""
        super().__init__(spec, party, local)
        self._codec = codec

    def __call__(self, tokens: Sequence[int]) -> reference.Vote:
        """The party's distribution as it is counted, and how much its documents weigh."""
        return reference.Vote(self.distribution(tokens).tolist(), self.log_weight(tokens))

    def distribution(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """What the decider reads from the vote in full, [vocab]."""
        spec, payload = self.spec, self.vote(tokens)
        if not spec.rules.has_race_lists:
            return self._codec.decode(payload, spec.vocab_size).dense(spec.vocab_size)
        vote = read_vote(payload, spec.vocab_size)
        assert not isinstance(vote, RaceList)
        return vote.astype(np.float64)


class LocalWorkers:
    """All parties of a federated cluster. Those with one model share it; each question is computed once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._codec = codec_of(config.codec)
        self._engines: dict[tuple[str, ...], MemoizedEngine] = {}

    def make_spec(self, question: str, seed: int, **changes: Any) -> SessionSpec:
        """The query as a cluster would open it. changes: as of `change_spec`."""
        engine = self.engine(next(iter(self.config.workers)))
        basis = replace(
            spec_of(self.config),
            session=1,
            query=question,
            seed=seed,
            eos_token_ids=tuple(engine.eos_token_ids),
            vocab_size=engine.vocab_size,
        )
        return change_spec(basis, **changes)

    def engine(self, party: str) -> MemoizedEngine:
        """The model of a party."""
        from tandem.actors.loading import load_engine

        own = self.config.party(party)
        key = (own.model, own.torch_device, own.dtype, own.template, own.system_prompt)
        if key not in self._engines:
            self._engines[key] = MemoizedEngine(load_engine(own, num_threads=1))
        return self._engines[key]

    def voter(self, spec: SessionSpec, party: str) -> WorkerVoter:
        """What a party says after any tokens."""
        from tandem.engine.drafter import Drafter

        engine = self.engine(party)
        drafter = Drafter(
            spec.rules.codec_of_votes(self._codec), spec.sampling, spec.decoding.draft_rule, spec.vocab_size
        )
        retriever = self._open_retriever(party) if spec.num_documents(party) else None
        key = f"{party} {spec.query} {spec.sampling.max_new_tokens}"
        local = LocalParty(cast(Any, engine), cast(Any, retriever), drafter, key)
        return WorkerVoter(spec, party, local, self._codec)

    def answer(self, spec: SessionSpec, present: Callable[[int], Sequence[int]] | None = None) -> list[int]:
        """The tokens of an answer, by the draft-free loop. present: the voters that are there at a step, by number."""
        voters = [self.voter(spec, name) for name in self.config.workers]
        return reference.answer_with_losses(
            voters,
            spec.weights or None,
            self.voter(spec, spec.home),
            present or (lambda step: range(len(voters))),
            self.is_complete(spec),
            spec.seed if spec.sampling.temperature else None,
        )

    def is_complete(self, spec: SessionSpec) -> reference.IsComplete:
        """The stop rule of every party."""
        sampling = spec.sampling
        detokenizer = Detokenizer(self.engine(spec.home).tokenizer_json)
        rule = StopRule.of(spec.eos_token_ids, sampling, detokenizer)
        return lambda tokens: rule.find_reason(tokens) is not None

    def _open_retriever(self, party: str) -> MemoizedRetriever:
        from tandem.retrieval.factory import open_retriever

        return MemoizedRetriever(open_retriever(party, self.config, *self._loaded))

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from tandem.actors.loading import load_embedder_and_scorer

        return load_embedder_and_scorer(self.config, num_threads=1)
