"""Computes the rows of sessions with a model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch

from tandem.engine.kv import DocumentCaches, TurnCaches
from tandem.engine.port import Feed, IsStale, Row, Runner
from tandem.engine.torch import model as models
from tandem.engine.torch.batch import (
    ARITHMETIC,
    BatchModel,
    PreemptibleModel,
    find_fault,
)
from tandem.engine.torch.kv import DocumentCache
from tandem.engine.torch.session import GrowingSession, Session, compute, compute_document, compute_row
from tandem.errors import GenerationError

EXPECTED_TOKENS = 64
"""Of an answer, for which caches have room from the beginning; they grow."""


class TorchRunner:
    """A `Runner` of one model."""

    def __init__(self, model: Any, *, is_batched: bool = True) -> None:
        """model: of transformers; not to be changed. is_batched: False computes one token of one
        session at a time, as models do that fail the self-check. Raises GenerationError.
        """
        models.check_cache(model)
        self.model = model
        self.vocab_size = models.num_logits(model)
        self.caches = DocumentCaches()
        self.turns = TurnCaches()
        self.sessions: dict[str, Session | GrowingSession] = {}  # open ones, by name; read only
        self.weights: models.Weights | None = None  # that it may share with others
        self._forward = PreemptibleModel(model, models.decoder_layers(model))
        self.fault: str | None = "batching is off"
        self._batch = self._try_batching() if is_batched else None

    @classmethod
    def load(
        cls,
        path: str,
        *,
        device: str,
        dtype: str,
        is_batched: bool,
        shares_weights: bool,
    ) -> TorchRunner:
        """Load a model by directory or hub id; `Engine.load` has the arguments. Raises GenerationError."""
        if not shares_weights:
            return cls(models.load_model(path, device=device, dtype=dtype), is_batched=is_batched)
        weights = models.load_weights(path, device=device, dtype=dtype)
        runner = cls(weights.make_model(), is_batched=is_batched)
        runner.weights = weights  # as long as it is here, another finds it
        return runner

    def _try_batching(self) -> BatchModel | None:
        """The model that computes batches, if the self-check finds no fault."""
        batch = BatchModel(self._forward)
        self.fault = find_fault(batch, self.model, self.vocab_size, self.context_length)
        if self.fault is None:
            return batch
        batch.release()
        return None

    @property
    def configurations(self) -> tuple[Any, Any]:
        """As of every runner."""
        return getattr(self.model, "generation_config", None), self.model.config

    @property
    def context_length(self) -> int | None:
        """As of every runner."""
        return models.context_length(self.model.config)

    @cached_property
    def weights_fingerprint(self) -> str:
        """As of every runner; reads all weights, once."""
        return models.fingerprint_weights(self.model)

    @property
    def computing_fingerprint(self) -> str:
        """As of every runner: weights, libraries, kind of processor, threads."""
        computation = models.fingerprint_computation(self.model, self.weights_fingerprint)
        if self._batch is None:
            return computation
        return sha256(f"{computation} {ARITHMETIC}".encode()).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        """As of every runner."""
        return {
            "num_parameters": self.model.num_parameters(),
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }

    def open(
        self, session: str, rows: Sequence[Row], num_new_tokens: int, *, num_scored: int, is_later_turn: bool
    ) -> None:
        """As of every runner."""
        if self._batch is None:
            self.sessions[session] = GrowingSession(
                rows, self._forward, self.caches, self.vocab_size, num_scored=num_scored
            )
            return
        self.sessions[session] = Session(
            rows,
            self.caches,
            self.vocab_size,
            self._forward.device,
            num_new_tokens=min(num_new_tokens, EXPECTED_TOKENS),
            num_scored=num_scored,
            turns=self.turns if is_later_turn else None,
        )

    def forward(self, feeds: Sequence[Feed], is_stale: IsStale | None) -> list[torch.Tensor]:
        """As of every runner."""
        with torch.inference_mode():
            if self._batch is None:
                return [self._grow(feed, is_stale) for feed in feeds]
            sessions = [self._session(feed.session) for feed in feeds]
            for session, feed in zip(sessions, feeds, strict=True):
                session.want(feed.tokens, feed.num_logits)
            compute(self._batch, sessions, is_stale)
            return [session.logits for session in sessions]

    def _session(self, name: str) -> Session:
        session = self.sessions[name]
        assert isinstance(session, Session)
        return session

    def _grow(self, feed: Feed, is_stale: IsStale | None) -> torch.Tensor:
        session, count = self.sessions[feed.session], len(feed.tokens) + 1
        assert isinstance(session, GrowingSession)
        prefixes = (feed.tokens[:end] for end in range(count - feed.num_logits, count))
        return torch.stack([session.logits_after(prefix, is_stale) for prefix in prefixes], dim=1)

    def likelihoods(self, session: str) -> tuple[float, ...]:
        """As of every runner."""
        return self.sessions[session].likelihoods

    def crop(self, session: str, num_tokens: int) -> None:
        """As of every runner."""
        self.sessions[session].crop(num_tokens)

    def close(self, session: str) -> None:
        """As of every runner."""
        closed = self.sessions.pop(session, None)
        if isinstance(closed, Session) and (rows := closed.computed):
            self.turns.keep(rows, closed.cache)

    def is_open(self, session: str) -> bool:
        """As of every runner."""
        return session in self.sessions

    def compute_document(self, tokens: tuple[int, ...]) -> DocumentCache:
        """As of every runner."""
        with torch.inference_mode():
            if self._batch is None:
                return compute_document(self._forward, tokens, None)
            return compute_row(self._batch, tokens).save(0, len(tokens))


def model_of(runner: Runner) -> Any:
    """The model of transformers behind a runner; not to be changed. GenerationError if it is another engine's."""
    if not isinstance(runner, TorchRunner):
        raise GenerationError(
            "This needs a model of Hugging Face on PyTorch; set device.model to its folder or name."
        )
    return runner.model
