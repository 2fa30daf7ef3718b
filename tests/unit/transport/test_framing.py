"""Frames survive any cutting of the stream; a length that is too large is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import ProtocolError
from tandem.messages.wire import MAX_FRAME_BYTES
from tandem.transport.port import FrameSplitter, join_frames

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
