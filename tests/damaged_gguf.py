"""GGUF files written byte by byte, and damaged at random: by flipped bits, false sizes and counts, and cuts."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def text(value: str | bytes) -> bytes:
    """As GGUF has it."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def array(kind: int, items: Sequence[bytes], count: int | None = None) -> bytes:
    """Items of one type. count: what is said instead of how many there are."""
    return struct.pack("<IQ", kind, len(items) if count is None else count) + b"".join(items)


def u32(value: int) -> bytes:
    """A number."""
    return struct.pack("<I", value)


def tensor(
    name: str = "w",
    shape: Sequence[int] = (32, 2),
    kind: int = 0,
    offset: int = 0,
    dimensions: int | None = None,
) -> bytes:
    """What a header says of a tensor."""
    count = len(shape) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


WHOLE: Mapping[str, tuple[int, bytes]] = {
    "general.architecture": (STRING, text("llama")),
    "llama.block_count": (U32, u32(1)),
    "llama.context_length": (U32, u32(64)),
    "tokenizer.ggml.model": (STRING, text("gpt2")),
    "tokenizer.ggml.tokens": (ARRAY, array(STRING, list(map(text, ("a", "b", "ab", "<e>"))))),
    "tokenizer.ggml.merges": (ARRAY, array(STRING, [text("a b")])),
    "tokenizer.ggml.token_type": (ARRAY, array(I32, [*[u32(1)] * 3, u32(3)])),
    "tokenizer.ggml.eos_token_id": (U32, u32(3)),
}
"""Keys -> types and values of a small file."""


def build(
    values: Mapping[str, tuple[int, bytes]] = WHOLE,
    tensors: Sequence[bytes] = (tensor(),),
    *,
    more: Sequence[tuple[str, int, bytes]] = (),
    num_values: int | None = None,
    num_tensors: int | None = None,
    num_data: int = 256,
) -> bytes:
    """A file. more: further entries, which may repeat keys. num_values, num_tensors: what is said of how many."""
    entries = [(key, *value) for key, value in values.items()] + list(more)
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_values is None else num_values,
    )
    said = b"".join(text(key) + u32(kind) + value for key, kind, value in entries)
    header = b"GGUF" + struct.pack("<IQQ", 3, *counts) + said + b"".join(tensors)
    return header + bytes(-len(header) % 32) + bytes(num_data)


class Field(NamedTuple):
    """A number in a header that says how the rest is read, or a text."""

    start: int
    size: int  # bytes
    is_text: bool


def find_fields(content: bytes) -> list[Field]:
    """All of a whole file, in their order."""
    return list(_walk(content))


def _walk(content: bytes) -> Iterator[Field]:
    def number(start: int, letter: str) -> int:
        return int(struct.unpack_from(f"<{letter}", content, start)[0])

    def a_text(start: int) -> Iterator[Field]:
        yield Field(start, 8, False)
        yield Field(start + 8, number(start, "Q"), True)

    def end_of(fields: Sequence[Field]) -> int:
        return fields[-1].start + fields[-1].size

    yield Field(4, 4, False)
    yield from (Field(8, 8, False), Field(16, 8, False))
    place = 24
    for _ in range(number(16, "Q")):
        yield from (key := list(a_text(place)))
        place = end_of(key)
        yield Field(place, 4, False)
        kind, place, count = number(place, "I"), place + 4, 1
        if kind == ARRAY:
            yield from (Field(place, 4, False), Field(place + 4, 8, False))
            kind, count, place = number(place, "I"), number(place + 4, "Q"), place + 12
        if kind == STRING:
            for _ in range(count):
                yield from (item := list(a_text(place)))
                place = end_of(item)
        else:
            if count == 1:
                yield Field(place, _SIZES[kind], False)
            place += count * _SIZES[kind]
    for _ in range(number(8, "Q")):
        yield from (name := list(a_text(place)))
        place = end_of(name)
        dimensions = number(place, "I")
        yield Field(place, 4, False)
        yield from (Field(place + 4 + 8 * each, 8, False) for each in range(dimensions))
        place += 4 + 8 * dimensions
        yield from (Field(place, 4, False), Field(place + 4, 8, False))
        place += 12
    yield Field(place, 0, True)  # the end


def damage(content: bytes, fields: Sequence[Field], draw: random.Random) -> bytes:
    """The file with one to three faults in its header."""
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choice(_FAULTS)(damaged, fields, draw)
    return bytes(damaged)


def _flip(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    place = draw.randrange(min(fields[-1].start, len(content)))
    content[place] ^= 1 << draw.randrange(8)


def _misstate(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """A count, a length, a type, a size or an offset is another number."""
    field = draw.choice([field for field in fields if not field.is_text])
    old = int.from_bytes(content[field.start : field.start + field.size], "little")
    new = draw.choice(
        (
            0,
            1,
            old + 1,
            max(0, old - 1),
            2 * old,
            9,
            255,
            2**31 - 1,
            2**31,
            2**32 - 1,
            2**62,
            2**63 - 1,
            2**63,
            2**64 - 1,
        )
    )
    content[field.start : field.start + field.size] = (new % (1 << 8 * field.size)).to_bytes(
        field.size, "little"
    )


def _repeat(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """A text is another one's: keys, tokens, or tensors that are there twice."""
    texts = [field for field in fields if field.is_text and field.size]
    field = draw.choice(texts)
    other = draw.choice([each for each in texts if each.size == field.size])
    content[field.start : field.start + field.size] = content[other.start : other.start + other.size]


def _scribble(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    place = draw.randrange(min(fields[-1].start, len(content)))
    content[place : place + draw.randrange(1, 9)] = draw.randbytes(draw.randrange(1, 9))


def _cut(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    del content[draw.randrange(len(content)) :]
    content += bytes(max(0, 32 - len(content)))


def _move(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """Some bytes are missing, or there are more."""
    place = draw.randrange(min(fields[-1].start, len(content)))
    if draw.random() < 0.5:
        del content[place : place + draw.randrange(1, 33)]
    else:
        content[place:place] = draw.randbytes(draw.randrange(1, 33))


_FAULTS: tuple[Callable[[bytearray, Sequence[Field], random.Random], None], ...] = (
    _flip,
    _flip,
    _misstate,
    _misstate,
    _repeat,
    _scribble,
    _cut,
    _move,
)
