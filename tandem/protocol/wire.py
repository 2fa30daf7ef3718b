"""Binary form of the frozen dataclasses in `tandem.protocol.messages`: field by field, in order, little-endian.

Knows nothing of what a message means or how it travels. No pickle: a frame can only become one of the
registered classes, every length is checked against the frame, and what remains at the end is an error.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from tandem.errors import ProtocolError
from tandem.topology import PARTIES, Party

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])

MAX_FRAME_BYTES = 1 << 22
"""Longest frame that is accepted, in bytes; a dense law of 2^18 ids fits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wire(Generic[T]):
    """How one field is written to and read from a frame."""

    write: Callable[[bytearray, T], None]
    read: Callable[[Reader], T]


class Reader:
    """A cursor over one received frame; reading past its end is a ProtocolError."""

    __slots__ = ("frame", "position")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        """The next `num_bytes` bytes."""
        end = self.position + num_bytes
        if num_bytes < 0 or end > len(self.frame):
            raise ProtocolError(
                f"A frame must hold every field it announces, this one of {len(self.frame)} bytes lacks "
                f"{end - len(self.frame)}; check that both sides run the same version of Tandem."
            )
        taken = self.frame[self.position : end]
        self.position = end
        return taken

    def varint(self) -> int:
        """An unsigned LEB128 integer of at most 64 bits."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if value >> 64 or (byte >= 0x80 and shift > 63):
                raise ProtocolError(
                    "An integer in a frame must fit in 64 bits, this one is longer; "
                    "check that both sides run the same version of Tandem."
                )
            if byte < 0x80:
                return value


def write_varint(out: bytearray, value: int) -> None:
    """Append `value` (>= 0) as unsigned LEB128: 1 byte below 128, 2 below 16,384."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _fixed(layout: str) -> Wire[Any]:
    packer = struct.Struct("<" + layout)

    def write(out: bytearray, value: Any) -> None:
        out += packer.pack(value)

    return Wire(write, lambda reader: packer.unpack(reader.take(packer.size))[0])


def _raw(num_bytes: int) -> Wire[bytes]:
    def write(out: bytearray, value: bytes) -> None:
        if len(value) != num_bytes:
            raise ProtocolError(
                f"A digest has {num_bytes} bytes, this one has {len(value)}; report this as a bug."
            )
        out += value

    return Wire(write, lambda reader: reader.take(num_bytes))


def _write_blob(out: bytearray, value: bytes) -> None:
    write_varint(out, len(value))
    out += value


def _read_blob(reader: Reader) -> bytes:
    return reader.take(reader.varint())


def _read_party(reader: Reader) -> Party:
    index = reader.take(1)[0]
    if index >= len(PARTIES):
        raise ProtocolError(
            f"A side in a frame is 0 or 1, this one is {index}; check both sides' versions of Tandem."
        )
    return PARTIES[index]


def _read_text(reader: Reader) -> str:
    try:
        return _read_blob(reader).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("Text in a frame must be UTF-8; check both sides' versions of Tandem.") from error


def sequence(item: Wire[Any]) -> Wire[tuple[Any, ...]]:
    """A field of any number of items: their count, then each."""

    def write(out: bytearray, values: tuple[Any, ...]) -> None:
        write_varint(out, len(values))
        for value in values:
            item.write(out, value)

    def read(reader: Reader) -> tuple[Any, ...]:
        count = reader.varint()
        if count > len(reader.frame):  # every item takes at least one byte
            reader.take(count)
        return tuple(item.read(reader) for _ in range(count))

    return Wire(write, read)


VARINT: Wire[int] = Wire(write_varint, Reader.varint)
FLOAT32: Wire[float] = _fixed("f")
FLOAT64: Wire[float] = _fixed("d")
UINT32: Wire[int] = _fixed("I")
BLOB: Wire[bytes] = Wire(_write_blob, _read_blob)
TEXT: Wire[str] = Wire(lambda out, value: _write_blob(out, value.encode()), _read_text)
PARTY: Wire[Party] = Wire(lambda out, value: out.append(PARTIES.index(value)), _read_party)
FLAG: Wire[bool] = Wire(lambda out, value: out.append(value), lambda reader: reader.take(1) != b"\0")

Varint = Annotated[int, VARINT]
Float32 = Annotated[float, FLOAT32]
Float64 = Annotated[float, FLOAT64]
UInt32 = Annotated[int, UINT32]
Digest = Annotated[bytes, _raw(8)]
Blob = Annotated[bytes, BLOB]
Text = Annotated[str, TEXT]
PartyField = Annotated[Party, PARTY]
Flag = Annotated[bool, FLAG]
Varints = Annotated[tuple[int, ...], sequence(VARINT)]
Float64s = Annotated[tuple[float, ...], sequence(FLOAT64)]
Texts = Annotated[tuple[str, ...], sequence(TEXT)]


def to_float32(value: float) -> float:
    """`value` as it comes out of a FLOAT32 field, so that the sender computes with what it sends."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


class Registry:
    """Maps one tag byte to one message class, both ways."""

    def __init__(self) -> None:
        self._by_tag: dict[int, tuple[type[Any], tuple[tuple[str, Wire[Any]], ...] | None]] = {}
        self._tags: dict[type[Any], int] = {}

    def message(self, tag: int) -> Callable[[C], C]:
        """Class decorator: this frozen dataclass travels under `tag` (0 to 255)."""

        def register(cls: C) -> C:
            if tag in self._by_tag:
                raise ValueError(f"tag {tag} is taken by {self._by_tag[tag][0].__name__}")
            self._tags[cls] = tag
            self._by_tag[tag] = (cls, None)  # the fields are resolved at first use, when all classes exist
            return cls

        return register

    def write(self, out: bytearray, message: Any) -> None:
        """Append tag and fields of `message`."""
        tag = self._tags[type(message)]
        out.append(tag)
        for name, wire in self._fields(tag):
            wire.write(out, getattr(message, name))

    def read(self, reader: Reader, allowed: tuple[type[Any], ...] = ()) -> Any:
        """The message at the cursor; ProtocolError if there is none, or none of the `allowed` classes (if any)."""
        tag = reader.take(1)[0]
        if tag not in self._by_tag:
            raise ProtocolError(
                f"A frame's first byte names its kind, {tag} is unknown; check both sides' versions."
            )
        if allowed and self._by_tag[tag][0] not in allowed:
            raise ProtocolError(
                f"A message within another must be of a kind that belongs there, {self._by_tag[tag][0].__name__} "
                "does not; check both sides' versions of Tandem."
            )
        fields = self._fields(tag)
        return self._by_tag[tag][0](**{name: wire.read(reader) for name, wire in fields})

    def encode(self, message: Any) -> bytes:
        """One whole frame."""
        out = bytearray()
        self.write(out, message)
        return bytes(out)

    def decode(self, frame: bytes) -> Any:
        """The message of one whole frame; ProtocolError if it is malformed or too long."""
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"A frame has at most {MAX_FRAME_BYTES} bytes, this one {len(frame)}; check the sender."
            )
        reader = Reader(frame)
        message = self.read(reader)
        if reader.position != len(frame):
            raise ProtocolError(
                f"A frame ends with its last field, this one has {len(frame) - reader.position} bytes more; "
                "check that both sides run the same version of Tandem."
            )
        return message

    def nested(self, *classes: type[Any]) -> Wire[Any]:
        """A field that holds a message of one of `classes`; so a frame's depth is bounded by its class."""
        return Wire(self.write, lambda reader: self.read(reader, classes))

    def _fields(self, tag: int) -> tuple[tuple[str, Wire[Any]], ...]:
        cls, fields = self._by_tag[tag]
        if fields is None:
            hints = get_type_hints(cls, include_extras=True)
            fields = tuple(
                (field.name, _wire_of(cls, field.name, hints)) for field in dataclasses.fields(cls)
            )
            self._by_tag[tag] = (cls, fields)
        return fields


def _wire_of(cls: type[Any], name: str, hints: dict[str, Any]) -> Wire[Any]:
    hint = hints[name]
    if get_origin(hint) is Annotated:
        for extra in get_args(hint)[1:]:
            if isinstance(extra, Wire):
                return extra
    raise TypeError(f"{cls.__name__}.{name} has no wire form")
