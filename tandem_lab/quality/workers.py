"""The parties of a federated cluster in this process: what each says after any tokens, and the loop without drafts.

Real models and documents, and nothing of the protocol: what a cluster with the same settings must answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from tandem.aggregation.rules import LOTTERY
from tandem.client.request import spec_of
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.engine.tokenizer import StopRule
from tandem.modes import SessionSpec, reference
from tandem_lab.quality.local import LocalParty, LocalVoter, find_shaper, with_engines
from tandem_lab.quality.memoized import Loaded
from tandem_lab.simulation.specs import change_spec


class LocalWorkers:
    """All parties of a federated cluster. Those with one model share it; each question is computed once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._codec, self._loaded = codec_of(config.codec), Loaded(config)
        self.engine = self._loaded.engine

    def make_spec(self, question: str, seed: int, **changes: Any) -> SessionSpec:
        """The query as a cluster would open it. changes: as of `change_spec`."""
        engine = self.engine(next(iter(self.config.workers)))
        basis = replace(
            spec_of(self.config),
            session=1,
            query=question,
            seed=seed,
            vocab_size=engine.vocab_size,
        )
        engines: Any = {name: self.engine(name) for name in self.config.workers}
        return with_engines(change_spec(basis, **changes), engines)

    def voter(self, spec: SessionSpec, party: str) -> LocalVoter:
        """What a party says after any tokens."""
        from tandem.engine.drafter import Drafter

        engine = self.engine(party)
        drafter = Drafter(
            spec.rules.codec_of_votes(self._codec),
            spec.sampling,
            spec.rules.drawing_rule,
            spec.vocab_size,
            shaper=find_shaper(spec, cast(Any, engine)),
        )
        retriever = self._loaded.retriever(party) if spec.num_documents(party) else None
        key = f"{party} {spec.query} {spec.sampling.max_new_tokens}"
        local = LocalParty(cast(Any, engine), cast(Any, retriever), drafter, key)
        return LocalVoter(spec, party, local, self._codec)

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
            by_lottery=spec.rules.draft_rule == LOTTERY,
        )

    def is_complete(self, spec: SessionSpec) -> reference.IsComplete:
        """The stop rule of every party."""
        sampling = spec.sampling
        rule = StopRule.of(spec.eos_token_ids, sampling, self.engine(spec.home).detokenizer, spec.grammar)
        return lambda tokens: rule.find_reason(tokens) is not None
