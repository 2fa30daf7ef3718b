"""Payloads of a token: alone as short as can be, and with log probabilities to the bit."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.aggregation.distributions import Distribution
from tandem.codecs.votes import log_probabilities, read_named_token, read_token, write_token
from tandem.errors import ProtocolError
from tandem.messages import Logprobs

VOCAB = 1 << 17
tokens = st.integers(0, VOCAB - 1)
logprobs = st.floats(max_value=0.0, allow_nan=False)


def known_of(logprob: float, *top: tuple[int, float]) -> Logprobs:
    ids, logprobs = zip(*top, strict=True) if top else ((), ())
    return Logprobs(logprob=logprob, top_ids=ids, top_logprobs=logprobs)


named = st.lists(st.tuples(tokens, logprobs), max_size=20).flatmap(
    lambda top: st.builds(lambda own: known_of(own, *top), logprobs)
)


@given(tokens, named)
def test_what_is_written_comes_back(token: int, known: Logprobs) -> None:
    assert read_named_token(write_token(token), VOCAB) == (token, None)
    assert read_named_token(write_token(token, known), VOCAB) == (token, known)
    assert read_token(write_token(token, known), VOCAB) == token


def test_sizes_are_pinned() -> None:
    assert [len(write_token(token)) for token in (127, 128, VOCAB - 1)] == [1, 2, 3]
    tag = 1
    known = known_of(-0.5, (1, -0.5), (300, -2.0))
    assert len(write_token(300, known)) == 2 + tag + 8 + 1 + (1 + 2) + 1 + 2 * 8
    assert len(write_token(300, known_of(-0.5))) == 2 + tag + 8 + 1 + 1


@settings(deadline=None, derandomize=True)
@given(tokens, named, st.data())
def test_other_bytes_are_refused_or_read(token: int, known: Logprobs, data: st.DataObject) -> None:
    payload = write_token(token, known)
    for length in range(len(write_token(token)) + 1, len(payload)):
        with pytest.raises(ProtocolError):
            read_named_token(payload[:length], VOCAB)
    with pytest.raises(ProtocolError):
        read_named_token(payload + b"\0", VOCAB)
    with contextlib.suppress(ProtocolError):
        read_named_token(data.draw(st.binary(max_size=60)), VOCAB)


@pytest.mark.parametrize("index", [8, VOCAB])
def test_a_token_that_the_vocabulary_lacks_is_refused(index: int) -> None:
    for payload in (write_token(index), write_token(1, known_of(-math.log(2), (index, -1.0)))):
        with pytest.raises(ProtocolError, match="below 8"):
            read_named_token(payload, 8)


# ---- log probabilities of a token and of its alternatives: all of them, in order, of sum 1 -------------------

TARGET = Distribution(np.array([2, 5, 7, 9]), np.array([0.25, 0.5, 0.25, 0.0]))


def test_excluded_tokens_are_no_alternatives() -> None:
    assert len(log_probabilities(TARGET, 5, 20).top_ids) == 3
    assert log_probabilities(TARGET, 5, 0).top_ids == ()


def test_the_rest_is_spread_over_the_other_tokens() -> None:
    target = Distribution(np.array([1]), np.array([0.4]), rest=0.6, vocab_size=5)
    named = log_probabilities(target, 3, 5)
    assert named.logprob == pytest.approx(math.log(0.15))
    assert named.top_ids == (1, 0, 2, 3, 4)
    assert math.fsum(map(math.exp, named.top_logprobs)) == pytest.approx(1.0, abs=1e-12)
