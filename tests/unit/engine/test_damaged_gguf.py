"""Damaged and hostile GGUF files: each is read, or is one sentence, and costs no memory for what it only claims."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.errors import GenerationError
from tandem.plugins.gguf import header as gguf
from tandem.plugins.gguf import tokenizer as gguf_tokenizer
from tests.damaged_gguf import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U32,
    U64,
    WHOLE,
    array,
    build,
    damage,
    find_fields,
    tensor,
    text,
    u32,
)

MAX_GROWTH = 100 << 20
ENORMOUS = 1 << 63


def with_value(key: str, kind: int, value: bytes) -> bytes:
    return build({**WHOLE, key: (kind, value)})


def with_more(key: str, kind: int, value: bytes) -> bytes:
    return build(more=[(key, kind, value)])


def read(folder: Path, content: bytes) -> gguf.Header:
    file = folder / "x.gguf"
    file.write_bytes(content)
    return gguf.check(file)


def test_a_small_file_is_whole(tmp_path: Path) -> None:
    header = read(tmp_path, build(more=[("x.y", ARRAY, array(F32, [struct.pack("<f", 0.5)] * 2))]))
    assert (header.architecture, header.split, header.context_length) == ("llama", "", 64)
    assert header.texts("tokenizer.ggml.tokens") == [b"a", b"b", b"ab", b"<e>"]
    assert header.numbers("x.y") == [0.5, 0.5]
    assert (header.num_parameters, header.texts("x"), header.numbers("x")) == (64, [], [])
    assert gguf_tokenizer.load(tmp_path / "x.gguf")[0].encode("ab").tokens == ["ab"]


TOKENS, SCORES = "tokenizer.ggml.tokens", "tokenizer.ggml.scores"
SIZE = len(build())
KEYS = "and 65,536 can be read"
INCOMPLETE = [
    b"GGUF\3\0\0\0",
    build(num_values=60_000),
    build(num_tensors=60_000),
    with_more("x", STRING, struct.pack("<Q", 2**64 - 1)),
    with_more("x", ARRAY, array(U32, [], ENORMOUS)),
    with_more("x", ARRAY, array(STRING, [], 1_000_000)),
    with_more("x", ARRAY, array(STRING, [struct.pack("<Q", 2**40)])),
]
VALUES = [
    ("general.alignment", U32, u32(0), "0, and not a power of two"),
    ("general.alignment", U32, u32(48), "48, and not a power of two"),
    ("general.alignment", STRING, text("32"), "'32', and not a power of two"),
    ("general.architecture", U32, u32(7), "7, and not a text"),
    ("llama.block_count", U32, u32(0), "0, and not 1 to 2,147,483,647"),
    ("llama.context_length", U32, u32(2**32 - 1), "4294967295, and not 1 to 2,147,483,647"),
    ("llama.context_length", STRING, text("x" * 1000), "'" + "x" * 59 + ", and not an integer"),
    (TOKENS, STRING, text("a"), "'a', and not a list of texts"),
    (TOKENS, ARRAY, array(U32, [u32(1)]), "an array of 1, and not a list of texts"),
    (SCORES, ARRAY, array(STRING, []), "an array of 0, and not a list of numbers"),
    ("tokenizer.ggml.eos_token_id", BOOL, b"\1", "True, and not an integer"),
    ("tokenizer.ggml.add_bos_token", U64, bytes(8), "0, and not a flag"),
    ("tokenizer.chat_template", ARRAY, array(STRING, []), "an array of 0, and not a text"),
]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((content, "its header is incomplete") for content in INCOMPLETE),
        *((with_value(key, kind, value), f"its {key!r} is {said}") for key, kind, value, said in VALUES),
        (b"<html>", "it begins with b'<htm'"),
        (b"GGUF\x09\0\0\0" + bytes(16), "its version is 9, and 2 and 3 can be read"),
        (build(num_values=ENORMOUS), f"it has {ENORMOUS:,} keys and 1 tensors, {KEYS}"),
        (build(num_tensors=ENORMOUS), f"it has 8 keys and {ENORMOUS:,} tensors, {KEYS}"),
        (
            with_more("x", ARRAY, array(STRING, [], ENORMOUS)),
            f"it has an array of {ENORMOUS:,} texts, and 1,048,576 can be read",
        ),
        (
            with_more("x", ARRAY, array(ARRAY, [array(U32, [u32(1)])])),
            "its header has an array of the unknown type 9",
        ),
        (with_more("x", ARRAY, array(99, [])), "its header has an array of the unknown type 99"),
        (with_more("x", 99, b""), "its header has a value of the unknown type 99"),
        (with_more("llama.block_count", U32, u32(1)), "it says 'llama.block_count' twice"),
        (with_more("general.alignment", U32, u32(1 << 31)), f"it has {SIZE + 32} of 2,147,483,904 bytes"),
        (with_more(SCORES, ARRAY, array(F32, [u32(0)])), "it has 4 tokens, and scores of 1"),
        (
            with_value("tokenizer.ggml.token_type", ARRAY, array(U32, [])),
            "it has 4 tokens, and token_type of 0",
        ),
        (
            with_value(TOKENS, ARRAY, array(STRING, [text("b"), text("a"), text("b")])),
            "its tokens 0 and 2 are the same ('b')",
        ),
        (build(tensors=[]), "it holds no model"),
        (build({}), "it holds no model"),
        (build(tensors=[tensor(), tensor(offset=256)]), "it has the tensor 'w' twice"),
        (build(tensors=[tensor(dimensions=9)]), "its tensor 'w' has 9 dimensions"),
        (build(tensors=[tensor(kind=99)]), "its tensor 'w' has the unknown type 99"),
        (build(tensors=[tensor(offset=32)]), "its tensor 'w' begins at 32 of the data, and not at 0"),
        (
            build(tensors=[tensor(), tensor("v", offset=128)]),
            "its tensor 'v' begins at 128 of the data, and not at 256",
        ),
        (
            build(tensors=[tensor(shape=(33,), kind=8)]),
            "its tensor 'w' has rows of 33, which is no multiple of 32",
        ),
        (
            build(tensors=[tensor(shape=(ENORMOUS, ENORMOUS))]),
            f"it has {SIZE} of {SIZE - 256 + 4 * ENORMOUS**2:,} bytes",
        ),
        (build(num_data=255), f"it has {SIZE - 1} of {SIZE} bytes"),
        (
            build(more=[("split.count", 2, b"\2\0")]),
            "it is one of 2 parts, which llama-gguf-split --merge joins",
        ),
    ],
)
def test_what_is_damaged_is_one_sentence(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(GenerationError) as caught:
        read(tmp_path, content)
    assert (
        str(caught.value)
        == f"{str(tmp_path / 'x.gguf')!r} is no whole GGUF file: {reason}; download it again."
    )


# ---- what a file is known by -------------------------------------------------------------------------------------


DIGEST = """
import sys
from pathlib import Path
from tandem.plugins.gguf import header as gguf
real, reads = gguf.file_digest, []
gguf.file_digest = lambda *given: reads.append(given) or real(*given)
gguf.SETTLED_NS = int(sys.argv[2])
print(gguf.fingerprint(Path(sys.argv[1])), len(reads))
"""


def fingerprint(file: Path, settled_s: float = -3600) -> tuple[str, int]:
    """In a new process, and how often it read the file. settled_s: how long it must not have changed."""
    arguments = [sys.executable, "-c", DIGEST, str(file), str(int(settled_s * 1e9))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    digest, num_reads = done.stdout.split()
    return digest, int(num_reads)


def test_a_file_is_read_for_its_fingerprint_until_nothing_changes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "x.gguf"
    file.write_bytes(b"one")
    digest = hashlib.sha256(b"one").hexdigest()[:16]
    assert [fingerprint(file, settled_s=3600) for _ in range(2)] == [(digest, 1)] * 2, "it changed just now"
    assert [fingerprint(file) for _ in range(3)] == [(digest, 1), (digest, 0), (digest, 0)]
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = hashlib.sha256(b"two").hexdigest()[:16]
    assert [fingerprint(file) for _ in range(2)] == [(changed, 1), (changed, 0)], "of the same size and time"
    (record,) = (tmp_path / "cache" / "tandem" / "digests").iterdir()
    for damaged in (
        b"",
        b"[]",
        b'{"identity": 1}',
        record.read_bytes().replace(changed.encode(), b"no digest"),
    ):
        record.write_bytes(damaged)
        assert fingerprint(file) == (changed, 1)


# ---- at random ---------------------------------------------------------------------------------------------------


def test_damaged_headers_are_read_or_are_one_sentence(tmp_path: Path) -> None:
    """Of a small file, where every fault hits something; the process lives, and its memory does not grow."""
    content = build()
    outcomes = try_damaged(content, tmp_path, 300, seed=1)
    assert outcomes["refused"] > 150
    assert outcomes["read"] > 10


def try_damaged(content: bytes, folder: Path, count: int, seed: int) -> dict[str, int]:
    """How many damaged copies of a file are read, tokenizer and all, and how many are refused in one sentence."""
    fields, draw, outcomes = find_fields(content), random.Random(seed), {"read": 0, "refused": 0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        file = folder / f"{number}.gguf"
        file.write_bytes(damage(content, fields, draw))
        try:
            gguf.check(file)
            gguf_tokenizer.load(file)
            outcomes["read"] += 1
        except GenerationError as error:
            check_sentence(str(error), file)
            outcomes["refused"] += 1
        file.unlink()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH >> 10
    return outcomes


def check_sentence(sentence: str, file: Path) -> None:
    assert repr(str(file)) in sentence
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert len(sentence) < 500
