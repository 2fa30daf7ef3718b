"""What every codec offers, and the registry that finds one by its name in the configuration.

Compress, then sample: whatever is lossy happens before a token is drawn, and the drafter itself decodes the bytes that
it sends. So a codec may be as coarse as it likes without making an answer wrong.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tandem.aggregation.distributions import Distribution
from tandem.errors import ConfigError, GenerationError, ProtocolError
from tandem.nearest import did_you_mean, nearest

MAX_VOCAB = 1 << 18
"""Token ids lie below this."""


class Codec(Protocol):
    """Turns one party's dense distribution into bytes, and the bytes into the sparse distribution that all use."""

    @property
    def name(self) -> str:
        """The codec's name in the configuration."""

    def encode(self, dense: NDArray[np.floating]) -> bytes:
        """Bytes of a distribution [vocab]: probabilities >= 0, not necessarily normalised. Raises GenerationError."""

    def decode(self, payload: bytes) -> Distribution:
        """The distribution in the bytes; ProtocolError if they are malformed."""

    def fingerprint(self) -> str:
        """Everything that must agree between the parties, compared in the handshake."""


C = TypeVar("C", bound=type[Codec])
CODECS: dict[str, type[Codec]] = {}
"""Codec classes by name."""


def register(codec: C) -> C:
    """Class decorator: make a codec available under its name."""
    CODECS[cast(str, codec.name)] = codec
    return codec


def parameters_of(name: str) -> list[str]:
    """The parameters that the codec of that name takes. Raises ConfigError."""
    if name not in CODECS:
        raise ConfigError(f"The codec {name!r} is unknown; {did_you_mean(name, CODECS)}")
    return list(inspect.signature(CODECS[name]).parameters)


def make_codec(name: str, **parameters: Any) -> Codec:
    """The codec of that name; ConfigError if the name or a parameter is unknown or out of range."""
    known = parameters_of(name)
    for key in parameters:
        if key not in known:
            raise ConfigError(
                f"The codec {name} has no parameter {key!r}; did you mean {nearest(key, known)!r}?"
            )
    return CODECS[name](**parameters)


def check_dense(dense: NDArray[np.floating]) -> float:
    """The largest probability [vocab]; GenerationError unless all are finite, none negative, and some positive."""
    if dense.ndim != 1 or not 1 <= dense.size <= MAX_VOCAB:
        raise GenerationError(
            f"A distribution must have one dimension of 1 to {MAX_VOCAB} tokens, got shape {dense.shape}; "
            "use a model with a smaller vocabulary."
        )
    smallest, largest = float(dense.min()), float(dense.max())
    if not (smallest >= 0.0 and 0.0 < largest < np.inf):  # NaN fails too
        raise GenerationError(
            "A distribution must be finite, non-negative and not all zero, "
            f"got values from {smallest} to {largest}; check the model's logits and dtype."
        )
    return largest


def malformed(rule: str) -> ProtocolError:
    """One sentence about bytes that break a codec's layout."""
    return ProtocolError(f"An encoded distribution {rule}; drop the frame and ask the sender again.")
