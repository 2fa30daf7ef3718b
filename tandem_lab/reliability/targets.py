"""Everything that reads bytes of a peer, as functions for a fuzzer: each refuses with a ProtocolError, or returns.

The first byte of an input chooses the reader, the rest is what it reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tandem.codecs import RaceLists, StatelessCodec, TopP
from tandem.codecs.votes import read_token, read_vote, write_token
from tandem.config.schema import DevicesConfig
from tandem.errors import ProtocolError
from tandem.joining.handshakes import CloudHandshake, DeviceHandshake, read_about
from tandem.joining.join_link import Device, JoinLink
from tandem.messages import PROTOCOL_VERSION, Logprobs, Open, decode, decode_link
from tandem.modes import SessionSpec
from tandem.plugins.papers.codecs import KSqs, Lattice, TopK
from tandem.protocol.admission import check_spec
from tandem.transport.port import FrameSplitter, join_frames

VOCAB_SIZE = 32_000
CODECS: Sequence[StatelessCodec] = (TopP(), TopK(), Lattice(), KSqs())
LAW = np.pad(0.5 ** np.arange(1, 33), (0, VOCAB_SIZE - 32))
LINK = JoinLink("127.0.0.1", 7800, bytes(32), bytes(16))
KNOWN = Device(name="device", digest="", added="")


def read_link_frame(data: bytes) -> None:
    """A frame of another party; the spec of a query, too, with what it asks for."""
    frame = decode_link(data)
    if isinstance(frame.body, Open):
        check_spec(SessionSpec.from_json(frame.body.spec), DevicesConfig().max_answer_tokens)


def read_stream(data: bytes) -> None:
    """A stream in pieces, whose size the first byte says."""
    splitter, size = FrameSplitter(), 1 + (data[0] if data else 0)
    for start in range(1, len(data), size):
        for frame in splitter.feed(data[start : start + size]):
            with contextlib.suppress(ProtocolError):
                decode_link(frame)


def read_votes(data: bytes) -> None:
    """A distribution, whose codec the first byte says."""
    place = data[0] % (len(CODECS) + 2) if data else 0
    if place < len(CODECS):
        CODECS[place].decode(data[1:], VOCAB_SIZE)
    elif place == len(CODECS):
        read_vote(data[1:], VOCAB_SIZE)
    else:
        read_token(data[1:], VOCAB_SIZE)


class Anybody:
    """Lets everybody in."""

    about = None
    vocabulary = b"any"

    def has_listed(self, device: Device, digest: str) -> None:
        """None is here."""

    def learn(self, vocabulary: bytes) -> None:
        """Nobody lists it."""

    def recognise(self, secret: bytes) -> Device:
        """Any token is that of one device."""
        return KNOWN

    def admit(self, device: Device, instance: str) -> None:
        """It may come in."""

    def note_refusal(self, error: ProtocolError) -> None:
        """Nobody reads it."""


def read_hello(data: bytes) -> None:
    """What a device says first; any token is known. Lines after the first are what follows."""
    handshake = CloudHandshake(Anybody())
    for frame in data.split(b"\n"):
        handshake.receive(frame)


def read_welcome(data: bytes) -> None:
    """What a cloud answers, and what it says of itself."""
    DeviceHandshake(LINK, "", _meet).receive(data)


def _meet(told: dict[str, Any]) -> None:
    read_about(told)


def read_site_message(data: bytes) -> None:
    """A message of the own site's actors."""
    decode(data)


READERS: Sequence[Callable[[bytes], None]] = (
    read_link_frame,
    read_stream,
    read_votes,
    read_hello,
    read_welcome,
    read_site_message,
)


def read(data: bytes) -> bool:
    """Whether the input was read; False if it was refused. Whatever else is raised is a fault."""
    try:
        READERS[data[0] % len(READERS) if data else 0](data[1:])
    except ProtocolError:
        return False
    return True


def seeds(frames: Sequence[bytes]) -> list[bytes]:
    """Valid inputs, from the frames of real answers: the more a fuzzer starts from, the deeper it gets."""
    welcome = (
        b'{"tandem":1,"about":{"protocol_version":%d,"vocab_size":8,"decode_line":[0.1]}}' % PROTOCOL_VERSION
    )
    refusal = b'{"tandem":1,"refused":"busy","value":3.5}'
    hello = (
        b'{"tandem":1,"protocol":%d,"secret":"AAAAAAAAAAAAAAAAAAAAAA==","instance":"0a"}' % PROTOCOL_VERSION
    )
    return [
        *(bytes([0]) + frame for frame in frames),
        *(bytes([1, 7]) + join_frames(list(frames[start : start + 4])) for start in range(0, len(frames), 4)),
        *(bytes([2, place]) + codec.encode(LAW) for place, codec in enumerate((*CODECS, RaceLists()))),
        bytes([2, len(CODECS) + 1])
        + write_token(300, Logprobs(logprob=-0.5, top_ids=(300, 7), top_logprobs=(-0.5, -2.0))),
        bytes([3]) + hello,
        bytes([4]) + welcome,
        bytes([4]) + refusal,
        *(bytes([5]) + frame for frame in frames),
    ]
