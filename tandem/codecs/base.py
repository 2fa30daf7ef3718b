"""The interface of every codec, and the checks that codecs share.

Compress, then sample: whatever is lossy happens before a token is drawn, and the drafter itself decodes the bytes that
it sends. So a codec may be as coarse as it likes without making an answer wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.errors import ConfigError, GenerationError, ProtocolError, did_you_mean

MAX_VOCAB = 1 << 19
"""Token ids lie below this: the largest vocabularies have half as many, and two of them may be joined."""


class Codec(Protocol):
    """Turns one party's dense distribution into bytes, and the bytes into the sparse distribution that all use.

    A frozen specification: its parameters are checked when it is made and never change. What changes while an answer
    grows is the state of a `CodecSession`, which only the drafting party has: bytes are decoded without it.
    """

    @property
    def max_bytes(self) -> int:
        """Size of the largest payload: a frame holds at most 4 MiB."""

    def open(self) -> CodecSession:
        """The state before the first token of an answer."""

    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """The distribution in the bytes; ProtocolError if they are malformed.

        vocab_size: tokens of the model, the length of the arrays that were encoded; some layouts depend on it.
        """

    def fingerprint(self) -> str:
        """Everything that must agree between the parties, bounds included, compared in the handshake."""


class CodecSession(Protocol):
    """The state of a codec after the distributions encoded along one prefix: an immutable value.

    Encoding returns the next state and leaves this one as it is. A rollback is the use of an earlier state, so what a
    rejected draft did to a later one cannot leak; `CodecStates` finds the state of any prefix.
    """

    def encode(self, dense: NDArray[np.floating]) -> tuple[bytes, CodecSession]:
        """(bytes, next state) of a distribution [vocab]: probabilities >= 0, not necessarily normalised.

        Raises GenerationError.
        """


class StatelessCodec(ABC):
    """Base of codecs whose bytes depend on the distribution alone."""

    @property
    @abstractmethod
    def max_bytes(self) -> int:
        """See `Codec`."""

    @abstractmethod
    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab]: probabilities >= 0, not necessarily normalised. Raises GenerationError."""

    @abstractmethod
    def decode(self, payload: bytes, vocab_size: int = MAX_VOCAB) -> Distribution:
        """See `Codec`."""

    @abstractmethod
    def fingerprint(self) -> str:
        """See `Codec`."""

    def open(self) -> CodecSession:
        """The one state that it has."""
        return _NoState(self.encode)


@dataclass(frozen=True, slots=True)
class _NoState:
    """The session of a codec that has no state."""

    encode_dense: Callable[[NDArray[np.floating]], bytes]

    def encode(self, dense: NDArray[np.floating]) -> tuple[bytes, CodecSession]:
        """Its next state is itself."""
        return self.encode_dense(dense), self


ROOT = (b"",)
"""Lineage of a distribution that belongs to no answer."""


class CodecStates:
    """The states of a codec in one session, each found by the prefix whose distribution led to it.

    A prefix is named by its lineage: the digests of its beginnings, from the empty one to itself. The state before a
    step is the one after the longest beginning that was encoded here, so a step that another party decided without
    this one's draft leaves it as it is. It is a function of the prefix, however often the line was rolled back.
    """

    def __init__(self, codec: Codec) -> None:
        self._first = codec.open()
        self._after: dict[bytes, CodecSession] = {}

    def encode(self, dense: NDArray[np.floating], lineage: Sequence[bytes]) -> bytes:
        """Bytes of the distribution [vocab] that follows a prefix."""
        payload, after = self.before(lineage).encode(dense)
        if after is not self._first:
            self._after[lineage[-1]] = after
        return payload

    def before(self, lineage: Sequence[bytes]) -> CodecSession:
        """The state with which the distribution that follows a prefix is encoded."""
        if not self._after:
            return self._first
        after = (self._after[digest] for digest in reversed(lineage[:-1]) if digest in self._after)
        return next(after, self._first)


MEMBERS = ("max_bytes", "open", "decode", "fingerprint")
"""What every codec has."""


def check_dense(dense: NDArray[np.floating]) -> float:
    """The largest probability [vocab]; GenerationError unless all are finite, none negative, and some positive."""
    if dense.ndim != 1 or not 1 <= dense.size <= MAX_VOCAB:
        raise GenerationError(
            f"A distribution must have one dimension of 1 to {MAX_VOCAB} tokens, got shape {dense.shape}; "
            "use a model with a smaller vocabulary."
        )
    smallest, largest = float(np.minimum.reduce(dense)), float(np.maximum.reduce(dense))
    if not (smallest >= 0.0 and 0.0 < largest < np.inf):  # NaN fails too
        raise GenerationError(
            "A distribution must be finite, non-negative and not all zero, "
            f"got values from {smallest} to {largest}; check the model's logits and dtype."
        )
    return largest


def malformed(rule: str) -> ProtocolError:
    """One sentence about bytes that break a codec's layout."""
    return ProtocolError(f"An encoded distribution {rule}; drop the frame and ask the sender again.")


# ---- Checks of a codec's parameters when it is made --------------------------------------------------------


MAX_KEPT = 4096
"""Most tokens whose ids are written: coding takes time that grows with their square, 40 ms for so many."""
MAX_RESOLUTION = 4096
"""Finest lattice: at 4,096 a distribution over 152 k tokens takes 3.5 kB."""


def check_whole(codec: str, name: str, value: Any, low: int, high: int, default: int) -> None:
    """ConfigError unless the value is a whole number in [low, high]."""
    if not (isinstance(value, int) and not isinstance(value, bool) and low <= value <= high):
        raise ConfigError(
            f"The parameter {name} of codec {codec} must be a whole number in [{low}, {high}], got {value!r}; "
            f"the default is {default}."
        )


def check_share(codec: str, name: str, value: Any, low: float, high: float, default: float) -> None:
    """ConfigError unless the value is a number in [low, high]."""
    if not (isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high):
        raise ConfigError(
            f"The parameter {name} of codec {codec} must be a number in [{low:g}, {high:g}], got {value!r}; "
            f"the default is {default}."
        )


def check_word(codec: str, name: str, value: Any, words: tuple[str, ...]) -> None:
    """ConfigError unless the value is one of the words."""
    if value not in words:
        raise ConfigError(
            f"The parameter {name} of codec {codec} must be {' or '.join(words)}, got {value!r}; "
            f"{did_you_mean(str(value), words)}"
        )


def check_fits(codec: str, kept: int, vocab_size: int) -> None:
    """GenerationError unless a distribution has the tokens that a codec keeps."""
    if kept > vocab_size:
        raise GenerationError(
            f"The codec {codec} keeps k = {kept} tokens, but the model's vocabulary has {vocab_size}; "
            f"set k in codec.parameters to at most {vocab_size}."
        )
