"""Rows of sessions as sequences of llama.cpp, computed so that their bits do not depend on company.

Every pass computes one row, and its shape is a function of that row: blocks of BLOCK tokens of a document and of what
follows it, then one token at a time. Sums are added up in an order that follows from the shape of a pass and from the
number of threads, so the bits do, too (docs/explanation/engines.md has figures on what that costs).

Each row has a slot: a sequence with a part of the key-value cache to itself (`kv_unified` is off). So its tokens lie
there in the order of their positions, whatever other rows did before. Keys and values are rolled back by forgetting
some. A recurrent state only goes forward, so copies of it are kept from before some of the passes, and what was
computed after the copy is computed again, in the same passes.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from tandem.engine.kv import Cache, CacheForm
from tandem.engine.port import IsStale, Preempted
from tandem.engine.session import RowCache, RowModel, Segment
from tandem.errors import GenerationError
from tandem.plugins.llama.library import Model, describe_failure, forget_failures

BLOCK = 64
"""Tokens of a prompt that a pass computes: shorter ones take longer per token, longer ones hardly less."""
MAX_SLOTS = BLOCK
"""Slots of one context at most: llama.cpp has room for as many results as a pass has tokens."""
CAPACITY = 256
"""Slots have a multiple of so many tokens."""
ARITHMETIC = f"rows-3 {BLOCK}"
"""Part of what identifies stored caches: another way of computing gives other last bits."""
CACHE_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}
"""Names of what keys and values are kept in -> ggml's numbers."""
MAX_RECENT, RECENT_BYTES = 64, 1 << 26
"""A row's newest recurrent states that are kept, and their memory; of earlier ones few are (`LlamaRows.mark`)."""
_WHOLE, _PARTIAL, _HEADER_BYTES, _COUNT_BYTES = 0, 1, 8, 4  # of the states that llama.cpp writes
_POLL_S = 0.01  # between two questions whether a running pass is still wanted
_ABORTED = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is computed."""

    num_threads: int
    cache_type: str  # one of CACHE_TYPES


# ---- Slots ---------------------------------------------------------------------------------------------------


class Context:
    """Some slots of equal capacity."""

    def __init__(
        self, model: Model, settings: Settings, num_slots: int, capacity: int, stop: StopFlag
    ) -> None:
        """capacity: tokens of each slot. Raises GenerationError."""
        lib = model.lib
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = num_slots * capacity, num_slots, False
        params.n_batch = params.n_ubatch = params.n_outputs_max = params.n_outputs_max_per_seq = BLOCK
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
        asked = (num_slots, BLOCK, settings.num_threads)
        understood = (
            lib.llama_n_seq_max(self.pointer),
            lib.llama_n_batch(self.pointer),
            lib.llama_n_threads(self.pointer),
        )
        if understood != asked or lib.llama_n_ctx(self.pointer) < params.n_ctx:
            raise GenerationError(
                f"This llama.cpp understood {understood} for {asked}; leave engine_library empty, or name a build of "
                "the version that Tandem knows."
            )
        lib.llama_set_abort_callback(self.pointer, stop.callback, stop.address)
        if model.adapter:
            adapters, scales = (ctypes.c_void_p * 1)(model.adapter), (ctypes.c_float * 1)(1.0)
            lib.llama_set_adapters_lora(self.pointer, adapters, 1, scales)
        self._memory = lib.llama_get_memory(self.pointer)
        self._lib, self._model = lib, model  # which must not be freed before
        self.capacity = capacity
        self._is_taken = [False] * num_slots

    @property
    def num_taken(self) -> int:
        """Number of slots in use."""
        return sum(self._is_taken)

    def take(self) -> int | None:
        """A free slot; None if there is none."""
        if all(self._is_taken):
            return None
        slot = self._is_taken.index(False)
        self._is_taken[slot] = True
        return slot

    def give_back(self, slot: int) -> None:
        """Free and empty a slot."""
        self.crop(slot, 0)
        self._is_taken[slot] = False

    def crop(self, slot: int, num_tokens: int) -> None:
        """Forget all but the first tokens; a recurrent state has to be that of no later one."""
        is_done = self._lib.llama_memory_seq_rm(self._memory, slot, num_tokens, -1)
        assert is_done

    def read(self, slot: int) -> tuple[NDArray[np.uint8], ...]:
        """The content of a slot, as bytes: a header, then the whole cache, or apart those of layers with a sliding
        window, or the recurrent state.

        Of keys and values llama.cpp writes the number of slots, and a 0 for each other one, before or after this one's
        content. Those are left out, so that any slot of any context takes it.
        """
        header, body = np.split(self._get(slot, _WHOLE), [_HEADER_BYTES])
        apart = self._lib.llama_state_seq_get_size_ext(self.pointer, slot, _PARTIAL) - _HEADER_BYTES
        sections = np.split(body, [body.size - apart]) if apart < body.size else [body]
        behind = _COUNT_BYTES * (len(self._is_taken) - 1 - slot)
        for number in range(len(sections) - self._model.is_recurrent):
            part = sections[number]
            sections[number] = part[_COUNT_BYTES * (1 + slot) : part.size - behind]
        return header, *sections

    def write(self, slot: int, sections: Sequence[NDArray[np.uint8]]) -> None:
        """Let a slot hold what `read` gave."""
        self.crop(slot, 0)
        count = np.array([len(self._is_taken)], np.uint32).view(np.uint8)
        others = np.zeros(_COUNT_BYTES * (len(self._is_taken) - 1), np.uint8)
        counted = len(sections) - self._model.is_recurrent
        padded = (part for section in sections[1:counted] for part in (count, section, others))
        self._set(slot, np.concatenate([sections[0], *padded, *sections[counted:]]), _WHOLE)

    def read_recurrent(self, slot: int, into: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """The recurrent state after all tokens of a slot. into: a state that is no longer needed, to be overwritten."""
        return self._get(slot, _PARTIAL, into)

    def write_recurrent(self, slot: int, state: NDArray[np.uint8]) -> None:
        """Replace the recurrent state of a slot, which may have been left half updated, by what `read_recurrent` gave;
        keys and values are not changed."""
        self._set(slot, state, _PARTIAL)

    def _get(self, slot: int, which: int, into: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        size = self._lib.llama_state_seq_get_size_ext(self.pointer, slot, which)
        state = np.empty(size, np.uint8) if into is None or into.size != size else into
        self._lib.llama_state_seq_get_data_ext(self.pointer, _bytes_of(state), size, slot, which)
        return state

    def _set(self, slot: int, state: NDArray[np.uint8], which: int) -> None:
        if not self._lib.llama_state_seq_set_data_ext(
            self.pointer, _bytes_of(state), state.size, slot, which
        ):
            raise GenerationError(
                f'llama.cpp does not take a stored cache ({describe_failure()}); set kv_store to "off".'
            )


def _bytes_of(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _names(num_tensors: int) -> list[str]:
    return [*(f"section {number}" for number in range(num_tensors - 1)), "tokens"]


FORM = CacheForm("np", _names, save, lambda array: array.view(np.uint8).data)
"""Rows' caches have the sections that `Context.read` gives, and the number of their `tokens`."""


class LlamaRows(RowCache):
    """A slot for each row."""

    def __init__(self, model: LlamaModel, num_rows: int, num_columns: int) -> None:
        self._model, self._num_columns = model, num_columns
        self._places: list[tuple[Context, int] | None] = [None] * num_rows
        self.lengths = [0] * num_rows  # tokens in each slot
        # [rows]: numbers of tokens, ascending -> the recurrent state after so many
        self.marks: list[dict[int, NDArray[np.uint8]]] = [{} for _ in range(num_rows)]
        # memory for such states: new memory costs as much as the copy
        self._spare: list[NDArray[np.uint8]] = []

    def reserve(self, row: int, num_columns: int) -> tuple[Context, int]:
        """The place of a row, with room for so many of its tokens."""
        place = self._places[row]
        if place is None:
            place = self._model.take(max(num_columns, self._num_columns), self._places.count(None))
        elif num_columns > place[0].capacity:
            content = place[0].read(place[1]) if self.lengths[row] else None
            self._model.give_back(*place)
            place = self._model.take(num_columns, 1)
            if content is not None:
                place[0].write(place[1], content)
        self._places[row] = place
        return place

    def rewind(self, row: int, num_tokens: int) -> int:
        """Go back to where a pass began, at most so many tokens; returns how many are left."""
        return self.restore(row, num_tokens) if num_tokens < self.lengths[row] else num_tokens

    def restore(self, row: int, num_tokens: int) -> int:
        """Go back like `rewind`, also where a pass was abandoned in the middle."""
        place = self._places[row]
        assert place is not None
        context, slot = place
        if self._model.is_recurrent:
            marks = self.marks[row]
            self._spare += [marks.pop(at) for at in list(marks) if at > num_tokens]
            num_tokens = max(marks, default=0)
            if num_tokens:
                context.write_recurrent(slot, marks[num_tokens])
        context.crop(slot, num_tokens)
        self.lengths[row] = num_tokens
        return num_tokens

    def mark(self, row: int) -> None:
        """Before a pass: let `rewind` find the recurrent state as it is now.

        The last few are kept, before them the last two at multiples of 8 tokens, of 64, and so on, and that after the
        last whole block of the prompt, with which a later turn begins.
        """
        marks, now, place = self.marks[row], self.lengths[row], self._places[row]
        if not self._model.is_recurrent or not now or now in marks:
            return
        assert place is not None
        is_block = now - max(marks, default=now) == BLOCK
        for number, at in enumerate(list(marks)):
            num_recent = min(MAX_RECENT, RECENT_BYTES // marks[at].nbytes)
            power_of_8 = 1 << ((at & -at).bit_length() - 1) // 3 * 3  # the largest that divides it
            is_useful = number == 0 or now - at < max(num_recent, 2 * power_of_8)
            if is_block or not is_useful:
                self._spare.append(marks.pop(at))
        context, slot = place
        marks[now] = context.read_recurrent(slot, self._spare.pop() if self._spare else None)

    def load(self, row: int, cache: Cache) -> None:
        """Write a document's state into the slot of a row."""
        context, slot = self.reserve(row, cache.num_tokens)
        *sections, _ = cache.tensors.values()
        context.write(slot, sections)
        self.lengths[row], self.marks[row] = cache.num_tokens, {}

    def save(self, row: int, num_tokens: int) -> Cache:
        """The state of a row, which has so many tokens and no more."""
        assert self.lengths[row] == num_tokens
        context, slot = self.reserve(row, num_tokens)
        tensors = [*context.read(slot), np.array([num_tokens])]
        return Cache(dict(zip(_names(len(tensors)), tensors, strict=True)), num_tokens)

    def release(self) -> None:
        """Give the slots back."""
        for place in self._places:
            if place is not None:
                self._model.give_back(*place)
        self._places = [None] * len(self._places)


# ---- Passes --------------------------------------------------------------------------------------------------


class StopFlag:
    """Lets a running pass be given up: llama.cpp asks between any two operations.

    It asks hundreds of times per pass, so it must not run Python for that: it calls the C library's strlen on a text of
    this process, which is empty until a thread that polls `is_stale` writes a character into it.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        self.address = ctypes.cast(self._text, ctypes.c_void_p)
        self.callback = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p)
        self._poller = ThreadPoolExecutor(1, "llama-stop")

    @contextmanager
    def watch(self, is_stale: IsStale | None) -> Iterator[None]:
        """Within, a pass stops once this says True; None: it never does."""
        self._text[0] = b"\0"
        is_over = threading.Event()
        if is_stale is not None:
            self._poller.submit(self._poll, is_stale, is_over)
        try:
            yield
        finally:
            is_over.set()

    def _poll(self, is_stale: IsStale, is_over: threading.Event) -> None:
        while not is_over.wait(_POLL_S):
            try:
                is_stopped = is_stale()
            except Exception:  # the pass itself asks, too, and raises it
                is_stopped = True
            if is_stopped:
                self._text[0] = b"\1"
                return


class LlamaModel(RowModel):
    """A file that llama.cpp computes."""

    max_tokens = 4 * BLOCK
    block = BLOCK

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._lib = model.lib
        self.vocab_size = model.vocab_size
        self.is_recurrent = model.is_recurrent
        self.keeps_turns = not model.has_window
        # With a window, a written state lacks what a shorter row would see, so rows are not moved either.
        if model.has_window:
            self.expected_tokens = model.context_length
        self._stop = StopFlag()
        self._contexts: list[Context] = []
        self._batch = model.lib.llama_batch_init(BLOCK, 0, 1)
        finalize(self, model.lib.llama_batch_free, self._batch)

    def make_cache(self, num_rows: int, num_columns: int) -> LlamaRows:
        """No slot is taken before a row needs it."""
        return LlamaRows(self, num_rows, num_columns)

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """An array that is not filled."""
        return np.empty(shape, np.float32)

    def probabilities(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> list[float]:
        """The softmax of each row of logits, at its token."""
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        chosen: list[float] = (powers[range(len(tokens)), list(tokens)] / powers.sum(axis=-1)).tolist()
        return chosen

    def take(self, num_columns: int, num_rows: int) -> tuple[Context, int]:
        """A slot for so many tokens: of a context that has room, or of a new one. num_rows: that will soon want one."""
        capacity = -(-num_columns // CAPACITY) * CAPACITY
        for context in sorted(self._contexts, key=lambda each: each.capacity):
            if context.capacity >= capacity and (slot := context.take()) is not None:
                return context, slot
        # Those that have been empty since are too small; each new one doubles what there is, so there are few.
        self._contexts = [context for context in self._contexts if context.num_taken]
        num_taken = sum(context.num_taken for context in self._contexts)
        num_slots = min(max(num_rows, num_taken), MAX_SLOTS)
        context = Context(self._model, self._settings, num_slots, capacity, self._stop)
        self._contexts.append(context)
        slot = context.take()
        assert slot is not None
        return context, slot

    def give_back(self, context: Context, slot: int) -> None:
        """This slot is free. One empty context is kept for the next question."""
        context.give_back(slot)
        if not context.num_taken:
            self._contexts = [each for each in self._contexts if each.num_taken or each is context]

    def __call__(
        self, segments: Sequence[Segment], is_stale: IsStale | None = None
    ) -> Sequence[NDArray[np.float32]]:
        """Compute the segments one after another, as each is one row of its own context."""
        return [self._compute(segment, is_stale) for segment in segments]

    def _compute(self, segment: Segment, is_stale: IsStale | None) -> NDArray[np.float32]:
        """One pass. Raises Preempted or GenerationError; then the row is as it was."""
        cache: LlamaRows = segment.cache
        row, (start,), (tokens,) = segment.first_row, segment.starts, segment.tokens
        cache.rewind(row, start)
        assert cache.lengths[row] == start
        context, slot = cache.reserve(row, start + len(tokens))
        if is_stale is not None and is_stale():
            raise Preempted
        cache.mark(row)
        batch = self._batch
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at] = token, start + at
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, slot
            batch.logits[at] = at >= len(tokens) - segment.num_logits
        try:
            while not self._decode(context, is_stale):
                cache.restore(row, start)  # the flag was meant for the pass before
        except BaseException:
            cache.restore(row, start)
            raise
        cache.lengths[row] = start + len(tokens)
        logits = np.empty((1, segment.num_logits, self.vocab_size), np.float32)
        for number, at in enumerate(range(len(tokens) - segment.num_logits, len(tokens))):
            computed = self._lib.llama_get_logits_ith(context.pointer, at)
            logits[0, number] = np.ctypeslib.as_array(computed, shape=(self.vocab_size,))
        return logits

    def _decode(self, context: Context, is_stale: IsStale | None) -> bool:
        """Compute the batch; False if it was stopped, but is not stale. Raises Preempted or GenerationError."""
        with self._stop.watch(is_stale):
            code = self._lib.llama_decode(context.pointer, self._batch)
        if code == _ABORTED:
            forget_failures()  # it logs this as one
            if is_stale is not None and is_stale():
                raise Preempted
            return False
        if code:
            raise GenerationError(
                f"llama.cpp failed with code {code} ({describe_failure()}); ask again, or restart the party."
            )
        return True
