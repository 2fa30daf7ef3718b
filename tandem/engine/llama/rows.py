"""Rows of sessions as sequences of llama.cpp, computed so that their bits do not depend on company.

Each row has a slot: a sequence with a part of the key-value cache to itself (`kv_unified` is off). So its tokens lie
there in the order of their positions, whatever other rows did before, and attention adds them up in that order.
Three kernels of llama.cpp's attention on a CPU would add up in another order; what chooses them is avoided:

- tiles, from 64 tokens of a row in one pass on: a row gets at most MAX_NEW;
- one token of one row, whose cache is split between threads: with several threads it gets a second token;
- products of some quantisations (Q4_K) take four tokens together, the rest one by one: a pass is padded to a `multiple`
  of tokens.

Padding is cropped again before anything sees it. What a quantisation needs, `find_fault` tries when it is loaded.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple
from weakref import finalize, ref

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from tandem.engine.llama.library import MAX_PADDING, Model, describe_failure, forget_failures
from tandem.engine.port import IsStale, Preempted
from tandem.engine.session import Piece
from tandem.errors import GenerationError

MAX_TOKENS = 256
"""Of one pass."""
MAX_NEW = 48
"""Of one row in one pass: a multiple of all MULTIPLES, so that padding too stays below a tile."""
MULTIPLES = (1, 2, 4, 8, MAX_PADDING)
"""Of tokens: what passes may have to be padded to."""
CAPACITY = 256
"""Slots have a multiple of so many tokens."""
ARITHMETIC = "rows-2"
"""Part of what identifies stored caches: another way of computing gives other last bits."""
CACHE_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
"""Names of what keys and values are kept in -> ggml's numbers."""
_WINDOW_ONLY, _HEADER_BYTES, _COUNT_BYTES = 1, 8, 4  # of the states that llama.cpp writes
_POLL_S = 0.01  # between two questions whether a running pass is still wanted
_ABORTED = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is computed."""

    num_threads: int
    cache_type: str  # one of CACHE_TYPES


# ---- Slots ---------------------------------------------------------------------------------------------------


class Context:
    """Some slots of equal capacity, computed together."""

    def __init__(
        self, model: Model, settings: Settings, num_slots: int, capacity: int, stop: StopFlag
    ) -> None:
        """capacity: tokens of each slot. Raises GenerationError."""
        lib = model.lib
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = num_slots * capacity, num_slots, False
        params.n_batch = params.n_ubatch = MAX_TOKENS + MAX_PADDING
        params.n_threads = params.n_threads_batch = settings.num_threads
        params.type_k = params.type_v = CACHE_TYPES[settings.cache_type]
        params.swa_full = True  # a sliding window too must be croppable
        params.no_perf = True
        self.pointer = lib.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise GenerationError(
                f"llama.cpp has no room for {num_slots} rows of {capacity} tokens: {describe_failure()}; lower "
                "max_sessions or the number of documents."
            )
        finalize(self, lib.llama_free, self.pointer)
        lib.llama_set_abort_callback(self.pointer, stop.callback, stop.address)
        if model.adapter:
            adapters = (lib.llama_adapter_lora_p_ctypes * 1)(model.adapter)
            lib.llama_set_adapters_lora(self.pointer, adapters, 1, (ctypes.c_float * 1)(1.0))
        self._memory = lib.llama_get_memory(self.pointer)
        self._lib, self._model = lib, model  # which must not be freed before
        self.capacity = capacity
        self._is_taken = [False] * num_slots

    @property
    def num_taken(self) -> int:
        """Slots in use."""
        return sum(self._is_taken)

    def take(self, count: int) -> int | None:
        """The first of so many neighbouring slots; None if there are none."""
        for first in range(len(self._is_taken) - count + 1):
            if not any(self._is_taken[first : first + count]):
                self._is_taken[first : first + count] = [True] * count
                return first
        return None

    def give_back(self, first: int, count: int) -> None:
        """These slots are free, and empty."""
        for slot in range(first, first + count):
            self.crop(slot, 0)
        self._is_taken[first : first + count] = [False] * count

    def crop(self, slot: int, num_tokens: int) -> None:
        """Forget all but the first tokens."""
        self._lib.llama_memory_seq_rm(self._memory, slot, num_tokens, -1)

    def read(self, slot: int) -> tuple[NDArray[np.uint8], ...]:
        """What a slot holds, as bytes: a header, then the whole cache, or apart those of layers with a sliding window.

        llama.cpp writes the number of slots, then a 0 for each other one, before or after this one's content. Those are
        left out, so that any slot of any context takes it.
        """
        size = self._lib.llama_state_seq_get_size(self.pointer, slot)
        state = np.empty(size, np.uint8)
        self._lib.llama_state_seq_get_data(self.pointer, _bytes_of(state), size, slot)
        header, body = np.split(state, [_HEADER_BYTES])
        of_window = self._lib.llama_state_seq_get_size_ext(self.pointer, slot, _WINDOW_ONLY) - _HEADER_BYTES
        sections = np.split(body, [body.size - of_window]) if of_window < body.size else [body]
        behind = _COUNT_BYTES * (len(self._is_taken) - 1 - slot)
        return header, *(part[_COUNT_BYTES * (1 + slot) : part.size - behind] for part in sections)

    def write(self, slot: int, sections: Sequence[NDArray[np.uint8]]) -> None:
        """Let a slot hold what `read` gave."""
        self.crop(slot, 0)
        count = np.array([len(self._is_taken)], np.uint32).view(np.uint8)
        others = np.zeros(_COUNT_BYTES * (len(self._is_taken) - 1), np.uint8)
        header, *rest = sections
        state = np.concatenate([header, *(part for section in rest for part in (count, section, others))])
        if not self._lib.llama_state_seq_set_data(self.pointer, _bytes_of(state), state.size, slot):
            raise GenerationError(
                f'llama.cpp does not take a stored cache ({describe_failure()}); set kv_store to "off".'
            )


def _bytes_of(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


@dataclass(frozen=True, slots=True)
class State:
    """The cache of one row's tokens, as llama.cpp writes it; read only."""

    sections: tuple[NDArray[np.uint8], ...]
    num_tokens: int

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return sum(section.nbytes for section in self.sections)


class StateForm:
    """The `CacheForm` of `State`."""

    framework = "np"

    def tensors(self, cache: State) -> dict[str, NDArray[Any]]:
        """As of every form."""
        sections = {f"section {number}": section for number, section in enumerate(cache.sections)}
        return sections | {"tokens": np.array([cache.num_tokens])}

    def build(self, get: Callable[[str], Any], num_tensors: int, num_tokens: int) -> State:
        """As of every form."""
        if (found := int(get("tokens")[0])) != num_tokens:
            raise ValueError(f"a state of {found} tokens, not {num_tokens}")
        return State(tuple(get(f"section {number}") for number in range(num_tensors - 1)), num_tokens)

    def save(self, tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
        """As of every form."""
        return save(dict(tensors), metadata)

    def bytes_of(self, tensor: NDArray[Any]) -> memoryview:
        """As of every form."""
        return tensor.view(np.uint8).data


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of a session that has ended."""

    rows: Sequence[State]

    @property
    def num_bytes(self) -> int:
        """Of all rows."""
        return sum(row.num_bytes for row in self.rows)


class LlamaRows:
    """A `RowCache`: neighbouring slots of one context."""

    def __init__(self, model: LlamaModel, num_rows: int, num_columns: int) -> None:
        self._model, self._num_columns = model, num_columns
        self._place: tuple[Context, int] | None = None
        self.lengths = [0] * num_rows  # tokens in each slot

    @property
    def place(self) -> tuple[Context, int]:
        """Its context and its first slot, which it gets when it first needs them."""
        if self._place is None:
            self._place = self._model.take(len(self.lengths), self._num_columns)
        return self._place

    def reserve(self, num_columns: int) -> tuple[Context, int]:
        """Its place, with room for so many tokens of each row."""
        context, first = self.place
        if num_columns > context.capacity:
            states = [context.read(first + row) if held else None for row, held in enumerate(self.lengths)]
            self.release()
            self._place = context, first = self._model.take(len(self.lengths), num_columns)
            for row, state in enumerate(states):
                if state is not None:
                    context.write(first + row, state)
        return context, first

    def crop(self, row: int, num_tokens: int) -> None:
        """Forget all but the first tokens of a row."""
        if num_tokens < self.lengths[row]:
            context, first = self.place
            context.crop(first + row, num_tokens)
            self.lengths[row] = num_tokens

    def load(self, row: int, cache: State) -> None:
        """As of every row cache."""
        context, first = self.reserve(cache.num_tokens)
        context.write(first + row, cache.sections)
        self.lengths[row] = cache.num_tokens

    def copy(self, row: int, source: Kept, source_row: int, num_tokens: int) -> None:
        """As of every row cache."""
        self.load(row, source.rows[source_row])
        self.crop(row, num_tokens)

    def save(self, row: int, num_tokens: int) -> State:
        """As of every row cache; the row has no more tokens."""
        assert self.lengths[row] == num_tokens
        context, first = self.place
        return State(context.read(first + row), num_tokens)

    def keep(self) -> Kept:
        """As of every row cache."""
        return Kept([self.save(row, length) for row, length in enumerate(self.lengths)])

    def release(self) -> None:
        """As of every row cache."""
        if self._place is not None:
            self._model.give_back(*self._place, len(self.lengths))
            self._place = None


# ---- Passes --------------------------------------------------------------------------------------------------


class StopFlag:
    """Lets a running pass be given up: llama.cpp asks between any two operations.

    It asks hundreds of times per pass, so it must not run Python for that: it calls the C library's strlen on a text of
    this process, which is empty until a thread that polls `is_stale` writes a character into it.
    """

    def __init__(self, lib: Any) -> None:
        self._text = ctypes.create_string_buffer(2)
        self.address = ctypes.cast(self._text, ctypes.c_void_p)
        self.callback = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
        self._is_stale: IsStale | None = None
        self._work = work = threading.Event()
        threading.Thread(target=_poll, args=(work, ref(self)), daemon=True, name="llama-stop").start()
        finalize(self, work.set)

    def watch(self, is_stale: IsStale | None) -> None:
        """From now on a pass stops once this says True; None: it never does."""
        self._is_stale = is_stale
        self._text[0] = b"\0"
        if is_stale is not None:
            self._work.set()

    def poll(self) -> None:
        """Ask once."""
        is_stale = self._is_stale
        if is_stale is None:
            self._work.clear()
            if self._is_stale is not None:  # since just now
                self._work.set()
            return
        try:
            is_over = is_stale()
        except Exception:  # the pass itself asks, too, and raises it
            is_over = True
        if is_over and self._is_stale is is_stale:
            self._text[0] = b"\1"


def _poll(work: threading.Event, flag: ref[StopFlag]) -> None:
    """The thread of a flag; it ends with the flag."""
    pause = threading.Event()
    while work.wait() and (alive := flag()) is not None:
        alive.poll()
        del alive
        pause.wait(_POLL_S)


class _Line(NamedTuple):
    """New tokens of one row."""

    context: Context
    slot: int
    start: int
    tokens: Sequence[int]
    logits: NDArray[np.float32]  # [wanted, vocab]: those after the last tokens, to be filled


class LlamaModel:
    """A `RowModel`."""

    max_tokens = MAX_TOKENS
    max_new = MAX_NEW
    saves_whole_rows = True
    expected_tokens = 64

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._lib = model.lib
        self.vocab_size = model.vocab_size
        self.keeps_turns = not model.has_window
        # With a window, a written state lacks what a shorter row would see, so rows are not moved either.
        if model.has_window:
            self.expected_tokens = model.context_length
        self._stop = StopFlag(model.lib)
        self._contexts: list[Context] = []
        self._batch = model.lib.llama_batch_init(MAX_TOKENS + MAX_PADDING, 0, 1)
        finalize(self, model.lib.llama_batch_free, self._batch)
        self.multiple = 1  # of tokens: what a pass is padded to
        self.is_single = False  # whether a pass has one token of one row

    def make_cache(self, num_rows: int, num_columns: int) -> LlamaRows:
        """As of every model of rows."""
        return LlamaRows(self, num_rows, num_columns)

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """As of every model of rows."""
        return np.empty(shape, np.float32)

    def probabilities(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> list[float]:
        """As of every model of rows."""
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        found: list[float] = (powers[range(len(tokens)), list(tokens)] / powers.sum(axis=-1)).tolist()
        return found

    def take(self, num_rows: int, num_columns: int) -> tuple[Context, int]:
        """Slots for so many neighbouring rows: those of a context that has room, or of a new one."""
        capacity = -(-(num_columns + self.multiple) // CAPACITY) * CAPACITY
        for context in sorted(self._contexts, key=lambda each: each.capacity):
            if context.capacity >= capacity and (first := context.take(num_rows)) is not None:
                return context, first
        # Those that have been empty since are too small; each new one doubles what there is, so there are few.
        self._contexts = [context for context in self._contexts if context.num_taken]
        num_taken = sum(context.num_taken for context in self._contexts)
        num_slots = max(num_rows, min(num_taken, self._lib.llama_max_parallel_sequences()))
        context = Context(self._model, self._settings, num_slots, capacity, self._stop)
        self._contexts.append(context)
        first = context.take(num_rows)
        assert first is not None
        return context, first

    def give_back(self, context: Context, first: int, num_rows: int) -> None:
        """These slots are free. One empty context is kept for the next question."""
        context.give_back(first, num_rows)
        if not context.num_taken:
            self._contexts = [each for each in self._contexts if each.num_taken or each is context]

    def __call__(
        self, pieces: Sequence[Piece], is_stale: IsStale | None = None
    ) -> Sequence[NDArray[np.float32]]:
        """As of every model of rows."""
        computed = [
            np.empty((piece.num_rows, piece.num_logits, self.vocab_size), np.float32) for piece in pieces
        ]
        lines = []
        for piece in pieces:  # all of them first, for one may move the rows of another
            piece.cache.reserve(max(piece.starts) + piece.num_new + self.multiple)
        for piece, logits in zip(pieces, computed, strict=True):
            cache: LlamaRows = piece.cache
            context, slot = cache.place
            for row, start in enumerate(piece.starts, piece.first_row):
                cache.crop(row, start)
                tokens = piece.tokens[row - piece.first_row]
                lines.append(_Line(context, slot + row, start, tokens, logits[row - piece.first_row]))
        try:
            for block in self._blocks(lines):
                if is_stale is not None and is_stale():
                    raise Preempted
                self._decode(block, is_stale)
        except BaseException:
            for line in lines:
                line.context.crop(line.slot, line.start)
            raise
        for piece in pieces:
            for row, start in enumerate(piece.starts, piece.first_row):
                piece.cache.lengths[row] = start + piece.num_new
        return computed

    def _blocks(self, lines: list[_Line]) -> Iterator[Sequence[_Line]]:
        """The lines that one pass computes together: neighbouring slots, equally many tokens in each."""
        if self.is_single:
            for line in lines:
                yield from _split(line)
            return
        run: list[_Line] = []
        for line in sorted(lines, key=lambda each: (id(each.context), each.slot)):
            if run and not _are_neighbours(run[-1], line):
                yield from self._cut(run)
                run = []
            run.append(line)
        yield from self._cut(run)

    def _cut(self, run: list[_Line]) -> Iterator[Sequence[_Line]]:
        """Neighbours as blocks that need little padding: powers of two divide what passes are padded to."""
        while run:
            count = len(run)
            if count * len(run[0].tokens) % self.multiple:
                count = 1 << (count.bit_length() - 1)
            yield run[:count]
            run = run[count:]

    def _padding(self, num_rows: int, num_new: int) -> int:
        """Further tokens that each row of a pass gets."""
        least = 2 if num_rows == 1 and self._settings.num_threads > 1 else 1
        padded = max(num_new, least)
        while num_rows * padded % self.multiple:
            padded += 1
        return padded - num_new

    def _decode(self, block: Sequence[_Line], is_stale: IsStale | None) -> None:
        """One pass. Raises Preempted or GenerationError; then the slots hold some of the new tokens."""
        padding = self._padding(len(block), len(block[0].tokens))
        batch, wanted = self._batch, []
        batch.n_tokens = 0
        for line in block:
            first = len(line.tokens) - len(line.logits)
            for number, token in enumerate((*line.tokens, *(0,) * padding)):
                at = batch.n_tokens
                batch.token[at], batch.pos[at] = token, line.start + number
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, line.slot
                batch.logits[at] = first <= number < len(line.tokens)
                if batch.logits[at]:
                    wanted.append((at, line.logits[number - first]))
                batch.n_tokens += 1
        others = (at for at in range(batch.n_tokens) if not batch.logits[at])
        for at in islice(others, -len(wanted) % self.multiple):
            batch.logits[at] = True
        context = block[0].context
        self._stop.watch(is_stale)
        try:
            while (code := self._lib.llama_decode(context.pointer, batch)) == _ABORTED:
                forget_failures()  # it logs this as one
                if is_stale is not None and is_stale():
                    raise Preempted
                for line in block:  # the flag was meant for the pass before
                    context.crop(line.slot, line.start)
                self._stop.watch(is_stale)
        finally:
            self._stop.watch(None)
        if code:
            raise GenerationError(
                f"llama.cpp failed with code {code} ({describe_failure()}); ask again, or restart the party."
            )
        for at, logits in wanted:
            found = self._lib.llama_get_logits_ith(context.pointer, at)
            logits[:] = np.ctypeslib.as_array(found, shape=logits.shape)
        if padding:
            for line in block:
                context.crop(line.slot, line.start + len(line.tokens))


def _are_neighbours(first: _Line, second: _Line) -> bool:
    return (
        first.context is second.context
        and first.slot + 1 == second.slot
        and len(first.tokens) == len(second.tokens)
    )


def _split(line: _Line) -> Iterable[Sequence[_Line]]:
    """One token at a time."""
    first = len(line.tokens) - len(line.logits)
    for number, token in enumerate(line.tokens):
        wanted = line.logits[max(0, number - first) : max(0, number - first + 1)]
        yield [_Line(line.context, line.slot, line.start + number, [token], wanted)]


# ---- Does this file, on this machine, give a row the same bits in any company? --------------------------------

_ONE, _OTHER, _BOTH = slice(1), slice(1, 2), slice(2)
PLANS = (
    (_ONE, (1,)),
    (_OTHER, (1,)),
    (_OTHER, (7, 3, 1, 5, 2)),
    (_OTHER, (10, 11, 3)),
    (_BOTH, (7, 3, 1, 5, 2)),
)
"""Which of two rows are fed again, and how, over and over."""


def find_fault(model: LlamaModel) -> str | None:
    """The reason why one token of one row is computed at a time; None if passes are shared. Sets what is needed.

    Other bits of one product are often lost again where its result is quantised or rounded, so that a few tokens alone
    would tell little.
    """
    rows = np.random.default_rng(1).integers(model.vocab_size, size=(2, MAX_NEW)).tolist()
    for model.multiple in MULTIPLES:
        expected = _feed(model, rows, (MAX_NEW,))
        if all(np.array_equal(_feed(model, rows[some], plan), expected[some]) for some, plan in PLANS):
            return None
    model.multiple, model.is_single = 1, True
    return "the last bits of a row depend on what else is computed with it"


def _feed(model: LlamaModel, rows: list[list[int]], plan: Sequence[int]) -> NDArray[np.float32]:
    """Logits [rows, tokens, vocab] of rows that are fed in blocks of these sizes, over and over."""
    cache = model.make_cache(len(rows), len(rows[0]))
    try:
        found: list[NDArray[np.float32]] = []
        start = 0
        for count in cycle(plan):
            tokens = [row[start : start + count] for row in rows]
            found += model([Piece(cache, 0, [start] * len(rows), tokens, len(tokens[0]))])
            start += count
            if start >= len(rows[0]):
                return np.concatenate(found, axis=1)
        raise AssertionError("a plan has at least one size")
    finally:
        cache.release()
