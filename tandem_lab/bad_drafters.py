"""Decoders whose drafts are useless or change their mind: no token of an answer may depend on who drafts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from tandem.actors.base import Runtime
from tandem.actors.decoder import DecoderActor
from tandem.codecs.token import write_token
from tandem.protocol.decoding import DecodingSession, Forward, Result
from tandem.sites.port import ActorClasses
from tandem.topology import Party

if TYPE_CHECKING:
    import torch

REPLACED_EVERY = 20
"""Forward passes that a drafter lives; an answer of 48 tokens sees two or three."""
NOISE = 0.3
"""Of the other drafter's head, in standard deviations of the weights."""


class GarbageDecoder(DecoderActor):
    """Where it drafts for another party, a token that has nothing to do with its model's."""

    async def draft(
        self, sessions: Sequence[DecodingSession], jobs: Sequence[Forward]
    ) -> list[list[Result] | Exception | None]:
        """As the product's, with other tokens."""
        drafts = await super().draft(sessions, jobs)
        return [
            [self._garbage(session, job.first + offset, draft) for offset, draft in enumerate(made)]
            if isinstance(made, list) and not session.spec.roles.role(self.party).votes
            else made
            for session, job, made in zip(sessions, jobs, drafts, strict=True)
        ]

    def _garbage(self, session: DecodingSession, step: int, draft: Result) -> Result:
        digest = blake2b(f"{session.spec.seed} {step}".encode(), digest_size=4).digest()
        token = int.from_bytes(digest) % self.engine.vocab_size
        return draft._replace(token=token, payload=write_token(token))


class ReplacedDecoder(DecoderActor):
    """On the device: every few passes the model has another head, as if the drafter were replaced in mid-answer."""

    def __init__(self, party: str, runtime: Runtime) -> None:
        super().__init__(party, runtime)
        self._heads: list[torch.Tensor] = []  # the model's own, and another
        self.num_replaced = 0

    async def draft(
        self, sessions: Sequence[DecodingSession], jobs: Sequence[Forward]
    ) -> list[list[Result] | Exception | None]:
        """As the product's, after which the head may be another."""
        drafts = await super().draft(sessions, jobs)
        if self.party == Party.DEVICE and self.num_passes % REPLACED_EVERY == 0:
            await self.on_model_thread(self._replace)
        return drafts

    def _replace(self) -> None:
        import torch

        weights = self.engine.model.get_output_embeddings().weight.data
        if not self._heads:
            noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1))
            self._heads = [weights.clone(), weights + NOISE * weights.std() * noise]
        self.num_replaced += 1
        weights.copy_(self._heads[self.num_replaced % 2])

    def _extra_statistics(self) -> dict[str, float]:
        return {**super()._extra_statistics(), "num_replaced": self.num_replaced}


CLASSES: dict[str, ActorClasses] = {
    "own": {},
    "garbage": {"decoder": GarbageDecoder},
    "replaced": {"decoder": ReplacedDecoder},
}
"""Drafter -> the actors that make it."""
