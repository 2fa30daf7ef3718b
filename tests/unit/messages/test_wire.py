"""The binary form of fields and frames: bounds, garbage, and that garbage is never anything but a ProtocolError."""

from __future__ import annotations

import re
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import ProtocolError
from tandem.messages.wire import (
    MAX_FRAME_BYTES,
    VARINT,
    VARINTS,
    Digest,
    FrameCursor,
    PartyIndex,
    Registry,
    Text,
    Texts,
    Varint,
    Varints,
    WireMessage,
    sequence,
    to_float32,
    write_varint,
)

UNHURRIED = settings(deadline=None, derandomize=True)

registry = Registry()


@registry.message(1)
class Leaf(WireMessage):
    number: Varint


@registry.message(2)
class Other(WireMessage):
    party: PartyIndex
    digest: Digest


@registry.message(3)
class Tree(WireMessage):
    texts: Texts
    numbers: Varints
    text: Text
    leaf: Annotated[Any, registry.nested(Leaf)]


def varint(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


@UNHURRIED
@given(st.integers(0, 2**64 - 1))
def test_varints_come_back_in_the_fewest_bytes(value: int) -> None:
    written = varint(value)
    assert FrameCursor(written).varint() == value
    assert len(written) == max(1, (value.bit_length() + 6) // 7)


@UNHURRIED
@given(st.lists(st.integers(0, 127) | st.integers(0, 2**64 - 1), max_size=20), st.binary(max_size=3))
def test_sequences_of_varints_are_those_of_any_items(values: list[int], rest: bytes) -> None:
    frames = []
    for form in (VARINTS, sequence(VARINT)):
        out = bytearray()
        form.write(out, tuple(values))
        cursor = FrameCursor(bytes(out) + rest)
        assert form.read(cursor) == tuple(values)
        frames.append((bytes(out), cursor.position))
    assert frames[0] == frames[1]


@UNHURRIED
@given(st.binary(max_size=12))
def test_garbage_is_refused_as_a_sequence_of_any_items_is(frame: bytes) -> None:
    outcomes: list[Any] = []
    for form in (VARINTS, sequence(VARINT)):
        try:
            outcomes.append(form.read(FrameCursor(frame)))
        except ProtocolError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "frame",
    [
        varint(2**64),  # ten bytes, but 65 bits
        b"\xff" * 9 + b"\x7f",
        b"\x80" * 10 + b"\x01",
        b"\x80" * 1000,
    ],
)
def test_a_varint_beyond_64_bits_is_malformed(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="more than 64 bits"):
        FrameCursor(frame).varint()


def test_an_announced_length_beyond_the_frame_allocates_nothing() -> None:
    for count in (2**63, 2**40, 200):
        with pytest.raises(ProtocolError, match="too early"):
            registry.decode(b"\x03" + varint(count) + b"ab")


def test_a_frame_too_long() -> None:
    with pytest.raises(ProtocolError, match=f"at most {MAX_FRAME_BYTES} bytes"):
        registry.decode(bytes(MAX_FRAME_BYTES + 1))


def test_only_the_named_kinds_nest() -> None:
    tree = Tree(texts=("a", ""), numbers=(1, 300), text="ü", leaf=Leaf(number=9))
    frame = registry.encode(tree)
    assert registry.decode(frame) == tree
    inner = registry.encode(Leaf(number=9))
    assert frame.endswith(inner)
    with pytest.raises(ProtocolError, match="A Tree does not belong"):
        registry.decode(frame.removesuffix(inner) + frame)


def test_a_message_that_is_too_long_is_refused_where_it_is_written() -> None:
    """Else the receiver breaks the connection, and with it all sessions of the site."""
    tree = Tree(texts=("x" * MAX_FRAME_BYTES,), numbers=(), text="", leaf=Leaf(number=1))
    sentence = (
        f"A Tree of {MAX_FRAME_BYTES + 10} bytes exceeds the {MAX_FRAME_BYTES} bytes that a message may have; "
        "use fewer or shorter documents, or a shorter question."
    )
    with pytest.raises(ProtocolError, match=re.escape(sentence)):
        registry.encode(tree)


def test_a_digest_of_another_length_is_a_bug_of_the_sender() -> None:
    with pytest.raises(ProtocolError, match=r"8 bytes \(got 7\)"):
        registry.encode(Other(party=1, digest=b"1234567"))


def test_a_field_without_a_wire_form() -> None:
    own = Registry()

    @own.message(200)
    class Bare(WireMessage):
        number: int

    with pytest.raises(TypeError, match=r"Bare.number has no binary form"):
        own.encode(Bare(number=1))


@UNHURRIED
@given(st.floats(width=32))
def test_float32_is_what_a_frame_carries(value: float) -> None:
    assert repr(to_float32(value)) == repr(value)
