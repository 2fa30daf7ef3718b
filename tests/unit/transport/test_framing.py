"""Frames survive any cutting of the stream; a length that is too large is refused; and who lacks the secret convinces
nobody, not even with another's own proofs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import ProtocolError
from tandem.messages.wire import MAX_FRAME_BYTES
from tandem.transport.port import MAGIC, FrameSplitter, Greeting, is_proven, join_frames, proof

UNHURRIED = settings(deadline=None, derandomize=True)


@settings(UNHURRIED, max_examples=200)
@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_come_back_however_the_stream_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = join_frames(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    splitter = FrameSplitter()
    received: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += splitter.feed(stream[start:end])
    assert received == frames


@pytest.mark.parametrize("num_bytes", [0, 127, 128, 16_384, MAX_FRAME_BYTES])
def test_a_frame_costs_its_length_in_as_few_bytes_as_possible(num_bytes: int) -> None:
    frame = bytes(num_bytes)
    assert len(join_frames([frame])) == num_bytes + max(1, (num_bytes.bit_length() + 6) // 7)
    assert FrameSplitter().feed(join_frames([frame])) == [frame]


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        (b"\xff" * 5, "An integer in a frame has more than 35 bits;"),
        (b"\x80" * 8, "An integer in a frame has more than 35 bits;"),
        (b"\xff\xff\xff\x7f", f"at most {MAX_FRAME_BYTES} are accepted here;"),
        (b"GET / HTTP/1.1\xff\xff\xff\xff\x7f", f"at most {MAX_FRAME_BYTES} are accepted here;"),
    ],
)
def test_lengths_that_no_frame_has(head: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        FrameSplitter().feed(head * 20)


def test_the_limit_may_change_between_two_frames() -> None:
    """The handshake's frames are short, those after it need not be."""
    splitter = FrameSplitter(8)
    splitter.append(join_frames([b"short", bytes(1000)]))
    assert splitter.take(1) == [b"short"]
    splitter.max_frame_bytes = 1000
    assert splitter.take() == [bytes(1000)]
    assert splitter.take(1) == []


@settings(UNHURRIED, max_examples=200)
@given(st.binary(max_size=60))
def test_garbage_is_frames_or_a_protocol_error(garbage: bytes) -> None:
    try:
        frames = FrameSplitter().feed(garbage)
    except ProtocolError:
        return
    assert garbage.startswith(join_frames(frames)) or any(byte == 0x80 for byte in garbage)


SECRET = b"s" * 32
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
