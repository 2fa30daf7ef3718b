"""Models in GGUF files, as llama.cpp, Ollama and LM Studio use them: found, and checked by their header."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import file_digest, sha256
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from tandem.errors import GenerationError
from tandem.system.paths import cache_folder, write_whole

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's number of a type -> its letter in the module struct."""
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")  # before each text
_VALUE_BYTES, _TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8
"""The least bytes of a key with its value, and of a tensor's entry."""
MAX_HEADER_BYTES = 1 << 26
"""262,144 tokens with half a million merges take a quarter of it."""
MAX_TEXTS, MAX_ENTRIES = 1 << 20, 1 << 16
"""The most texts of an array; the most keys, and the most tensors."""
_FIRST_BYTES = 1 << 20  # read at first; then twice as many, and so on
SETTLED_NS = 2_000_000_000
"""How long a file must not have changed for its digest to be kept."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_BLOCKS = {
    int(kind): (length, int(num_bytes))
    for length, kinds in (
        (1, "0:4 1:2 24:1 25:2 26:4 27:8 28:8 30:2"),
        (32, "2:18 3:20 6:22 7:24 8:34 9:40 20:18 39:17"),
        (64, "40:36 42:18"),
        (128, "41:18"),
        (
            256,
            "10:84 11:110 12:144 13:176 14:210 15:292 16:66 17:74 18:98 19:50 21:110 22:82 23:136 29:56 34:54 35:66",
        ),
    )
    for kind, num_bytes in (entry.split(":") for entry in kinds.split())
}
"""GGUF's number of a tensor's type -> numbers in a block of it, and bytes of that (`ggml-common.h`)."""


def _is_array(kinds: Iterable[int]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Array) and value.kind in kinds


_CHECKS: tuple[tuple[re.Pattern[str], Callable[[Any], bool], str], ...] = tuple(
    (re.compile(pattern), is_right, what)
    for pattern, is_right, what in (
        (
            r"general\.architecture|tokenizer\.ggml\.(model|pre)|tokenizer\.chat_template",
            lambda value: isinstance(value, str),
            "a text",
        ),
        (
            r"split\.count|tokenizer\.ggml\..*_token_id|[^.]*\.(context_length|block_count)",
            lambda value: type(value) is int,
            "an integer",
        ),
        (r"tokenizer\.ggml\.add_.*", lambda value: type(value) is bool, "a flag"),
        (r"tokenizer\.ggml\.(tokens|merges)", _is_array([_STRING]), "a list of texts"),
        (r"tokenizer\.ggml\.(scores|token_type)", _is_array(_SCALARS), "a list of numbers"),
        (r"[^.]*\.(context_length|block_count)", lambda value: 0 < value < 1 << 31, "1 to 2,147,483,647"),
        (
            r"general\.alignment",
            lambda value: type(value) is int and value > 0 and not value & (value - 1),
            "a power of two",
        ),
    )
)
"""Names of keys, the check of their values, and what passes it, in words."""


# ---- which file ----------------------------------------------------------------------------------------------


def find_file(model: str) -> Path | None:
    """The GGUF file that `model` stands for: itself, or the only one in a folder without other weights; else None.

    Raises GenerationError where a folder holds several, of which one must be named.
    """
    path = Path(model)
    if os.path.isfile(model):
        if model.lower().endswith(SUFFIX):
            return path
        with suppress(OSError), path.open("rb") as stream:  # Ollama's have no suffix
            return path if stream.read(4) == _MAGIC else None
        return None
    if not os.path.isdir(model):
        return None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == SUFFIX)
    if not files or any(path.glob("*.safetensors")) or any(path.glob("*.bin")):
        return None
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise GenerationError(
            f"The folder {model!r} holds {len(files)} GGUF files ({names}); name one of them."
        )
    return files[0]


_MODEL_LAYER = "application/vnd.ollama.image.model"
SERVICE_STORE = Path("/usr/share/ollama/.ollama/models")
"""That of the service that Ollama's own installer sets up."""


def find_in_ollama(name: str) -> Path:
    """The GGUF file of a model in one of Ollama's stores on this machine. name: as Ollama takes it. Raises
    GenerationError."""
    model, _, tag = name.partition(":")
    *place, short = model.split("/")
    host = ["registry.ollama.ai"] if len(place) < 2 else []
    seen = []
    for store in _ollama_stores():
        manifest = store.joinpath("manifests", *host, *(place or ["library"]), short, tag or "latest")
        try:
            layers = json.loads(manifest.read_text("utf-8"))["layers"]
            digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER)
            return store / "blobs" / str(digest).replace(":", "-")
        except PermissionError:
            seen.append(f"{str(store)!r} cannot be read by this user")
        except (OSError, ValueError, LookupError, TypeError, StopIteration):
            files = store.glob("manifests/*/*/*/*")
            names = sorted(f"{file.parent.name}:{file.name}" for file in files if file.is_file())
            seen.append(f"{str(store)!r} has {', '.join(names[:8]) or 'none'}")
    raise GenerationError(
        f"Ollama's store has no model {name!r:.100} ({'; '.join(seen)}); run `ollama pull {name:.100}`, or set "
        "OLLAMA_MODELS to a folder with its models that this user can read."
    )


def _ollama_stores() -> list[Path]:
    """The folders of this user's models and of the system's service, or the one that is named."""
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named).expanduser()]
    return [Path.home() / ".ollama/models", SERVICE_STORE]


HOME_MODELS = "~/models"


def list_models(folder: str = "") -> dict[str, Header]:
    """The chat models of a folder, or ("") of Ollama's stores and of ~/models, by the names that settings give them.

    Those without a chat template, parts of a model and damaged files are left out.
    """
    place = Path(folder or HOME_MODELS).expanduser()
    files = {} if folder else dict(list_ollama())
    for pattern in ("*", "*/*", "*/*/*"):
        for file in sorted(place.glob(pattern + SUFFIX)):
            files[f"{folder or HOME_MODELS}/{file.relative_to(place)}"] = file
    found = {}
    for name, file in files.items():
        with suppress(GenerationError):
            header = check(file)
            if "tokenizer.chat_template" in header.values:
                found[name] = header
    return found


def list_ollama() -> Iterator[tuple[str, Path]]:
    """The models of Ollama's stores: their names in the settings, and their files."""
    for store in _ollama_stores():
        for manifest in sorted(store.glob("manifests/*/*/*/*")):
            place = manifest.relative_to(store / "manifests").as_posix()
            model, _, tag = place.removeprefix("registry.ollama.ai/").removeprefix("library/").rpartition("/")
            with suppress(GenerationError):
                yield f"ollama:{model}:{tag}", find_in_ollama(f"{model}:{tag}")


# ---- what it holds -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Array:
    """The place of an array's items in a header."""

    kind: int  # of its items, as GGUF numbers types
    start: int
    ends: Sequence[int]  # of texts: where each ends; of numbers: where all end

    def __len__(self) -> int:
        if self.kind == _STRING:
            return len(self.ends)
        return (self.ends[0] - self.start) // struct.calcsize(f"<{_SCALARS[self.kind]}")


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    """The header of a GGUF file."""

    values: Mapping[str, Any]
    """Numbers, flags, texts, and arrays, of which `texts` and `numbers` give the items, by key."""
    num_parameters: int
    num_bytes: int  # of the whole file, at least
    raw: bytes = field(repr=False)

    @property
    def architecture(self) -> str:
        """The family of the model, as llama.cpp names it."""
        return str(self.values["general.architecture"])

    @property
    def split(self) -> str | None:
        """How a byte-level tokenizer splits texts; "" where the file does not say; None: it has another one."""
        is_byte_level = self.values.get("tokenizer.ggml.model") == "gpt2"
        return str(self.values.get("tokenizer.ggml.pre") or "") if is_byte_level else None

    @property
    def context_length(self) -> int | None:
        """Positions that a row may have, where the file says so."""
        return self.values.get(f"{self.architecture}.context_length")

    def memory_bytes(self, dtype: str) -> int:
        """The memory of its weights in a precision, such as "float32"."""
        return self.num_parameters * _BYTES.get(dtype, 4)

    def texts(self, key: str) -> list[bytes]:
        """The items of an array of texts, in UTF-8; none where the key is missing."""
        if (items := self.values.get(key)) is None:
            return []
        starts = (end + _LENGTH.size for end in chain((items.start,), items.ends))
        return [self.raw[start:end] for start, end in zip(starts, items.ends, strict=False)]

    def numbers(self, key: str) -> list[Any]:
        """The items of an array of numbers; none where the key is missing."""
        if (items := self.values.get(key)) is None:
            return []
        return list(struct.unpack_from(f"<{len(items)}{_SCALARS[items.kind]}", self.raw, items.start))


def check(file: Path) -> Header:
    """Read the header, once per process, and compare it with the file's size.

    Raises GenerationError, one sentence with the remedy, for what llama.cpp would refuse, and for what would end its
    process, as far as a header alone shows it.
    """
    try:
        status = file.stat()
        header = _header_of(str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError as error:
        raise GenerationError(
            f"The GGUF file {str(file)!r} cannot be read ({error.strerror}); check its path and permissions."
        ) from None
    except (struct.error, ValueError, OverflowError) as error:
        reason = str(error) if type(error) is ValueError else "its header is incomplete"
        raise GenerationError(f"{str(file)!r} is no whole GGUF file: {reason}; download it again.") from None
    if status.st_size < header.num_bytes:
        raise GenerationError(
            f"{str(file)!r} is no whole GGUF file: it has {status.st_size:,} of {header.num_bytes:,} bytes; "
            "download it again."
        )
    return header


@lru_cache(maxsize=4)
def _header_of(path: str, size: int, modified_ns: int, inode: int) -> Header:
    """The header of a file as it is now; 150,000 tokens and as many merges take a tenth of a second."""
    with open(path, "rb") as stream:
        return _read_header(_Reader(stream, size))


class _Reader:
    """Reads a header of a file of `size` bytes piece by piece; allocates nothing for what a file only claims to hold.

    The file is not mapped: one that is cut meanwhile, or a disk that fails, would end the process.
    """

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream, self._size = stream, size
        self.raw = b""
        self.place = 0

    def need(self, end: int) -> int:
        """Read the bytes before a place; returns how many there are now. Raises struct.error where the file ends before
        it, and ValueError where no header is so long."""
        if end <= len(self.raw):
            return len(self.raw)
        if end > self._size:
            raise struct.error
        if end > MAX_HEADER_BYTES:
            raise ValueError(f"its header has more than {MAX_HEADER_BYTES:,} bytes")
        goal = min(self._size, max(end, 2 * len(self.raw), _FIRST_BYTES))
        self.raw += self._stream.read(goal - len(self.raw))
        if len(self.raw) < end:
            raise struct.error
        return len(self.raw)

    def skip(self, count: int) -> int:
        """Pass so many bytes; returns where they begin."""
        start, end = self.place, self.place + count
        self.need(end)
        self.place = end
        return start

    def unpack(self, letters: str) -> tuple[Any, ...]:
        """Numbers, by their letters in the module struct."""
        form = struct.Struct(f"<{letters}")
        start = self.skip(form.size)
        return form.unpack_from(self.raw, start)

    def text(self) -> str:
        """A text; bytes that are no UTF-8 are replaced."""
        (length,) = self.unpack("Q")
        start = self.skip(length)
        return self.raw[start : self.place].decode("utf-8", "replace")

    def value(self) -> Any:
        """A type and a value of it."""
        (kind,) = self.unpack("I")
        if kind in _SCALARS:
            return self.unpack(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise ValueError(f"its header has a value of the unknown type {kind}")
        inner, count = self.unpack("IQ")
        if inner in _SCALARS:
            start = self.skip(count * struct.calcsize(f"<{_SCALARS[inner]}"))
            return Array(inner, start, (self.place,))
        if inner != _STRING:
            raise ValueError(f"its header has an array of the unknown type {inner}")
        return self._texts(count)

    def _texts(self, count: int) -> Array:
        if count > MAX_TEXTS:
            raise ValueError(f"it has an array of {count:,} texts, and {MAX_TEXTS:,} can be read")
        start = place = self.place
        have = self.need(start + count * _LENGTH.size)
        ends, raw, unpack = array("I"), self.raw, _LENGTH.unpack_from
        for _ in range(count):
            if place + _LENGTH.size > have:
                have, raw = self.need(place + _LENGTH.size), self.raw
            place += _LENGTH.size + unpack(raw, place)[0]
            ends.append(place)
        self.skip(place - start)
        return Array(_STRING, start, ends)


def _read_header(reader: _Reader) -> Header:
    """ValueError or struct.error where it is damaged."""
    (beginning,) = reader.unpack("4s")
    if beginning != _MAGIC:
        raise ValueError(f"it begins with {beginning!r}")
    (number,) = reader.unpack("I")
    if number not in (2, 3):
        raise ValueError(f"its version is {number}, and 2 and 3 can be read")
    num_tensors, num_values = reader.unpack("QQ")
    if max(num_tensors, num_values) > MAX_ENTRIES:
        raise ValueError(
            f"it has {num_values:,} keys and {num_tensors:,} tensors, and {MAX_ENTRIES:,} can be read"
        )
    reader.need(reader.place + num_tensors * _TENSOR_BYTES + num_values * _VALUE_BYTES)
    values = dict[str, Any]()
    for _ in range(num_values):
        key = reader.text()
        if key in values:
            raise ValueError(f"it says {key!r:.60} twice")
        values[key] = reader.value()
    _check_values(values)
    if (parts := values.get("split.count") or 1) > 1:
        raise ValueError(f"it is one of {parts} parts, which llama-gguf-split --merge joins")
    if not num_tensors or "general.architecture" not in values:
        raise ValueError("it holds no model")
    alignment = values.get("general.alignment", 32)
    num_parameters, num_bytes = _read_tensors(reader, num_tensors, alignment)
    data = -(-reader.place // alignment) * alignment
    header = Header(values, num_parameters, data + num_bytes, reader.raw[: reader.place])
    _check_tokens(header)
    return header


def _check_values(values: Mapping[str, Any]) -> None:
    """ValueError where a value that matters is of another type than its key wants, or is none that can be."""
    for key, value in values.items():
        for pattern, is_right, what in _CHECKS:
            if pattern.fullmatch(key) and not is_right(value):
                shown = f"an array of {len(value):,}" if isinstance(value, Array) else f"{value!r:.60}"
                raise ValueError(f"its {key!r:.60} is {shown}, and not {what}")


def _read_tensors(reader: _Reader, count: int, alignment: int) -> tuple[int, int]:
    """Number of all weights, and the bytes of their data."""
    names, num_weights, place, end = set[str](), 0, 0, 0
    for _ in range(count):
        name = reader.text()
        if name in names:
            raise ValueError(f"it has the tensor {name!r:.60} twice")
        names.add(name)
        (num_dimensions,) = reader.unpack("I")
        if num_dimensions > 4:
            raise ValueError(f"its tensor {name!r:.60} has {num_dimensions} dimensions")
        shape = reader.unpack("Q" * num_dimensions)
        kind, offset = reader.unpack("IQ")
        if kind not in _BLOCKS:
            raise ValueError(f"its tensor {name!r:.60} has the unknown type {kind}")
        length, num_bytes = _BLOCKS[kind]
        if shape and shape[0] % length:
            raise ValueError(
                f"its tensor {name!r:.60} has rows of {shape[0]:,}, which is no multiple of {length}"
            )
        if offset != place:
            raise ValueError(
                f"its tensor {name!r:.60} begins at {offset:,} of the data, and not at {place:,}"
            )
        num_weights += math.prod(shape)
        end = place + math.prod(shape) // length * num_bytes
        place = -(-end // alignment) * alignment
    return num_weights, end


def _check_tokens(header: Header) -> None:
    """ValueError for tokens that llama.cpp ends its process for, or that lack what belongs to each."""
    tokens = header.texts("tokenizer.ggml.tokens")
    for name in ("scores", "token_type"):
        items = header.values.get(f"tokenizer.ggml.{name}")
        if items is not None and len(items) < len(tokens):
            raise ValueError(f"it has {len(tokens):,} tokens, and {name} of {len(items):,}")
    if len(set(tokens)) < len(tokens):
        first = dict[bytes, int]()
        for index, token in enumerate(tokens):
            if token and first.setdefault(token, index) != index:
                shown = token.decode("utf-8", "replace")
                raise ValueError(f"its tokens {first[token]} and {index} are the same ({shown!r:.60})")


# ---- its content -------------------------------------------------------------------------------------------


def fingerprint(file: Path) -> str:
    """16 hexadecimal digits of a file's content, from its SHA-256, which takes a second per gigabyte.

    So a digest is kept in the user's cache, with the file's device, inode, size and both times, and holds until one of
    these differs. Whatever writes to a file sets the time of its last change (ctime) to that of the system's clock, and
    no program can set another one. A file that had changed shortly before it was read, within which time the clock of
    its file system may have stood still, is read again the next time. What goes unnoticed: a clock that is set back to
    the very nanosecond, a disk that is written to below its file system, and for some seconds a program that has the
    file mapped and writes to it. Digests say what is the same, and not whom to trust: who can do that could change what
    is in memory as well.
    """
    return _digest_of(str(file.resolve()), *_identify(file.stat()))[:16]


def _identify(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=8)
def _digest_of(path: str, *identity: int) -> str:
    """The SHA-256 of a file, from the cache if it is there."""
    record = cache_folder() / "digests" / f"{sha256(os.fsencode(path)).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(record.read_text("utf-8"))
        if kept["identity"] == list(identity) and re.fullmatch("[0-9a-f]{64}", kept["sha256"]):
            return str(kept["sha256"])
    begun_ns = 0
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_bytes(b"")  # tells the time, by the clock of a file system
        begun_ns = record.stat().st_mtime_ns
    with open(path, "rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
        is_same = _identify(os.fstat(file.fileno())) == identity
    if is_same and identity[-1] < begun_ns - SETTLED_NS:
        with suppress(OSError):  # then it is computed again the next time
            write_whole(record, json.dumps({"path": path, "identity": identity, "sha256": digest}).encode())
    return digest
