"""Models of different vocabularies, as the laboratory asks them: after any pieces, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from tandem.conversation import NO_FRAME, Frame
from tandem.engine.drafter import row_probabilities
from tandem.engine.pieces import END, MAX_GAIN, TOKENS_PER_PIECE, PieceReader, Pieces, TextTokens
from tandem.engine.tokenizer import common_size

AnyParty = TypeVar("AnyParty", bound=str)


class PieceEngine:
    """An `Engine` whose answers are of pieces, as `LocalPair` and `LocalWorkers` use it."""

    eos_token_ids = (END,)

    def __init__(self, engine: Any, tokens: TextTokens, pieces: Pieces) -> None:
        self._engine = engine
        self._tokens, self._reader = tokens, PieceReader(tokens, pieces)
        self.detokenizer = pieces
        self.vocab_size, self.follow = pieces.size, pieces.follow
        # by session, the log likelihood [rows] of tokens
        self._totals: dict[str, dict[tuple[int, ...], Any]] = {}

    def open(
        self,
        session: str,
        query: str,
        documents: Sequence[str],
        max_new_tokens: int,
        frame: Frame = NO_FRAME,
        **how: Any,
    ) -> Any:
        """As of `Engine`, with room for the tokens that pieces are read as, and without thoughts."""
        how["frame"] = frame._replace(ends_thought=True)
        return self._engine.open(session, query, documents, TOKENS_PER_PIECE * max_new_tokens, **how)

    def next_logits(self, session: str, pieces: Sequence[int]) -> Any:
        """Logits [rows, pieces] float32."""
        return self._reader.spread(self._engine.next_logits(session, self._read(pieces)))

    def likelihoods(self, session: str, pieces: Sequence[int], piece: int) -> list[float]:
        """How much likelier each row finds the text with one more piece."""
        if piece == END:
            return list(row_probabilities(self.next_logits(session, pieces))[:, END].tolist())
        after, before = (self._total(session, self._read(text)) for text in ([*pieces, piece], pieces))
        return list(np.exp(np.clip(after - before, -MAX_GAIN, MAX_GAIN)).tolist())

    def close(self, session: str) -> None:
        """As of `Engine`."""
        self._totals.pop(session, None)
        self._engine.close(session)

    def _total(self, session: str, tokens: tuple[int, ...]) -> Any:
        totals = self._totals.setdefault(session, {(): 0.0})
        if tokens not in totals:
            rows = row_probabilities(self._engine.next_logits(session, tokens[:-1]))
            gain = np.log(np.maximum(rows[:, tokens[-1]].astype(np.float64), 1e-300))
            totals[tokens] = self._total(session, tokens[:-1]) + gain
        return totals[tokens]

    def _read(self, pieces: Sequence[int]) -> tuple[int, ...]:
        return self._tokens.read(self.detokenizer.join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def in_common(engines: Mapping[AnyParty, Any]) -> Mapping[AnyParty, Any]:
    """The engines of parties as they are if their vocabularies fit, else of pieces."""
    if (
        common_size(
            *(
                {"vocab_size": each.vocab_size, "vocabulary_prefixes": each.vocabulary_prefixes}
                for each in engines.values()
            )
        )
        is not None
    ):
        return engines
    tokens = {party: TextTokens(engine, party) for party, engine in engines.items()}
    pieces = Pieces({party: own.packed for party, own in tokens.items()})
    return {party: PieceEngine(engine, tokens[party], pieces) for party, engine in engines.items()}
