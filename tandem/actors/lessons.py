"""What a drafter learns between queries: one lesson for each answer that the voters committed.

Knows the engine whose model drafts; a copy of that model learns, and its head is then put into the engine's.
"""

from __future__ import annotations

import logging
from collections import deque
from random import Random
from typing import TYPE_CHECKING

from tandem.config.schema import PartyConfig
from tandem.errors import TandemError
from tandem.protocol.decoding import DecodingSession, Prefill
from tandem.protocol.drafting import DraftingSession
from tandem.system.paths import state_folder
from tandem.topology import at_start

if TYPE_CHECKING:
    from tandem.distillation.training import Example
    from tandem.engine.engine import Engine

_log = logging.getLogger("tandem")

MAX_WAITING = 16
"""Answers that wait to be learned from; beyond them the oldest is left out."""
MAX_ROW = 512
"""Tokens of a row, at most: of its end."""


class Lessons:
    """The lessons of one party's drafter. Made, and `learn` called, in the thread that owns the model."""

    def __init__(self, party: PartyConfig, engine: Engine) -> None:
        """Goes on from the head of an earlier run, if there is one. GenerationError if it cannot be used."""
        from tandem.actors.loading import load_pupil
        from tandem.distillation.self_taught import SelfTaughtHead

        self.num_learned = 0
        self._party, self._engine = party, engine
        self._path = state_folder() / "learned" / f"{engine.weights_fingerprint}.safetensors"
        self._head = SelfTaughtHead(load_pupil(party), Random(0))
        self._rows: dict[int, tuple[int, ...]] = {}  # by session: what stands before the answer
        self._waiting: deque[Example] = deque(maxlen=MAX_WAITING)
        if self._path.exists():
            self._head.load(self._path)
            self._take_over()

    def check(self, session: DecodingSession) -> None:
        """Raise TandemError where the party has a vote: answers would depend on those before them."""
        if session.spec.roles.role(session.party).votes:
            raise TandemError(
                f"{at_start(session.party)}'s model learns from answers ({session.party}.learns = true), so it may "
                f'draft, but not vote in mode "{session.spec.rules.name}"; ask in mode "speculative", or set '
                f"{session.party}.learns to false."
            )

    def open(self, job: Prefill) -> None:
        """A query begins: keep the row of its most relevant document."""
        prompt = self._engine.build_prompt(job.query, job.documents, job.max_new_tokens, job.history, job.day)
        document = prompt.document_tokens[0] if prompt.document_tokens else ()
        self._rows[job.session] = (*document, *prompt.query_tokens)

    def end(self, number: int, session: DecodingSession | None) -> None:
        """A query has ended: what the voters committed of it is learned later. session: None if it had failed."""
        from tandem.distillation.training import Example

        row = self._rows.pop(number, ())
        if not isinstance(session, DraftingSession):
            return
        committed = tuple(session.prefix.tokens[: session.line.num_committed])
        if row and committed and not session.was_alone:
            ids = (*row, *committed)[-MAX_ROW:]
            self._waiting.append(Example(ids, max(1, len(ids) - len(committed))))

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to learn."""
        return bool(self._waiting)

    def learn(self) -> None:
        """Take one lesson; no session may be open in the engine. One that fails is logged, and left out."""
        try:
            self._head.learn(self._waiting.popleft())
            self._take_over()
            self._head.save(self._path)
            self.num_learned += 1
        except Exception:  # such as too little memory: the next query is to be answered all the same
            _log.warning("The drafter did not learn from an answer.", exc_info=True)

    def _take_over(self) -> None:
        """Put the head into the engine's model, whose caches are then of no use."""
        import torch

        from tandem.actors.loading import open_memory_store

        assert not self._engine.sessions
        own = dict(self._engine.model.named_parameters())
        with torch.no_grad():
            for name, value in self._head.weights.items():
                own[name].copy_(value)
        self._engine.caches.store = open_memory_store(self._party)
