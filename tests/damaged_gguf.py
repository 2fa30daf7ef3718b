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
    """A number in a header, or a text."""

    start: int
    size: int  # bytes
    is_text: bool
    is_item: bool = False  # of an array of texts, of which there are as many as tokens
    is_value: bool = False  # of a key: a number or a text


def find_fields(content: bytes) -> list[Field]:
    """All of a whole file, in their order."""
    return list(_walk(content))


def _walk(content: bytes) -> Iterator[Field]:
    def number(start: int, letter: str) -> int:
        return int(struct.unpack_from(f"<{letter}", content, start)[0])

    def a_text(start: int, is_item: bool = False, is_value: bool = False) -> Iterator[Field]:
        yield Field(start, 8, False, is_item)
        yield Field(start + 8, number(start, "Q"), True, is_item, is_value)

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
        is_array = kind == ARRAY
        if is_array:
            yield from (Field(place, 4, False), Field(place + 4, 8, False))
            kind, count, place = number(place, "I"), number(place + 4, "Q"), place + 12
        if kind == STRING:
            for _ in range(count):
                yield from (item := list(a_text(place, is_array, not is_array)))
                place = end_of(item)
        else:
            if count == 1:
                yield Field(place, _SIZES[kind], False, False, True)
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


def _draw_field(fields: Sequence[Field], draw: random.Random, is_text: bool | None = None) -> Field:
    """Items of arrays are no more likely than all else together."""
    is_item = draw.random() < 0.5
    some = [
        field
        for field in fields
        if field.size and field.is_item == is_item and is_text in (None, field.is_text)
    ]
    return draw.choice(some)


def _flip(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    field = _draw_field(fields, draw)
    place = field.start + draw.randrange(field.size)
    if place < len(content):  # it may be cut already
        content[place] ^= 1 << draw.randrange(8)


def _misstate(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """A count, a length, a type, a size or an offset is another number."""
    field = _draw_field(fields, draw, is_text=False)
    old = int.from_bytes(content[field.start : field.start + field.size], "little")
    ends = (2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
    new = draw.choice((0, 1, old + 1, max(0, old - 1), 2 * old, 9, 255, *ends)) % (1 << 8 * field.size)
    content[field.start : field.start + field.size] = new.to_bytes(field.size, "little")


def _repeat(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """A text is another one's: keys, tokens, or tensors that are there twice."""
    field = _draw_field(fields, draw, is_text=True)
    other = draw.choice([each for each in fields if each.is_text and each.size == field.size])
    content[field.start : field.start + field.size] = content[other.start : other.start + other.size]


def _scribble(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    place = _draw_field(fields, draw).start
    content[place : place + draw.randrange(1, 9)] = draw.randbytes(draw.randrange(1, 9))


def _cut(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    del content[draw.randrange(len(content)) :]
    content += bytes(max(0, 32 - len(content)))


def _move(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """Some bytes are missing, or there are more."""
    place = _draw_field(fields, draw).start
    if draw.random() < 0.5:
        del content[place : place + draw.randrange(1, 33)]
    else:
        content[place:place] = draw.randbytes(draw.randrange(1, 33))


_NUMBERS = (0, 1, 2, 3, 7, 63, 64, 65, 255, 1000, 65_535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_KINDS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "none", "no_vocab", "hybriddna", "x")


def _revalue(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """What a key says is another number, or other letters."""
    field = draw.choice([field for field in fields if field.is_value and field.size])
    new = draw.randbytes(field.size)
    if not field.is_text:
        new = (draw.choice(_NUMBERS) % (1 << 8 * field.size)).to_bytes(field.size, "little")
    content[field.start : field.start + field.size] = new


def _add_key(content: bytearray, fields: Sequence[Field], draw: random.Random) -> None:
    """One more key, of those that llama.cpp looks for."""
    key = draw.choice(_MORE_KEYS)
    kind, value = U32, u32(draw.choice(_NUMBERS))
    if key.endswith((".pre", ".type")):
        kind, value = STRING, text(draw.choice((*_KINDS, "llama-bpe", "tekken", "yarn", "longrope")))
    elif "add_" in key or "remove_" in key:
        kind, value = BOOL, draw.choice((b"\0", b"\1"))
    content[:] = add_key(bytes(content), key, kind, value)


def add_key(content: bytes, key: str, kind: int, value: bytes) -> bytes:
    """A file with one more key, and weights that begin elsewhere."""
    count = (int.from_bytes(content[16:24], "little") + 1) % (1 << 64)
    return content[:16] + struct.pack("<Q", count) + text(key) + u32(kind) + value + content[24:] + bytes(32)


_MORE_KEYS = tuple(
    f"{section}.{name}"
    for section, names in {
        "llama": "expert_count expert_used_count expert_group_count vocab_size leading_dense_block_count "
        "nextn_predict_layers pooling_type",
        "llama.attention": "key_length value_length sliding_window causal",
        "llama.rope": "freq_base scaling.type scaling.factor dimension_count_swa",
        "tokenizer.ggml": "pre add_space_prefix add_eos_token add_sep_token remove_extra_whitespaces "
        "unknown_token_id token_type_count eot_token_id eom_token_id seperator_token_id fim_pre_token_id "
        "mask_token_id padding_token_id",
    }.items()
    for name in names.split()
)


_FAULTS: tuple[Callable[[bytearray, Sequence[Field], random.Random], None], ...] = (
    *(_flip, _flip, _misstate, _misstate, _repeat, _scribble, _cut, _move),
    *(_revalue, _revalue, _revalue, _add_key, _add_key),
)
