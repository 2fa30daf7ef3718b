"""What a query asks of its answer's tokens one by one: penalties, biases, and a grammar.

Each is a function of the answer so far, and each party applies it to its own distribution before anything is drawn or
sent, so every rule and mode stays exact. Grammars are a plugin's (`tandem.plugins`, kind "grammar").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.config.schema import SamplingParams

Floats = NDArray[np.float64]
EXTREME = 1e37
"""Temperatures beyond it, or below its inverse, count as these: float32 would round them to infinity and 0, and no
distribution would be another."""


def divisor(temperature: float) -> float:
    """The divisor of logits; 1 at temperature 0, where only the most probable token matters."""
    return min(max(temperature, 1 / EXTREME), EXTREME) if temperature else 1.0


class Grammar(Protocol):
    """What may follow in one query's answer, computed elsewhere. Safe for threads; close it."""

    def fileno(self) -> int:
        """A file that is readable once `poll` may have news."""

    def expect(self, prefixes: Sequence[Sequence[int]]) -> None:
        """Let what may follow these prefixes be computed, before `allowed` needs it."""

    def poll(self, left_s: Callable[[], float] = ...) -> bool:
        """Whether the grammar is built and all that was expected is here, now or before no time is left.

        left_s: the seconds that are left. Raises QueryError where it cannot be followed or costs too much,
        GenerationError where that is not its fault.
        """

    def allowed(self, prefix: Sequence[int]) -> bytes:
        """Whether each token may follow: a bit for each, the lowest of a byte first. After what no answer may be, an
        end alone. Waits; raises as `poll`."""

    def close(self) -> None:
        """End all work on it; who waits for it gets an error."""


class Shaper:
    """Shapes one party's distributions as one query asks. Not safe for threads."""

    def __init__(
        self, sampling: SamplingParams, biases: Mapping[int, float], grammar: Grammar | None = None
    ) -> None:
        """biases: what is added to the logits of tokens."""
        self._temperature = divisor(sampling.temperature)
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._biases = biases
        self._grammar = grammar

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked, so that every distribution stays as it is."""
        return not (self._grammar or self._biases or self._presence or self._frequency)

    def shape(self, logits: Floats, prefix: Sequence[int]) -> Floats:
        """A party's distribution [vocab], shaped after these tokens.

        logits: log probabilities [vocab] at the query's temperature, up to a constant. To the logit of each token, at
        temperature 1, its bias is added; a token that the answer has n times loses presence_penalty if n > 0, and n
        times frequency_penalty (as OpenAI defines them). What the grammar forbids gets no probability; where all that
        it allows has none, each such token has the same. Raises as `Grammar.allowed`.
        """
        logits = logits.copy()
        if shifts := self._shifts(prefix, logits.size):
            ids = np.fromiter(shifts, np.int64, len(shifts))
            logits[ids] += np.fromiter(shifts.values(), np.float64, len(shifts)) / self._temperature
        if self._grammar is not None:
            bits = np.frombuffer(self._grammar.allowed(prefix), np.uint8)
            is_allowed = np.unpackbits(bits, count=logits.size, bitorder="little").astype(bool)
            logits[~is_allowed] = -np.inf
            if logits.max() == -np.inf:
                return np.asarray(is_allowed / is_allowed.sum())
        dense = np.exp(logits - logits.max())
        return np.asarray(dense / dense.sum())

    def _shifts(self, prefix: Sequence[int], vocab_size: int) -> dict[int, float]:
        shifts = {token: bias for token, bias in self._biases.items() if token < vocab_size}
        if self._presence or self._frequency:
            for token, count in Counter(prefix).items():
                shifts[token] = shifts.get(token, 0.0) - self._presence - count * self._frequency
        return shifts
