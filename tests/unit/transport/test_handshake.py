"""Greeting and proof: who lacks the secret convinces nobody, not even with another's own proofs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import ProtocolError
from tandem.transport.port import MAGIC, Greeting, is_proven, proof

SECRET = b"s" * 32
UNHURRIED = settings(deadline=None, derandomize=True)
DEVICE = Greeting("device/draft_queue", b"d" * 16, dials=True)
CLOUD = Greeting("cloud/draft_queue", b"c" * 16, dials=False)


def test_two_that_know_the_secret_convince_each_other() -> None:
    assert is_proven(SECRET, proof(SECRET, CLOUD, DEVICE), own=DEVICE, other=CLOUD)
    assert is_proven(SECRET, proof(SECRET, DEVICE, CLOUD), own=CLOUD, other=DEVICE)


@pytest.mark.parametrize("changed", [b"", b"t" * 32, SECRET[:-1]])
def test_another_secret_convinces_nobody(changed: bytes) -> None:
    assert not is_proven(SECRET, proof(changed, CLOUD, DEVICE), own=DEVICE, other=CLOUD)


def test_an_own_proof_sent_back_convinces_nobody() -> None:
    assert not is_proven(SECRET, proof(SECRET, DEVICE, CLOUD), own=DEVICE, other=CLOUD)
    mirrored = Greeting(CLOUD.name, CLOUD.nonce, CLOUD.dials)
    assert not is_proven(SECRET, proof(SECRET, CLOUD, mirrored), own=CLOUD, other=mirrored)


def test_proofs_of_two_listeners_do_not_serve_each_other() -> None:
    """A stranger between two listening actors: each would otherwise vouch for what the other wants to hear."""
    other = Greeting("cloud/aggregator", b"a" * 16, dials=False)
    assert not is_proven(SECRET, proof(SECRET, other, CLOUD), own=CLOUD, other=other)
    relabelled = Greeting(other.name, other.nonce, dials=True)
    assert not is_proven(SECRET, proof(SECRET, other, CLOUD), own=CLOUD, other=relabelled)


@pytest.mark.parametrize(
    "pretended",
    [
        Greeting("cloud/aggregator", b"c" * 16, dials=False),
        Greeting("cloud/draft_queue", b"C" * 16, dials=False),
    ],
)
def test_a_proof_is_for_one_name_and_one_nonce(pretended: Greeting) -> None:
    assert not is_proven(SECRET, proof(SECRET, CLOUD, DEVICE), own=DEVICE, other=pretended)


def test_a_greeting_comes_back() -> None:
    for greeting in (DEVICE, CLOUD):
        assert Greeting.decode(greeting.encode()) == greeting


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        MAGIC,
        b"tandem/2d" + b"n" * 16 + b"device/decoder",
        MAGIC + b"x" + b"n" * 16 + b"device/decoder",
        MAGIC + b"d" + b"n" * 16,
        MAGIC + b"d" + b"n" * 16 + b"x" * 65,
        MAGIC + b"d" + b"n" * 16 + "über".encode(),
        MAGIC + b"d" + b"n" * 16 + b"a\0b",
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    ],
)
def test_what_is_no_greeting(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"must open with Tandem's greeting 'tandem/1' \(got b'"):
        Greeting.decode(frame)


@settings(UNHURRIED, max_examples=200)
@given(st.binary(max_size=100), st.booleans())
def test_garbage_is_a_protocol_error(garbage: bytes, has_magic: bool) -> None:
    with contextlib.suppress(ProtocolError):
        frame = (MAGIC if has_magic else b"") + garbage
        assert Greeting.decode(frame).encode() == frame
