"""A small world for virtual runs: laws that are a function of (seed, side, prefix, weights), and a stop rule.

The laws of the two sides are correlated, so drafts are accepted about half the time or more, and depend on the weights,
so a weight of another prefix shows. A model keeps the tokens it was conditioned on, as a real one keeps its cache, so a
cache that is not cropped shows too. Knows nothing of links; it may be told to compute no law twice alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.aggregation.document_weights import Evidence, Weights, log_evidence
from tandem.codecs import RaceLists, StatelessCodec, TopP
from tandem.codecs.base import MAX_VOCAB
from tandem.events import StopReason
from tandem.messages import RetrieveRequest, RetrieveResult
from tandem.modes import SessionSpec
from tandem.protocol.decoding import Prefill
from tandem.protocol.log import common_length

VOCAB = 16
EOS = 3
NEVER = 1 << 30
"""A length that no answer has."""
ROUNDING = 1.0
"""Relative size of planted rounding errors, at most: far more than real ones, so that they show."""


class CachedCodec(StatelessCodec):
    """A codec that decodes the same bytes once: a small world meets the same laws many times."""

    def __init__(self, codec: TopP) -> None:
        self._codec = codec
        self._decode = lru_cache(maxsize=10_000)(codec.decode)

    @property
    def max_bytes(self) -> int:
        """As the codec's."""
        return self._codec.max_bytes

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """As the codec."""
        return self._codec.encode(dense)

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The law in the bytes; it cannot be written to."""
        return self._decode(payload, vocab_size)

    def fingerprint(self) -> str:
        """As the codec's."""
        return self._codec.fingerprint()


CODEC = CachedCodec(TopP())
WHOLE_VOTES = RaceLists()
"""Of queries whose votes are race lists, or draws: nothing is dropped."""


def number(*parts: object) -> int:
    """A 64-bit hash of anything that has a repr.

    A party is hashed by the name that its class had in version 0.1, so that recorded seeds keep their worlds.
    """
    text = repr(parts).replace("<Party.", "<Side.")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=10_000)
def distribution(
    seed: int,
    party: str,
    tokens: tuple[int, ...],
    weights: tuple[float, ...],
    first_end: int = 0,
    redone: int = 0,
    codec: StatelessCodec = CODEC,
) -> bytes:
    """The encoded law of `side` for the step after `tokens`; no end-of-sequence among the first `first_end` tokens.

    `redone` above 0: computed once more, with other rounding errors.
    """
    logits = 2.0 * _common(seed, tokens) + 0.6 * _normal(number(seed, party, tokens, weights))
    logits[EOS] -= 1.0
    p = np.exp(logits)
    if len(tokens) < first_end:
        p[EOS] = 0.0
    if redone:
        p *= _rounding(redone)
    return codec.encode(p / np.add.reduce(p))


@lru_cache(maxsize=10_000)
def _common(seed: int, tokens: tuple[int, ...]) -> NDArray[np.float64]:
    """What both sides' logits have in common, [vocab]."""
    return _normal(number(seed, tokens))


def _normal(seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=VOCAB)


@lru_cache(maxsize=1_000)
def _rounding(redone: int) -> NDArray[np.float64]:
    return 1.0 + ROUNDING * np.random.default_rng(redone).random(VOCAB)


class Prefilled(NamedTuple):
    """What a model knows once it holds documents and question."""

    rows: Sequence[int] | None = None  # indices of the texts that have a row; None: all
    question: Sequence[float] = ()  # the question's log likelihood in each row, where it is wanted


class World:
    """One side's retriever and model. Implements `tandem_lab.simulation.virtual.SiteModel`."""

    def __init__(
        self,
        seed: int,
        party: str,
        *,
        first_end: int = 0,
        is_rounding: bool = False,
        codec: StatelessCodec = CODEC,
    ) -> None:
        """is_rounding: a model that was restarted computes a law that it had computed before a little otherwise."""
        self.is_known: Callable[[Sequence[bytes]], bool] = lambda lineage: (
            True
        )  # whether it may; by the law's prefix
        self.seed, self.party = seed, party
        self.cached: list[int] = []  # tokens that the model holds
        self.rounded: dict[
            bytes, set[tuple[int, ...]]
        ] = {}  # laws that are not what they had been, with their tokens
        self._first_end = first_end
        self._is_rounding = is_rounding
        self._codec = codec
        self._num_starts = 0
        self._started_with: dict[
            tuple[int, ...], int
        ] = {}  # by tokens: the start that computed their law first

    def retrieve(self, message: RetrieveRequest) -> RetrieveResult:
        """Documents."""
        names = tuple(f"{self.party}-{n}" for n in range(message.num_documents))
        scores = tuple(0.5 / (n + 1) for n in range(message.num_documents))
        return RetrieveResult(session=message.session, ids=names, texts=names, scores=scores, retrieve_us=10)

    def prefill(self, job: Prefill) -> Prefilled:
        """A session begins: nothing is cached."""
        self.cached.clear()
        self._num_starts += 1
        return Prefilled(question=self.question(len(job.documents)) if job.scores_question else ())

    def question(self, num_rows: int) -> tuple[float, ...]:
        """The log likelihood of the question in each row."""
        return tuple(-2.0 * self.probability((), -1, row) for row in range(num_rows))

    def evidence(self, tokens: Sequence[int], token: int, num_rows: int) -> Evidence:
        """What a token after these says of each row."""
        return log_evidence([self.probability(tuple(tokens), token, row) for row in range(num_rows)])

    def probability(self, tokens: tuple[int, ...], token: int, row: int) -> float:
        """How probable a row finds a token after these."""
        return (1 + number(self.seed, self.party, tokens, token, row)) / (2**64 + 1)

    def payload(self, tokens: Sequence[int], weights: Weights, lineage: Sequence[bytes] = ()) -> bytes:
        """The encoded law of the cached tokens, once they are these, and of the rows' weights."""
        self.crop(common_length(self.cached, tokens))
        self.cached += tokens[len(self.cached) :]
        tokens = tuple(self.cached)
        first = self._started_with.setdefault(tokens, self._num_starts)
        is_redone = self._is_rounding and first != self._num_starts and self.is_known(lineage)
        redone = self._num_starts if is_redone else 0
        found = distribution(self.seed, self.party, tokens, weights, self._first_end, redone, self._codec)
        if redone:
            self.rounded.setdefault(found, set()).add(tokens)
        return found

    def crop(self, length: int) -> None:
        """Forget what was rolled back."""
        del self.cached[length:]


def codec_for(spec: SessionSpec) -> StatelessCodec:
    """What the scripted voters of a query encode with."""
    return WHOLE_VOTES if spec.rules.codec_of_votes(CODEC) is not CODEC else CODEC


def stop_rule(max_new_tokens: int, first_end: int = 0) -> Callable[[Sequence[int]], StopReason | None]:
    """End-of-sequence, a stop pattern over two tokens (as a stop string may span several), length.

    Nothing but the length ends an answer of `first_end` tokens or fewer.
    """

    def finished(tokens: Sequence[int]) -> StopReason | None:
        if len(tokens) > first_end:
            if tokens[-1] == EOS:
                return "eos"
            if len(tokens) > 1 and tokens[-1] + tokens[-2] == 7:
                return "stop"
        return "length" if len(tokens) >= max_new_tokens else None

    return finished
