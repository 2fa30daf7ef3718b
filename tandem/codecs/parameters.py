"""Checks of a codec's parameters when it is made; each error is one sentence."""

from __future__ import annotations

from typing import Any

from tandem.errors import ConfigError, GenerationError, did_you_mean

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
            f"set codec.k to at most {vocab_size}."
        )
