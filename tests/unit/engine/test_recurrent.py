"""Models with a recurrent state, computed by llama.cpp: rolled back to the bit, kept in bounded memory, and refused
where they cannot be. The contract (`test_contract.py`) holds for them, too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._random_batches import Bits, bits_of, count_differences_along
from tandem.engine.engine import Engine
from tandem.engine.kv import Cache, MemoryStore, TurnCaches
from tandem.engine.port import LoadOptions, Row
from tandem.errors import GenerationError
from tandem.plugins.llama import rows
from tandem.plugins.llama.runner import LlamaRunner
from tests.tiny_gguf import RECURRENT, write_gguf

Load = Callable[..., Engine]
EVERY = ("mamba2", "lfm2", "granitehybrid", "qwen35")
"""Families that are tried at every change: a state alone, short convolutions, Mamba 2 and a gated delta net beside
attention."""
FAMILIES = [
    *EVERY,
    *(
        pytest.param(each, marks=pytest.mark.nightly("four families are tried at every change"))
        for each in RECURRENT
        if each not in EVERY
    ),
]
BLOCK = rows.BLOCK
DOCUMENT, QUESTION, ANSWER = (
    tuple(range(first, first + count)) for first, count in ((1, 150), (9, 100), (50, 140))
)
ROW = Row(DOCUMENT, QUESTION)


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request: pytest.FixtureRequest, load_tiny: Load) -> Any:
    return load_tiny(f"llama F16 {request.param}").runner


@pytest.fixture
def runner(loaded: Any) -> Iterator[Any]:
    loaded.caches.store, loaded.turns = None, TurnCaches()
    yield loaded
    assert not loaded.sessions


@pytest.fixture
def hybrid(load_tiny: Load) -> Any:
    """A runner to be changed."""
    runner: Any = load_tiny("llama F16 granitehybrid").runner
    runner.caches.store, runner.turns.max_bytes = MemoryStore(1 << 26), 1 << 26
    return runner


def ask(runner: Any, answer: Sequence[int], num_logits: int = 1, session: str = "s") -> Bits:
    """[num_logits, vocab] of the first row."""
    found: Bits = bits_of(runner.forward({session: answer}, {session: num_logits}, None)[0])[0]
    return found


def open_row(runner: Any, row: Row = ROW, session: str = "s", **how: bool) -> None:
    runner.open(session, [row], 64, num_scored=0, **{"is_later_turn": False, **how})


def from_scratch(runner: Any, row: Row, answer: Sequence[int]) -> Bits:
    """Oracle, [1 + answer, vocab]: llama.cpp's own functions in a new context that only ever goes forwards."""
    lib, tokens = runner.model.lib, [*row.tokens, *answer]
    document, last = len(row.document), len(row.tokens) - 1
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = (
        512,
        64,
        64,
        1,
        1,
    )
    context, batch = lib.llama_init_from_model(runner.model.pointer, params), lib.llama_batch_init(64, 0, 1)
    found = []
    starts = [*range(0, document, BLOCK), *range(document, last, BLOCK), *range(last, len(tokens) + 1)]
    for start, end in pairwise(starts):
        batch.n_tokens = end - start
        for at in range(end - start):
            batch.token[at], batch.pos[at], batch.logits[at] = (
                tokens[start + at],
                start + at,
                at == end - start - 1,
            )
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
        assert lib.llama_decode(context, batch) == 0
        logits = lib.llama_get_logits_ith(context, end - start - 1)
        found.append(np.ctypeslib.as_array(logits, shape=(runner.vocab_size,)).copy())
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return np.stack(found[-1 - len(answer) :]).view(np.uint32)


# ---- the same bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recent_bytes", [rows.RECENT_BYTES, 0])
def test_walks_along_an_answer(runner: Any, monkeypatch: pytest.MonkeyPatch, recent_bytes: int) -> None:
    """Forwards and backwards, abandoned, over turns and with stored documents; also with as few copies as there are of
    a large state."""
    monkeypatch.setattr(rows, "RECENT_BYTES", recent_bytes)
    runner.caches.store, runner.turns.max_bytes = MemoryStore(1 << 26), 1 << 26
    assert count_differences_along(runner, 5, seed=5) == (200, 0)
    assert runner.turns.num_reused > 0
    assert runner.caches.num_hits > 0


def test_they_are_those_of_llama_cpp_from_scratch(runner: Any) -> None:
    expected = from_scratch(runner, ROW, ANSWER)
    open_row(runner)
    assert np.array_equal(ask(runner, ANSWER, len(ANSWER) + 1), expected)
    for kept in (139, 100, 101, 40, 0, 3):
        ask(runner, (*ANSWER[:kept], 200, 201, 202))
        assert np.array_equal(ask(runner, ANSWER[: kept + 1], 2), expected[kept : kept + 2])
    runner.close("s")
    assert not np.array_equal(from_scratch(runner, Row(DOCUMENT, QUESTION[1:]), ())[0], expected[0]), (
        "control"
    )


def test_a_pass_is_given_up_at_any_operation(runner: Any) -> None:
    """Some layers then have a newer state than others. llama.cpp asks after each operation whether to go on."""
    model = LlamaRunner(runner.file, LoadOptions(num_threads=1))
    expected, lib = from_scratch(model, ROW, ANSWER[:2]), model.model.lib
    num_calls, stop_at, num_stopped = 0, 0, 0

    def is_over(_: object) -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls == stop_at

    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(is_over)
    while num_calls >= stop_at:
        stop_at += 1 + stop_at // 4
        open_row(model)
        context, _ = model.sessions["s"].cache.reserve(0, 300)
        lib.llama_set_abort_callback(context.pointer, callback, None)
        for answer in ((), ANSWER[:2]):  # blocks of the prompt, then tokens
            num_calls = 0
            assert np.array_equal(ask(model, answer)[0], expected[len(answer)])
            num_stopped += num_calls > stop_at
        model.close("s")
    assert num_stopped > 30


# ---- what it takes -----------------------------------------------------------------------------------------------


@pytest.fixture
def passes(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each pass of any model."""
    sizes: list[int] = []
    decode = hybrid.model.lib.llama_decode

    def count(context: Any, batch: Any) -> int:
        sizes.append(batch.n_tokens)
        return int(decode(context, batch))

    monkeypatch.setattr(hybrid.model.lib, "llama_decode", count)
    return sizes


def test_a_rollback_computes_few_tokens_again(
    hybrid: Any, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as few copies as there are of a large state."""
    monkeypatch.setattr(rows, "RECENT_BYTES", 0)
    open_row(hybrid)
    for forgotten in range(1, 130):
        ask(hybrid, ANSWER)
        assert len(hybrid.sessions["s"].cache.marks[0]) <= 9
        passes.clear()
        ask(hybrid, (*ANSWER[:-forgotten], 200))
        most = next(power for power in (2, 8, 64, 512) if forgotten <= power)
        assert sum(passes) - 1 < (1 if most == 2 else most)
    hybrid.close("s")


def test_a_later_turn_begins_with_the_last_whole_block(hybrid: Any, passes: list[int]) -> None:
    open_row(hybrid)
    ask(hybrid, ANSWER)
    hybrid.close("s")
    later = Row(DOCUMENT, (*QUESTION, *ANSWER[:20], 7, 8))
    expected = from_scratch(hybrid, later, ())
    passes.clear()
    open_row(hybrid, later, is_later_turn=True)
    assert np.array_equal(ask(hybrid, ()), expected)
    hybrid.close("s")
    assert passes == [57, 1], "64 of the question's 100 tokens are known"


# ---- mutants, each of which walks notice ----------------------------------------------------------------------------


def is_noticed(runner: Any) -> bool:
    try:
        return count_differences_along(runner, 5, seed=5)[1] > 0
    except (AssertionError, GenerationError):  # llama.cpp notices it itself
        return True


def test_mutant_states_are_not_restored(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.Context, "write_recurrent", lambda *_: None)
    assert is_noticed(hybrid)


def test_mutant_copies_are_older_than_they_say(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, last = rows.Context.read_recurrent, {}

    def read_late(context: rows.Context, slot: int, into: Any) -> Any:
        key, state = (id(context), slot), read(context, slot, None)
        before, last[key] = last.get(key, state), state
        return before

    monkeypatch.setattr(rows.Context, "read_recurrent", read_late)
    assert is_noticed(hybrid)


def test_mutant_memory_of_copies_is_reused_while_they_are_needed(
    hybrid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, state = rows.Context.read_recurrent, None

    def read_into_one(context: rows.Context, slot: int, into: Any) -> Any:
        nonlocal state
        state = read(context, slot, state)
        return state

    monkeypatch.setattr(rows.Context, "read_recurrent", read_into_one)
    assert is_noticed(hybrid)


def test_mutant_keys_and_values_are_not_forgotten(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    crop = rows.Context.crop
    monkeypatch.setattr(rows.Context, "crop", lambda self, slot, count: count or crop(self, slot, count))
    assert is_noticed(hybrid)


def test_mutant_a_kept_state_is_of_more_tokens(hybrid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    save = rows.LlamaRows.save

    def save_less(self: rows.LlamaRows, row: int, num_tokens: int) -> Cache:
        return replace(save(self, row, num_tokens), num_tokens=max(0, num_tokens - BLOCK))

    monkeypatch.setattr(rows.LlamaRows, "save", save_less)
    assert is_noticed(hybrid)


# ---- what cannot be computed says why -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "header", "reason"),
    [
        ("llama", {"attention.causal": False}, "reads texts in both directions, and does not continue them"),
        ("llada", {}, "writes by diffusion, and not token by token"),
        (
            "lfm2",
            {"attention.sliding_window": 40},
            "has both a recurrent state and a sliding window (family lfm2), which cannot be stored yet",
        ),
        (
            "llama",
            {"attention.indexer.head_count": 2},
            "has an index of tokens beside its cache (family llama), which cannot be stored yet",
        ),
    ],
)
def test_other_families_are_one_sentence(
    tmp_path: Path, load_tiny: Load, architecture: str, header: dict[str, Any], reason: str
) -> None:
    load_tiny("llama F16")  # or skip
    file = write_gguf(tmp_path / "x.gguf", architecture=architecture, header=header)
    with pytest.raises(GenerationError) as raised:
        LlamaRunner(file)
    assert str(raised.value) == f"{str(file)!r} {reason}; use another model."


def test_pytorch_points_to_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_tiny: Load
) -> None:
    load_tiny("llama F16")  # or skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = write_gguf(tmp_path / "x.gguf", architecture="granitehybrid")
    with pytest.raises(
        GenerationError, match=r'cannot be loaded with PyTorch: .*; set engine to "llama", or'
    ):
        Engine.load(str(file), engine="torch", template="plain")
    assert Engine.load(str(file), engine="llama", template="plain").vocab_size == 261
