"""What every engine promises (`tandem.engine.port`), on PyTorch and on llama.cpp, of the same random weights.

What is expected are the bits of the same row, alone in a session of its own, in one pass or token by token.
"""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._random_batches import Bits, StaleAt, bits_of, compute, compute_alone, count_differences
from tandem.aggregation.document_weights import log_evidence, question_likelihood
from tandem.engine.engine import Engine
from tandem.engine.kv import CacheStore, DiskStore, MemoryStore, TurnCaches
from tandem.engine.port import Preempted, Row
from tandem.engine.session import Runner
from tandem.errors import GenerationError
from tests.tiny_gguf import RECURRENT

Load = Callable[..., Engine]
KINDS: list[Any] = [
    "torch Q8_0",
    pytest.param("growing Q8_0", marks=pytest.mark.nightly("its passes are many and slow")),
    "llama Q8_0",
    "llama Q4_0",
    "llama F16",
    "llama F16 mamba2",
    "llama F16 qwen35",
    *(
        pytest.param(f"llama F16 {each}", marks=pytest.mark.nightly("two families are tried at every change"))
        for each in RECURRENT
        if each not in ("mamba2", "qwen35")
    ),
]
"""Engine (growing: PyTorch without batches), quantisation, and architecture if it is another than llama."""


@pytest.fixture(scope="module", params=KINDS)
def loaded(request: pytest.FixtureRequest, load_tiny: Load) -> Engine:
    return load_tiny(request.param)


@pytest.fixture
def engine(loaded: Engine) -> Iterator[Engine]:
    """One that has computed anything, and keeps nothing; every test closes what it opened."""
    assert loaded.runner.fault in (None, "batching is off")
    loaded.caches.store, loaded.turns = None, TurnCaches()
    loaded.runner.turns = loaded.turns
    yield loaded
    assert not loaded.runner.sessions  # type: ignore[attr-defined]


@pytest.fixture
def runner(engine: Engine) -> Runner:
    return engine.runner


def tokens_of(count: int, seed: int = 1) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(261) for _ in range(count))


def rows_of(*lengths: int, question: int = 5) -> list[Row]:
    """With documents of these lengths and one question."""
    return [Row(tokens_of(length, 100 + length), tokens_of(question, 7)) for length in lengths]


def alone(runner: Runner, row: Row, answer: Sequence[int] = (), num_logits: int = 1, block: int = 1) -> Bits:
    """[num_logits, vocab]."""
    return compute_alone(runner, row, tuple(answer), num_logits, block)


def open_rows(runner: Runner, session: str, rows: Sequence[Row], room: int = 64, **how: Any) -> None:
    runner.open(session, rows, room, **{"num_scored": 0, "is_later_turn": False} | how)


def ask(runner: Runner, session: str, answer: Sequence[int] = (), num_logits: int = 1) -> Bits:
    return bits_of(runner.forward({session: answer}, {session: num_logits}, None)[0])


def assert_as_alone(
    runner: Runner, rows: Sequence[Row], found: Bits, answer: Sequence[int] = (), num_logits: int = 1
) -> None:
    """found: [rows, num_logits, vocab]."""
    assert found.shape == (len(rows), num_logits, runner.vocab_size)
    for row, bits in zip(rows, found, strict=True):
        assert np.array_equal(bits, alone(runner, row, answer, num_logits))


# ---- company, blocks, rollbacks -------------------------------------------------------------------------------


def test_random_batches_have_the_bits_of_rows_alone(runner: Runner) -> None:
    """Sessions of 1 to 16 rows, stored documents, blocks of 1 to 8 tokens, crops, abandoned passes."""
    runner.caches.store = MemoryStore(1 << 26)
    assert count_differences(runner, 12, seed=5, max_rows=16) == (36, 0)
    assert runner.caches.num_hits > 0


@pytest.mark.parametrize("num_others", [2, 15])
def test_a_row_does_not_see_its_company(runner: Runner, num_others: int) -> None:
    """Neither that in its own session, nor other sessions, that begin and go while it is computed."""
    rows, answer = rows_of(9, *range(20, 20 + num_others)), tokens_of(6)
    open_rows(runner, "s", rows)
    for number in range(len(answer) + 1):
        open_rows(runner, "t", rows[:: -1 if number % 2 else 1])
        answers = dict.fromkeys("ts" if number % 3 else "st", answer[:number])
        found = [bits_of(logits) for logits in runner.forward(answers, {}, None)]
        runner.close("t")
    runner.close("s")
    for session, others in zip(found[:: 1 if number % 3 else -1], (rows, rows), strict=True):
        assert_as_alone(runner, others, session, answer)


@pytest.mark.parametrize("block", [3, 8, 61, 140])
def test_blocks_have_the_bits_of_single_tokens(runner: Runner, block: int) -> None:
    """All logits of an answer of 140 tokens."""
    (row, other), answer = rows_of(30, 45), tokens_of(140)
    expected = alone(runner, row, answer, len(answer) + 1)
    assert np.array_equal(alone(runner, row, answer, len(answer) + 1, block), expected)
    ends = range(len(answer) % block, len(answer) + 1, block)
    found = compute(runner, [other, row], *((answer[:end], min(block, end + 1)) for end in ends))
    together = np.concatenate([logits[1] for logits in found])
    assert np.array_equal(together, expected[-len(together) :])


def test_logits_that_are_known_are_not_computed_again(runner: Runner) -> None:
    """Neither after a rollback to them, nor where the next ones are wanted together with them."""
    rows, answer = rows_of(12, 0), tokens_of(9)
    open_rows(runner, "s", rows)
    ask(runner, "s", answer[:6])
    ask(runner, "s", answer, 4)
    calls = []

    def ask_counting(tokens: Sequence[int], num_logits: int) -> None:
        asked = StaleAt(1 << 30)
        (logits,) = runner.forward({"s": tokens}, {"s": num_logits}, only_here(asked))
        calls.append(asked.num_calls)
        assert_as_alone(runner, rows, bits_of(logits), tokens, num_logits)

    for kept, num_logits in ((8, 3), (7, 2), (7, 1)):
        runner.sessions["s"].crop(kept)
        ask_counting(answer[:kept], num_logits)
    for num_logits in (1, 2, 3):
        ask_counting((*answer[:7], 200, 201, 202)[: 7 + num_logits], num_logits)
    runner.close("s")
    assert calls == [0, 0, 0, calls[3], calls[3], calls[3]]


def test_rows_grow_beyond_what_was_expected(runner: Runner) -> None:
    """Twice beyond the first capacity of both engines, beside another session."""
    rows, answer = rows_of(3, 31), tokens_of(560)
    open_rows(runner, "s", rows, room=0)
    open_rows(runner, "t", rows[::-1])
    for end in (0, 1, 30, 70, 230, 260, 261, 500, 560):
        found = ask(runner, "s", answer[:end])
        assert_as_alone(runner, rows[::-1], ask(runner, "t", answer[:5]), answer[:5])
    assert_as_alone(runner, rows, found, answer)
    runner.close("t")
    runner.close("s")


def test_calls_may_come_from_any_thread(runner: Runner) -> None:
    rows, answer = rows_of(12, 20), tokens_of(6)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(open_rows, runner, "s", rows).result()
        ask(runner, "s", answer[:3])
        found = pool.submit(ask, runner, "s", answer).result()
        assert_as_alone(runner, rows, found, answer)
        pool.submit(runner.close, "s").result()


# ---- passes that are abandoned --------------------------------------------------------------------------------


def test_a_pass_is_abandoned_while_it_runs(runner: Runner) -> None:
    """By another thread, at any moment."""
    rows, answer = rows_of(400, 300, 420), tokens_of(300)
    expected = [alone(runner, row, answer, block=300) for row in rows]
    begin = time.perf_counter()
    compute(runner, rows, (answer, 1))
    seconds, num_preempted = time.perf_counter() - begin, 0
    for part in range(8):
        is_stale = threading.Event()
        timer = threading.Timer(seconds * part / 8, is_stale.set)
        open_rows(runner, "s", rows)
        timer.start()
        try:
            runner.forward({"s": answer}, {}, is_stale.is_set)
        except Preempted:
            num_preempted += 1
        timer.join()
        assert np.array_equal(ask(runner, "s", answer)[:, 0], np.concatenate(expected))
        runner.close("s")
    assert num_preempted >= 2


def test_whole_passes_are_kept(runner: Runner) -> None:
    """What is computed again after half of the questions were asked is less than half."""
    rows = rows_of(700)
    num_questions = count_questions(runner, rows)
    asked = StaleAt(num_questions // 2)
    open_rows(runner, "s", rows)
    with pytest.raises(Preempted):
        runner.forward({"s": ()}, {}, only_here(asked))
    again = StaleAt(1 << 30)
    runner.forward({"s": ()}, {}, only_here(again))
    runner.close("s")
    assert num_questions // 4 < again.num_calls < num_questions * 3 // 4


def only_here(is_stale: Callable[[], bool]) -> Callable[[], bool]:
    """Asked by this thread alone; an engine may ask from others, at any time."""
    here = threading.get_ident()
    return lambda: threading.get_ident() == here and is_stale()


def count_questions(runner: Runner, rows: Sequence[Row]) -> int:
    never = StaleAt(1 << 30)
    open_rows(runner, "s", rows)
    runner.forward({"s": ()}, {}, only_here(never))
    runner.close("s")
    return never.num_calls


def test_an_interruption_leaves_rows_as_they_were(runner: Runner) -> None:
    rows, answer = rows_of(100, 12), tokens_of(3)
    open_rows(runner, "s", rows)
    asked = StaleAt(1)

    def interrupt() -> bool:
        if asked():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        runner.forward({"s": answer}, {}, only_here(interrupt))
    assert_as_alone(runner, rows, ask(runner, "s", answer), answer)
    runner.close("s")


# ---- what is kept of documents and turns ----------------------------------------------------------------------

TEXTS = ["a 1 ab\n\n" * 9, "2 12", "a"]


def logits_of(engine: Engine, texts: Sequence[str] = TEXTS) -> Bits:
    """[2, rows, vocab]: after the prompt and after some tokens."""
    engine.open("s", "b 1", texts, 40)
    try:
        return np.stack([bits_of(engine.next_logits("s", tokens)) for tokens in ((), tokens_of(4))])
    finally:
        engine.close("s")


@pytest.fixture(params=["memory", "disk"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path, engine: Engine) -> Callable[[], CacheStore]:
    """Of what was stored before, as another process sees it."""
    memory = MemoryStore(1 << 26)

    def make() -> CacheStore:
        if request.param == "memory":
            return memory
        return DiskStore(
            tmp_path, engine.runner.computing_fingerprint, 1 << 30, pytest.fail, engine.runner.form
        )

    return make


def test_stored_documents_have_the_bits_of_computed_ones(
    engine: Engine, load_tiny: Load, request: pytest.FixtureRequest, make_store: Callable[[], CacheStore]
) -> None:
    """Whether a question stored them or they were computed ahead, in this engine or another of the same file."""
    expected = logits_of(engine)
    engine.caches.store = make_store()
    engine.document_cache(TEXTS[1])
    before = engine.caches.num_misses, engine.caches.num_hits
    assert np.array_equal(logits_of(engine, TEXTS[::-1]), expected[:, ::-1])
    assert (engine.caches.num_misses - before[0], engine.caches.num_hits - before[1]) == (2, 1)
    other = load_tiny(request.node.callspec.params["loaded"])
    other.caches.store = make_store()
    assert np.array_equal(logits_of(other), expected)
    assert other.caches.statistics() == {
        "kv_hits": 3,
        "kv_misses": 0,
        "kv_bytes": other.caches.store.num_bytes,
    }


def test_a_cache_of_other_tokens_is_noticed(engine: Engine) -> None:
    """The control of these comparisons."""
    expected, tokens = logits_of(engine), engine.document_tokens(TEXTS[0])
    engine.caches.store = store = MemoryStore(1 << 26)
    store.put(tokens, engine.runner.compute_document((*tokens[:5], tokens[5] ^ 1, *tokens[6:])))
    assert not np.array_equal(logits_of(engine)[:, 0], expected[:, 0])


def test_only_documents_worth_keeping_go_to_the_store(engine: Engine) -> None:
    engine.caches.store = store = MemoryStore(1 << 26)
    rows = [Row((5, 6, 7), (8,)), Row((5, 6, 9), (8,), is_stored=False), Row((), (8,))]
    compute(engine.runner, rows, ((), 1))
    assert len(store) == 1
    assert store.get((5, 6, 7)) is not None
    hits = engine.caches.num_hits
    compute(engine.runner, [Row((5, 6, 7), (8,), is_stored=False)], ((), 1))
    assert engine.caches.num_hits == hits + 1, "what is there is used all the same"


QUESTION = tokens_of(100, 3)
FIRST = [Row(tokens_of(30, 2), QUESTION), Row(tokens_of(90, 4), QUESTION)]
SAID = tokens_of(8, 5)


def num_reused(runner: Any, num_tokens: int) -> int:
    """Of so many tokens behind a document that two turns share: where pieces have a fixed shape, whole blocks of the
    first one's prompt."""
    block = runner.row_model.block
    return num_tokens if block is None else min(num_tokens, len(QUESTION) - 1) // block * block


def second_turn(said: Sequence[int] = SAID) -> list[Row]:
    return [Row(row.document, (*row.rest, *said, 9, 9, 4)) for row in FIRST]


def play_first_turn(runner: Runner, said: Sequence[int] = SAID) -> None:
    open_rows(runner, "first", FIRST)
    ask(runner, "first", said)
    runner.close("first")


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), slice(1, None)])
def test_a_later_turn_has_the_bits_of_one_that_computes_all(runner: Runner, order: slice) -> None:
    runner.turns.max_bytes = 1 << 28
    play_first_turn(runner)
    rows, answer = second_turn()[order], tokens_of(5)
    open_rows(runner, "second", rows, is_later_turn=True)
    assert_as_alone(runner, rows, ask(runner, "second", answer, 3), answer, 3)
    runner.close("second")
    assert runner.turns.num_reused == len(rows) * num_reused(runner, len(QUESTION) + len(SAID))


def test_a_later_turn_uses_what_stands_of_one_that_was_rolled_back(runner: Runner) -> None:
    runner.turns.max_bytes = 1 << 28
    open_rows(runner, "first", FIRST)
    ask(runner, "first", (*SAID, 1, 2, 3))
    runner.sessions["first"].crop(len(SAID))
    with suppress(Preempted):
        runner.forward({"first": (*SAID, 3, 3)}, {}, StaleAt(0))
    runner.close("first")
    rows = second_turn((*SAID[:5], 200, 201))
    open_rows(runner, "second", rows, is_later_turn=True)
    assert_as_alone(runner, rows, ask(runner, "second"))
    runner.close("second")
    assert runner.turns.num_reused == len(rows) * num_reused(runner, len(QUESTION) + 5)


@pytest.mark.parametrize("is_later_turn", [False, True])
def test_nothing_is_shared_where_nothing_is_kept(runner: Runner, is_later_turn: bool) -> None:
    """Nor do first questions look."""
    runner.turns.max_bytes = 0 if is_later_turn else 1 << 28
    play_first_turn(runner)
    rows = second_turn()
    open_rows(runner, "second", rows, is_later_turn=is_later_turn)
    assert_as_alone(runner, rows, ask(runner, "second"))
    runner.close("second")
    assert runner.turns.num_reused == 0


# ---- the likelihood of the question ---------------------------------------------------------------------------

ASKED = [Row(tokens_of(40, 2), tokens_of(70, 3)), Row((), tokens_of(70, 3)), Row((5,), tokens_of(70, 3))]
NUM_SCORED = 65


def likelihoods(runner: Runner, rows: Sequence[Row] = ASKED, **how: Any) -> tuple[float, ...]:
    """Of a session of its own."""
    open_rows(runner, "s", rows, num_scored=NUM_SCORED, **how)
    try:
        ask(runner, "s")
        return runner.likelihoods("s")
    finally:
        runner.close("s")


def told_by(logits: Bits, following: Sequence[int]) -> float:
    """Oracle: in float64. logits: [tokens, vocab]."""
    values = logits.view(np.float32).astype(np.float64)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    told = values[range(len(following)), list(following)]
    return question_likelihood(sum(log_evidence(np.exp(told).tolist())), len(following))


def test_likelihoods_are_what_the_logits_say(runner: Any) -> None:
    found = likelihoods(runner)
    for row, likelihood in zip(ASKED, found, strict=True):
        prompt, following = row.tokens[:-NUM_SCORED], row.tokens[-NUM_SCORED:]
        first = Row((), (*prompt, following[0])) if prompt else Row((), following[:1])
        logits = alone(runner, first, following[1:-1], NUM_SCORED - 1)
        is_rounded = (
            runner.row_model.block is not None
        )  # the question is computed in blocks, and these logits are not
        assert likelihood == pytest.approx(told_by(logits, following[1:]), abs=0.5 if is_rounded else 1e-3)
    assert len(set(found)) == len(ASKED)


def test_likelihoods_do_not_depend_on_how_they_are_computed(runner: Runner) -> None:
    wanted = likelihoods(runner)
    assert tuple(likelihoods(runner, [row])[0] for row in ASKED) == wanted
    runner.caches.store = MemoryStore(1 << 26)
    assert likelihoods(runner) == wanted
    assert likelihoods(runner) == wanted
    assert runner.caches.num_hits > 0
    runner.turns.max_bytes = 1 << 28
    for _ in range(2):  # then the kept rows hold the question itself
        assert likelihoods(runner, is_later_turn=True) == wanted
    assert runner.turns.num_reused > 0


def test_likelihoods_in_company_after_interruptions_and_later_passes(runner: Runner) -> None:
    wanted = likelihoods(runner)
    for call in range(0, 8, 2):
        open_rows(runner, "s", ASKED, num_scored=NUM_SCORED)
        open_rows(runner, "t", ASKED)
        with suppress(Preempted):
            runner.forward({"t": (), "s": ()}, {}, StaleAt(call))
        for answer in ((), (5, 6), ()):
            logits, _ = runner.forward({"s": answer, "t": answer}, {}, None)
            assert_as_alone(runner, ASKED, bits_of(logits), answer)
            assert runner.likelihoods("s") == wanted
        assert runner.likelihoods("t") == (0.0,) * len(ASKED), "nobody asked"
        runner.close("s")
        runner.close("t")


# ---- both engines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_engines_compute_the_same_function(load_tiny: Load, kind: str) -> None:
    """To a tolerance: what enters a matrix is quantised by llama.cpp too, with 8 bits, and its caches have 16. Other
    weights tell other things."""
    rows, answer = rows_of(40, 0, 300), tokens_of(300)
    hows = {f"torch {kind}": 0, f"llama {kind}": 0, f"llama  {kind}": 1}
    one, other, control = (load_tiny(how, seed=seed).runner for how, seed in hows.items())
    found = [compute(each, rows, (answer, 20))[0].view(np.float32).ravel() for each in (one, other, control)]
    assert np.corrcoef(found)[0, 1] > 0.999  # the error is 4 % of the spread of logits
    assert np.corrcoef(found)[0, 2] < 0.5
    assert likelihoods(one) == pytest.approx(likelihoods(other), rel=0.02)


def test_close_frees(runner: Runner) -> None:
    """Whether anything was computed or not."""
    for answers in ((), ((1, 2),)):
        open_rows(runner, "s", rows_of(5, 6))
        kept = weakref.ref(runner.sessions["s"])  # type: ignore[attr-defined]
        for answer in answers:
            ask(runner, "s", answer)
        assert "s" in runner.sessions
        runner.close("s")
        runner.close("s")  # twice is fine
        assert "s" not in runner.sessions
        assert kept() is None


def test_wrong_use_is_one_sentence(engine: Engine) -> None:
    engine.open("a", "b", TEXTS, 8)
    with pytest.raises(GenerationError, match=r"^Session 'a' is already open; close it first\.$"):
        engine.open("a", "b", [], 8)
    with pytest.raises(GenerationError, match=r"^Session 'z' is not open; open it first\.$"):
        engine.forward({"a": [], "z": []})
    with pytest.raises(GenerationError, match=r"^3 logits are wanted of 1 tokens; ask for 1 to 2\.$"):
        engine.forward({"a": [5]}, {"a": 3})
    for token in (-1, 261):
        with pytest.raises(GenerationError, match=rf"^Token {token} is outside .*\[0, 261\); check"):
            engine.next_logits("a", [token])
    engine.close("a")
    with pytest.raises(GenerationError, match=r"1,?024|context"):
        engine.open("a", "ab 1" * 600, [], 8)
    assert "a" not in engine.runner.sessions
