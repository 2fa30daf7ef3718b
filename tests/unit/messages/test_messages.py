"""Every message goes through its binary form unchanged; what is truncated or garbled is a ProtocolError, always."""

from __future__ import annotations

import contextlib
import math
import struct
import typing
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import messages
from tandem.errors import MAX_RETRY_AFTER_S, Code, Fault, ProtocolError
from tandem.messages import (
    PROTOCOL_VERSION,
    Attribution,
    Begin,
    Cancel,
    DecoderReady,
    Done,
    Estimate,
    Heartbeat,
    LinkFrame,
    Local,
    Logprobs,
    Observation,
    Observations,
    Profile,
    Sources,
    Tail,
    Verdict,
    VerifyResult,
    Version,
    Vote,
    decode,
    decode_link,
    encode,
    registry,
)
from tandem.messages.wire import (
    OPTIONS,
    Blob,
    Blobs,
    Digest,
    Failure,
    Flag,
    Float32s,
    Float64,
    Float64s,
    Json,
    Line,
    Lines,
    Marks,
    PartyIndex,
    Text,
    Texts,
    UInt32,
    Varint,
    Varints,
)

UNHURRIED = settings(deadline=None, derandomize=True)

BODIES = registry.body_classes
KINDS = registry.classes

number = st.integers(0, 2**64 - 1)
printable = st.text(max_size=20).filter(str.isprintable)
FIELD: dict[Any, st.SearchStrategy[Any]] = {
    Varint: number,
    UInt32: st.integers(0, 2**32 - 1),
    Float64: st.floats(allow_nan=False),
    Digest: st.binary(min_size=8, max_size=8),
    Blob: st.binary(max_size=40),
    Text: st.text(max_size=20),
    Line: printable,
    Json: st.text(max_size=20),
    Failure: st.builds(
        Fault,
        code=st.sampled_from(Code),
        option=st.sampled_from(list(OPTIONS)),
        retry_after_s=st.none() | st.integers(1, MAX_RETRY_AFTER_S),
    ),
    PartyIndex: st.integers(0, 63),
    Version: st.just(PROTOCOL_VERSION),
    Flag: st.booleans(),
    Varints: st.lists(number, max_size=5).map(tuple),
    Float32s: st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(tuple),
    Float64s: st.lists(st.floats(allow_nan=False), max_size=5).map(tuple),
    Marks: st.integers(0, 3).map(lambda count: bytes(range(3 * count))),
    Blobs: st.lists(st.binary(max_size=20), max_size=4).map(tuple),
    Texts: st.lists(st.text(max_size=8), max_size=5).map(tuple),
    Lines: st.lists(printable, max_size=5).map(tuple),
}
PARTS: dict[tuple[type[Any], str], type[Any]] = {
    (Observations, "steps"): Observation,
    (VerifyResult, "tail"): Tail,
    (Tail, "logprobs"): Logprobs,
    (Verdict, "tail"): Tail,
    (Local, "attributions"): Attribution,
}
"""Fields that hold a list of other messages."""


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Messages of a kind, field by field from the type of each."""
    hints = typing.get_type_hints(kind, include_extras=True)
    values = {}
    for field in fields(kind):
        hint = hints[field.name]
        if hint in FIELD:
            values[field.name] = FIELD[hint]
        elif (kind, field.name) in PARTS:
            values[field.name] = st.lists(any_of(PARTS[kind, field.name]), max_size=4).map(tuple)
        elif kind is LinkFrame:
            values[field.name] = st.one_of([any_of(body) for body in BODIES])
        else:
            values[field.name] = any_of({Estimate: Profile, DecoderReady: Sources}.get(kind, Vote))
    return st.builds(kind, **values)


anything = st.one_of([any_of(kind) for kind in KINDS])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_comes_back(kind: type[Any]) -> None:
    @settings(UNHURRIED, max_examples=25)
    @given(any_of(kind))
    def comes_back(message: Any) -> None:
        frame = encode(message)
        assert registry.decode(frame, KINDS) == message
        assert encode(registry.decode(frame, KINDS)) == frame

    comes_back()


@settings(UNHURRIED, max_examples=80)
@given(anything, st.data())
def test_a_truncated_frame_is_malformed(message: Any, data: st.DataObject) -> None:
    frame = encode(message)
    length = data.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(ProtocolError):
        registry.decode(frame[:length], KINDS)


@settings(UNHURRIED, max_examples=80)
@given(anything, st.binary(min_size=1, max_size=4))
def test_a_frame_with_a_tail_is_malformed(message: Any, tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        registry.decode(encode(message) + tail, KINDS)


@settings(UNHURRIED, max_examples=200)
@given(anything, st.data())
def test_a_garbled_frame_is_a_message_or_a_protocol_error(message: Any, data: st.DataObject) -> None:
    """Up to eight flipped bits; nothing but ProtocolError escapes, and what passes can be sent on."""
    frame = bytearray(encode(message))
    for bit in data.draw(st.lists(st.integers(0, 8 * len(frame) - 1), min_size=1, max_size=8)):
        frame[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(ProtocolError):
        received = registry.decode(bytes(frame), KINDS)
        assert isinstance(received, KINDS)
        encode(received)


@settings(UNHURRIED, max_examples=200)
@given(st.sampled_from([*range(1, 16), 16, 17, 18, 32, 33, 48, 64, 80, 255]), st.binary(max_size=60))
def test_random_bytes_are_a_message_or_a_protocol_error(tag: int, rest: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(registry.decode(bytes([tag]) + rest, KINDS), KINDS)


def draft(**changes: Any) -> Vote:
    values: dict[str, Any] = {
        "step": 100, "digest": b"\1" * 8, "tokens": (7,), "payloads": (b"",), "log_weights": (1.5,),
        "decode_us": 30_000,
    }  # fmt: skip
    return Vote(**{**values, **changes})


def frame_of(body: Any) -> LinkFrame:
    return LinkFrame(
        session=2**32 - 1, view=1, committed=100, committed_digest=b"\2" * 8, stamp=127, echo=127,
        held_us=2**21 - 1, body=body,
    )  # fmt: skip


def test_a_tower_of_frames_cannot_exhaust_the_stack() -> None:
    """A frame within a frame within a frame ..., each whole, is refused at the second."""
    frame = encode(frame_of(Heartbeat()))
    header = frame[:-1]
    with pytest.raises(ProtocolError, match="A LinkFrame does not belong"):
        decode(header * 100_000 + encode(Heartbeat()))
    drafted = encode(Local(session=1, body=draft()))
    with pytest.raises(ProtocolError, match="A Local does not belong"):
        decode(drafted[:5] * 100_000)


def test_the_peer_may_only_send_link_frames() -> None:
    frame = encode(frame_of(Heartbeat()))
    assert decode_link(frame) == decode(frame)
    with pytest.raises(ProtocolError, match="A Begin does not belong here"):
        decode_link(encode(Begin(session=1, spec="{}")))


def test_sizes_are_pinned() -> None:
    """A draft costs 44 bytes beside its distribution under 128 tokens, more late in a long answer; at most 56."""
    header = len(encode(frame_of(Heartbeat()))) - 1
    assert header == 23
    assert len(encode(frame_of(draft(decode_us=300)))) == 23 + 21
    late = replace(frame_of(draft(step=16_383, decode_us=2**28 - 1)), committed=16_383)
    distribution = bytes(300)
    assert (
        len(encode(replace(late, body=replace(late.body, payloads=(distribution,))))) - len(distribution)
        <= 56
    )
    verdict = Verdict(step=100, tokens=(2**17,), accepted=(1, 0), acceptance=(127, 0), next_decider=1)
    assert len(encode(frame_of(verdict))) == 23 + 14
    for count in (0, 5, 20):
        known = Logprobs(logprob=-1.0, top_ids=(300,) * count, top_logprobs=(-1.0,) * count)
        named = replace(verdict, tail=(Tail(logprobs=(known,)),))
        assert len(encode(frame_of(named))) == 23 + 14 + 4 + (11 + 10 * count), (
            "per token, with ids of 2 bytes"
        )
    assert len(encode(frame_of(Done(is_reply=True)))) == 23 + 2


def test_the_layout_is_pinned() -> None:
    """docs/reference/wire-format.md: tag, fields in order, little-endian."""
    body = struct.pack("<BB8sBBBB3sBfB", 1, 7, b"\1" * 8, 1, 7, 1, 3, b"ABC", 1, -1.5, 9)
    sent = draft(step=7, log_weights=(-1.5,), decode_us=9, payloads=(b"ABC",))
    assert encode(sent) == body
    header = struct.pack("<BBIBBBBBB8sBBB", 10, 17, 5, 1, 6, 2, 1, 2, 3, b"\2" * 8, 10, 11, 12)
    frame = LinkFrame(
        session=5, view=1, number=6, received=(1, 2), committed=3, committed_digest=b"\2" * 8,
        stamp=10, echo=11, held_us=12, body=sent,
    )  # fmt: skip
    assert encode(frame) == header + body


@pytest.mark.parametrize(
    "claim",
    [
        bytes([len(Code), 0, 0]),
        bytes([0, len(OPTIONS), 0]),
        b"\4\0" + b"\x91\x1c",  # 3601 s
        b"\4\0" + b"\xff" * 9 + b"\1",
    ],
    ids=["code", "option", "wait", "long wait"],
)
def test_what_a_peer_may_claim_of_a_failure_is_bounded(claim: bytes) -> None:
    frame = encode(Cancel(reason="", fault=Fault(code=Code.BUSY, retry_after_s=1e9)))
    assert registry.decode(frame, KINDS).fault == Fault(code=Code.BUSY, retry_after_s=MAX_RETRY_AFTER_S)
    with pytest.raises(ProtocolError, match=r"holds an unknown failure|more than 64 bits"):
        registry.decode(frame[:2] + claim, KINDS)


def test_what_a_number_need_not_be() -> None:
    """Not seen is nan; a party without documents has -inf."""
    profile = messages.Profile(
        session=1, step=0, aggregator=0, decode_s=(math.nan, 0.1), acceptance=(math.nan, math.nan),
        rtt_s=math.inf, rtt_average_s=math.nan,
        bytes_per_s=math.inf, notes=(),
    )  # fmt: skip
    received = decode(encode(profile))
    assert math.isnan(received.decode_s[0])
    assert received.rtt_s == math.inf
    assert registry.decode(encode(draft(log_weights=(-math.inf,))), KINDS).log_weights == (-math.inf,)


@pytest.mark.parametrize(
    ("share", "number"), [(0.0, 0), (1.0, 127), (0.5, 64), (math.nan, 0), (-1.0, 0), (9.0, 127)]
)
def test_a_probability_fits_in_a_byte(share: float, number: int) -> None:
    assert messages.in_127ths(share) == number


@pytest.mark.parametrize("version", [3, messages.OLDEST_VERSION - 1, messages.PROTOCOL_VERSION + 1])
def test_a_frame_of_another_protocol_version_is_refused(version: int) -> None:
    frame = bytes([10, version]) + encode(frame_of(Heartbeat()))[2:]
    with pytest.raises(ProtocolError) as refused:
        decode_link(frame)
    assert str(refused.value) == (
        f"A frame of protocol version {version} was received, but this party speaks {messages.describe_versions()}; "
        "install the same version of tandem-rag at both parties."
    )


@pytest.mark.parametrize(
    "reason", ["\x1b[31mred", "two\nlines", "back\rwards", "\u202eright to left", "bell\x07"]
)
def test_a_peer_cannot_move_the_cursor_of_a_terminal(reason: str) -> None:
    """What is for a user's eyes is read without control characters; the words stay."""
    read: Any = decode_link(encode(frame_of(Cancel(reason=reason))))
    assert read.body.reason.isprintable()
    assert len(read.body.reason) == len(reason)
    assert "".join(c for c in reason if c.isprintable()) == read.body.reason.replace("\ufffd", "")
