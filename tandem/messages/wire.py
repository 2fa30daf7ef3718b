"""Binary form of messages, frozen dataclasses: a tag byte, then field by field, in order, little-endian.

Every length is checked against the frame. No pickle: a frame can only become one of the registered classes, and bytes
after the last field are an error.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Collection
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, TypeVar, dataclass_transform, get_args, get_type_hints

from tandem.errors import MAX_RETRY_AFTER_S, Code, Fault, ProtocolError
from tandem.topology import MAX_PARTIES

T = TypeVar("T")
M = TypeVar("M", bound="WireMessage")

MAX_FRAME_BYTES = 1 << 22
"""Longest frame, in bytes; a dense distribution over 2^19 ids fits."""
MAX_VARINT_BITS = 64
DIGEST_BYTES = 8
MARK_BYTES, MAX_MARKS = 3, 256
"""Of a word, and most of a frame (`tandem.retrieval.words`)."""
OPTIONS = (None, "question", "device_filter", "cloud_filter", "max_new_tokens", "num_documents", "grammar")
"""Options of a query that another party may find at fault, numbered in this order; further ones travel as None."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldFormat(Generic[T]):
    """The format of one field in a frame."""

    write: Callable[[bytearray, T], None]
    read: Callable[[FrameCursor], T]


class FrameCursor:
    """A cursor over one received frame; reading past its end is a ProtocolError."""

    __slots__ = ("frame", "position")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        """The next `num_bytes` bytes."""
        end = self.position + num_bytes
        if num_bytes < 0 or end > len(self.frame):
            raise _cut_short(self.frame, end - len(self.frame))
        taken = self.frame[self.position : end]
        self.position = end
        return taken

    def varint(self) -> int:
        """An unsigned LEB128 integer of at most 64 bits."""
        if self.position < len(self.frame) and (byte := self.frame[self.position]) < 0x80:  # nearly always
            self.position += 1
            return byte
        parsed = read_varint(self.frame, self.position)
        if parsed is None:
            raise _cut_short(self.frame, 1)
        value, self.position = parsed
        return value


def _cut_short(frame: bytes, num_missing: int) -> ProtocolError:
    return ProtocolError(
        f"A frame of {len(frame)} bytes ends {num_missing} bytes too early; "
        "check that both parties run the same version of Tandem."
    )


def write_varint(out: bytearray, value: int) -> None:
    """Append `value` (>= 0) as unsigned LEB128: 1 byte below 128, 2 below 16,384."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint_bytes(value: int) -> int:
    """How many bytes `write_varint` appends."""
    return max(1, -(-value.bit_length() // 7))


def read_varint(
    data: bytes | bytearray, position: int, max_bits: int = MAX_VARINT_BITS
) -> tuple[int, int] | None:
    """(value, position after it) of the LEB128 integer at `position`; None: `data` ends within it.

    ProtocolError if it has more than `max_bits` bits.
    """
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if value >> max_bits or (byte >= 0x80 and shift >= max_bits):
            raise ProtocolError(
                f"An integer in a frame has more than {max_bits} bits; check that both parties run the same version "
                "of Tandem."
            )
        if byte < 0x80:
            return value, position
    return None


def _fixed(layout: str) -> FieldFormat[Any]:
    packer = struct.Struct("<" + layout)
    pack, unpack, size = packer.pack, packer.unpack, packer.size
    return FieldFormat(
        lambda out, value: out.extend(pack(value)),
        lambda cursor: unpack(cursor.take(size))[0],
    )


def _write_digest(out: bytearray, value: bytes) -> None:
    if len(value) != DIGEST_BYTES:
        raise ProtocolError(f"A digest has {DIGEST_BYTES} bytes (got {len(value)}); report this as a bug.")
    out += value


def _write_blob(out: bytearray, value: bytes) -> None:
    write_varint(out, len(value))
    out += value


def _read_blob(cursor: FrameCursor) -> bytes:
    return cursor.take(cursor.varint())


def _write_marks(out: bytearray, value: bytes) -> None:
    if value:
        _write_blob(out, value)


def _read_marks(cursor: FrameCursor) -> bytes:
    """None at the end of a frame, as of a party that knows nothing of them."""
    if cursor.position == len(cursor.frame):
        return b""
    marks = _read_blob(cursor)
    if not marks or len(marks) % MARK_BYTES or len(marks) > MARK_BYTES * MAX_MARKS:
        raise ProtocolError(
            f"Marks of words are {MARK_BYTES} bytes each, up to {MAX_MARKS} of them (got {len(marks)} bytes); "
            "check that both parties run the same version of Tandem."
        )
    return marks


def _read_party(cursor: FrameCursor) -> int:
    index = cursor.take(1)[0]
    if index >= MAX_PARTIES:
        raise ProtocolError(
            f"A party in a frame is 0 to {MAX_PARTIES - 1} (got {index}); "
            "check that both parties run the same version of Tandem."
        )
    return index


def _write_fault(out: bytearray, value: Fault) -> None:
    option = OPTIONS.index(value.option) if value.option in OPTIONS else 0
    out += bytes(([*Code].index(value.code), option))
    write_varint(out, int(min(MAX_RETRY_AFTER_S, value.retry_after_s or 0)))


def _read_fault(cursor: FrameCursor) -> Fault:
    code, option, wait_s = *cursor.take(2), cursor.varint()
    if code >= len(Code) or option >= len(OPTIONS) or wait_s > MAX_RETRY_AFTER_S:
        raise ProtocolError(f"A frame holds an unknown failure ({code}, {option}, {wait_s}); update Tandem.")
    return Fault(code=[*Code][code], option=OPTIONS[option], retry_after_s=wait_s or None)


def _write_text(out: bytearray, value: str) -> None:
    try:
        _write_blob(out, value.encode())
    except UnicodeEncodeError as error:
        raise ProtocolError(
            f"A text cannot be written as UTF-8: character {error.start} is half a surrogate pair; "
            "repair the document or question that it comes from."
        ) from None


def _read_text(cursor: FrameCursor) -> str:
    try:
        return _read_blob(cursor).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(
            "A text in a frame is not UTF-8; check that both parties run the same version of Tandem."
        ) from error


def _read_line(cursor: FrameCursor) -> str:
    """A peer must not move the cursor of a user's terminal, nor colour it."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in _read_text(cursor))


def sequence(item: FieldFormat[Any]) -> FieldFormat[tuple[Any, ...]]:
    """A field of any number of items: their count, then the items."""

    def write(out: bytearray, values: tuple[Any, ...]) -> None:
        write_varint(out, len(values))
        for value in values:
            item.write(out, value)

    def read(cursor: FrameCursor) -> tuple[Any, ...]:
        count = cursor.varint()
        if count > len(cursor.frame):  # every item takes at least one byte
            cursor.take(count)
        read_item = item.read
        return tuple([read_item(cursor) for _ in range(count)])

    return FieldFormat(write, read)


def _write_varints(out: bytearray, values: tuple[int, ...]) -> None:
    write_varint(out, len(values))
    for value in values:
        if value <= 0x7F:  # nearly always
            out.append(value)
        else:
            write_varint(out, value)


def _read_varints(cursor: FrameCursor) -> tuple[int, ...]:
    count = cursor.varint()
    start = cursor.position
    taken = cursor.frame[start : start + count]
    if len(taken) < count:  # every item takes at least one byte
        cursor.take(count)
    if taken.isascii():  # one byte each
        cursor.position = start + count
        return tuple(taken)
    return tuple([cursor.varint() for _ in range(count)])


def _write_json(out: bytearray, value: Any) -> None:
    _write_text(out, value if isinstance(value, str) else value.to_json())


VARINT: FieldFormat[int] = FieldFormat(write_varint, FrameCursor.varint)
VARINTS: FieldFormat[tuple[int, ...]] = FieldFormat(_write_varints, _read_varints)
_FLOAT32, _FLOAT64 = _fixed("f"), _fixed("d")
_BLOB: FieldFormat[bytes] = FieldFormat(_write_blob, _read_blob)
_TEXT: FieldFormat[str] = FieldFormat(_write_text, _read_text)
_LINE: FieldFormat[str] = FieldFormat(_write_text, _read_line)

Varint = Annotated[int, VARINT]
Varints = Annotated[tuple[int, ...], VARINTS]
Float64 = Annotated[float, _FLOAT64]
Float32s = Annotated[tuple[float, ...], sequence(_FLOAT32)]
Float64s = Annotated[tuple[float, ...], sequence(_FLOAT64)]
UInt32 = Annotated[int, _fixed("I")]
Digest = Annotated[bytes, FieldFormat(_write_digest, lambda cursor: cursor.take(DIGEST_BYTES))]
Blob = Annotated[bytes, _BLOB]
Marks = Annotated[bytes, FieldFormat(_write_marks, _read_marks)]  # the last field of a frame, or none
Blobs = Annotated[tuple[bytes, ...], sequence(_BLOB)]
Text = Annotated[str, _TEXT]
Texts = Annotated[tuple[str, ...], sequence(_TEXT)]
Line = Annotated[str, _LINE]  # for a user's eyes
Lines = Annotated[tuple[str, ...], sequence(_LINE)]
# an object with `to_json`, and what that gives where it was read from a frame
Json = Annotated[Any, FieldFormat(_write_json, _read_text)]
PartyIndex = Annotated[int, FieldFormat(bytearray.append, _read_party)]
Flag = Annotated[bool, FieldFormat(bytearray.append, lambda cursor: cursor.take(1) != b"\0")]
Failure = Annotated[Fault, FieldFormat(_write_fault, _read_fault)]


def to_float32(value: float) -> float:
    """Round `value` to a field of 32 bits, so that the sender computes with what it sends."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


# ---- whole messages ----------------------------------------------------------------------------------------


@dataclass_transform(kw_only_default=True, frozen_default=True)
class WireMessage:
    """Base of what a registry makes a frozen dataclass with slots, whose fields are given by name."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


class Registry:
    """Maps one tag byte to one message class, both ways."""

    def __init__(self) -> None:
        self._by_tag: dict[int, Any] = {}  # classes
        self._tags: dict[type[Any], int] = {}
        self._messages: list[type[Any]] = []
        self.body_classes: list[type[Any]] = []

    def message(self, tag: int) -> Callable[[type[M]], type[M]]:
        """Class decorator: such a frozen dataclass travels on its own, under `tag` (0 to 255)."""
        return self._register(tag, self._messages)

    def body(self, tag: int) -> Callable[[type[M]], type[M]]:
        """A decorator for a message that travels in a field of `bodies`."""
        return self._register(tag, self.body_classes)

    def part(self, tag: int) -> Callable[[type[M]], type[M]]:
        """A decorator for a message that travels in a field of `nested` that names it."""
        return self._register(tag, [])

    def _register(self, tag: int, group: list[type[Any]]) -> Callable[[type[M]], type[M]]:
        def register(plain: type[M]) -> type[M]:
            if tag in self._by_tag:
                raise ValueError(f"tag {tag} is taken by {self._by_tag[tag].__name__}")
            cls = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(plain)
            self._tags[cls] = tag
            self._by_tag[tag] = cls
            group.append(cls)
            return cls

        return register

    @property
    def classes(self) -> tuple[type[Any], ...]:
        """All registered classes."""
        return tuple(self._tags)

    def tag(self, cls: type[Any]) -> int:
        """The byte that messages of this class begin with."""
        return self._tags[cls]

    def write(self, out: bytearray, message: Any) -> None:
        """Append tag and fields of `message`."""
        cls: Any = type(message)
        out.append(self._tags[cls])
        for name, write, _ in _fields_of(cls):
            write(out, getattr(message, name))

    def read(self, cursor: FrameCursor, allowed: Collection[type[Any]]) -> Any:
        """The message at the cursor; ProtocolError if it is not one of the `allowed` classes."""
        tag = cursor.take(1)[0]
        if tag not in self._by_tag:
            raise ProtocolError(
                f"A frame begins with the unknown tag {tag}; check that both parties run the same version of Tandem."
            )
        cls = self._by_tag[tag]
        if cls not in allowed:
            raise ProtocolError(
                f"A {cls.__name__} does not belong here; "
                "check that both parties run the same version of Tandem."
            )
        return cls(**{name: read(cursor) for name, _, read in _fields_of(cls)})

    def encode(self, message: Any) -> bytes:
        """One whole frame; ProtocolError if it would be too long, or a text in it cannot be written."""
        out = bytearray()
        self.write(out, message)
        if len(out) > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"A {type(message).__name__} of {len(out)} bytes exceeds the {MAX_FRAME_BYTES} bytes that a message "
                "may have; use fewer or shorter documents, or a shorter question."
            )
        return bytes(out)

    def decode(self, frame: bytes, allowed: Collection[type[Any]] = ()) -> Any:
        """The message of one whole frame; ProtocolError if it is malformed, too long, or not `allowed`.

        allowed: default all that travel by themselves.
        """
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"A frame has at most {MAX_FRAME_BYTES} bytes (got {len(frame)}); check the sender."
            )
        cursor = FrameCursor(frame)
        message = self.read(cursor, allowed or self._messages)
        if cursor.position != len(frame):
            raise ProtocolError(
                f"A frame has {len(frame) - cursor.position} bytes after its last field; "
                "check that both parties run the same version of Tandem."
            )
        return message

    def nested(self, *classes: type[Any]) -> FieldFormat[Any]:
        """A field that holds a message of one of `classes`; so a frame's depth is bounded by its class."""
        return FieldFormat(self.write, lambda cursor: self.read(cursor, classes))

    def bodies(self) -> FieldFormat[Any]:
        """A field that holds one of all bodies."""
        return FieldFormat(self.write, lambda cursor: self.read(cursor, self.body_classes))


@cache
def _fields_of(cls: type[Any]) -> tuple[tuple[str, Callable[..., None], Callable[..., Any]], ...]:
    """Names, writers and readers, resolved at first use, when all classes exist."""
    hints, fields = get_type_hints(cls, include_extras=True), list[tuple[str, Any, Any]]()
    for field in dataclasses.fields(cls):
        form = next((each for each in get_args(hints[field.name]) if isinstance(each, FieldFormat)), None)
        if form is None:
            raise TypeError(f"{cls.__name__}.{field.name} has no binary form")
        fields.append((field.name, form.write, form.read))
    return tuple(fields)
