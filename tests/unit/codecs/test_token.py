"""Payloads of a token: alone as short as can be, and with log probabilities to the bit."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.aggregation.distributions import TargetLogprobs
from tandem.codecs.token import read_named_token, read_token, write_token
from tandem.errors import ProtocolError

VOCAB = 1 << 17
tokens = st.integers(0, VOCAB - 1)
logprobs = st.floats(max_value=0.0, allow_nan=False)
named = st.builds(TargetLogprobs, logprobs, st.lists(st.tuples(tokens, logprobs), max_size=20).map(tuple))


@given(tokens, named)
def test_what_is_written_comes_back(token: int, known: TargetLogprobs) -> None:
    assert read_named_token(write_token(token), VOCAB) == (token, None)
    assert read_named_token(write_token(token, known), VOCAB) == (token, known)
    assert read_token(write_token(token, known), VOCAB) == token


def test_sizes_are_pinned() -> None:
    assert [len(write_token(token)) for token in (127, 128, VOCAB - 1)] == [1, 2, 3]
    known = TargetLogprobs(-0.5, ((1, -0.5), (300, -2.0)))
    assert len(write_token(300, known)) == 2 + 8 + 1 + (1 + 2) + 2 * 8
    assert len(write_token(300, TargetLogprobs(-0.5, ()))) == 2 + 8 + 1


@settings(deadline=None, derandomize=True)
@given(tokens, named, st.data())
def test_other_bytes_are_refused_or_read(token: int, known: TargetLogprobs, data: st.DataObject) -> None:
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
    for payload in (write_token(index), write_token(1, TargetLogprobs(-math.log(2), ((index, -1.0),)))):
        with pytest.raises(ProtocolError, match=r"below 8|of 1 tokens"):
            read_named_token(payload, 8)
