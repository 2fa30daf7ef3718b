"""Caches of documents: a stored one gives the very bits of a computed one, for every family; the memory store.

The oracle for values is an uncached pass; mutants (other padding, positions, documents) show that it can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tandem.engine.engine import Engine, Preempted, make_rows
from tandem.engine.kv import MemoryStore
from tandem.engine.prompt import Prompt
from tandem.errors import GenerationError
from tandem.plugins.torch import session as sessions
from tandem.plugins.torch.kv import DocumentCache

# Fixed, since the fixtures of conftest.py are not importable.
NAMES = ["qwen2", "qwen2-sliding", "llama", "llama-grouped", "opt", "phi", "gpt-neox"]
DOCUMENTS = [
    "Mira likes puzzle games.",
    "",
    "The best rated puzzle game is Vantelu Cor, and it has 40 levels.",
]
QUERY = "Which game should Mira try?"
TOKENS = [17, 250, 33, 8]

Save = Callable[..., Path]


@pytest.fixture(scope="module", params=[*NAMES, "llama growing", "opt growing", "qwen2-sliding growing"])
def engine(request: pytest.FixtureRequest, save_model: Save) -> Engine:
    """One engine per family, and some that fell back."""
    name, _, how = request.param.partition(" ")
    return Engine.load(str(save_model(name)), num_threads=1, is_batched=not how)


@pytest.fixture(scope="module", params=["llama", "opt", "phi"])
def fallback(request: pytest.FixtureRequest, save_model: Save) -> Engine:
    """Engines with a growing cache."""
    return Engine.load(str(save_model(request.param)), num_threads=1, is_batched=False)


@pytest.fixture(scope="module")
def llama(save_model: Save) -> Engine:
    return Engine.load(str(save_model("llama-grouped")), num_threads=1)


@pytest.fixture(autouse=True)
def no_store(request: pytest.FixtureRequest) -> None:
    """The engines are shared by the tests; each begins without a store."""
    for name in {"engine", "llama", "fallback"} & set(request.fixturenames):
        request.getfixturevalue(name).caches.store = None


def logits(engine: Engine, documents: Sequence[str] = DOCUMENTS) -> torch.Tensor:
    """Those after the prompt and after some tokens, [2, rows, vocab]."""
    engine.open("s", QUERY, documents, 40)
    try:
        return torch.stack([engine.next_logits("s", tokens) for tokens in ([], TOKENS)])
    finally:
        engine.close("s")


def uncached(engine: Engine, documents: Sequence[str] = DOCUMENTS) -> torch.Tensor:
    """Oracle: fresh passes over single rows without padding, mask, positions or cache."""
    prompt = engine.build_prompt(QUERY, documents, 40)
    rows = [[*document, *prompt.query_tokens] for document in prompt.document_tokens]
    with torch.inference_mode():
        passes = [
            [
                engine.runner.model(input_ids=torch.tensor([[*row, *tokens]]), use_cache=False).logits[0, -1]
                for row in rows
            ]
            for tokens in ([], TOKENS)
        ]
    return torch.stack([torch.stack(each) for each in passes])[..., : engine.vocab_size]


def is_right(engine: Engine) -> bool:
    return torch.allclose(logits(engine), uncached(engine), atol=1e-4, rtol=1e-4)


def test_stored_equals_computed_bit_for_bit_and_an_uncached_pass_to_tolerance(engine: Engine) -> None:
    computed = logits(engine)
    engine.caches.store = MemoryStore(1 << 20)
    before = engine.caches.num_misses, engine.caches.num_hits
    storing, fetched = logits(engine), logits(engine)
    assert torch.equal(storing, computed)
    assert torch.equal(fetched, computed)
    after = engine.caches.num_misses, engine.caches.num_hits
    assert (after[0] - before[0], after[1] - before[1]) == (3, 3)
    torch.testing.assert_close(fetched, uncached(engine), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_bit_for_bit_too(save_model: Save, dtype: str) -> None:
    engine = Engine.load(str(save_model("qwen2")), dtype=dtype, num_threads=1)
    computed = logits(engine)
    engine.caches.store = MemoryStore(1 << 20)
    assert torch.equal(logits(engine), computed)
    assert torch.equal(logits(engine), computed)
    assert engine.document_cache(DOCUMENTS[0]).keys[0].dtype == getattr(torch, dtype)


def test_shapes_and_bytes(llama: Engine) -> None:
    """Three layers, one key-value head of 8, float32."""
    cache = llama.document_cache(DOCUMENTS[0])
    num_tokens = len(llama.document_tokens(DOCUMENTS[0]))
    assert [tuple(each.shape) for each in cache.keys + cache.values] == [(1, num_tokens, 8)] * 6
    assert cache.num_tokens == num_tokens
    assert cache.num_bytes == 3 * 2 * num_tokens * 8 * 4


def test_mutant_padding_on_the_right(fallback: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pad_left = sessions.pad_left

    def on_the_right(
        rows: Sequence[torch.Tensor | None], num_columns: int, device: torch.device
    ) -> torch.Tensor:
        batch = pad_left(rows, num_columns, device)
        for row, tensor in enumerate(rows):
            if tensor is not None:
                batch[row] = batch[row].roll(tensor.shape[1] - num_columns, dims=1)
        return batch

    assert is_right(fallback)
    monkeypatch.setattr(sessions, "pad_left", on_the_right)
    assert not is_right(fallback)


def test_mutant_positions_off_by_one(fallback: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_document = sessions.compute_document

    def shifted(model: Any, tokens: Sequence[int], is_stale: Any) -> DocumentCache:
        def call(ids: Any, mask: Any, positions: torch.Tensor, cache: Any, is_stale: Any) -> torch.Tensor:
            result: torch.Tensor = model(ids, mask, positions + 1, cache, is_stale)
            return result

        call.device = model.device  # type: ignore[attr-defined]
        return compute_document(call, tokens, is_stale)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "compute_document", shifted)
    assert not is_right(fallback)


class StaleAt:
    """is_stale that turns true at its `call`-th question."""

    def __init__(self, call: int) -> None:
        self.calls_left = call

    def __call__(self) -> bool:
        self.calls_left -= 1
        return self.calls_left < 0


@pytest.mark.parametrize("call", range(12))
def test_preempted_anywhere_what_whole_documents_had_is_kept(fallback: Engine, call: int) -> None:
    """Three layers a document, three documents, then the query; no store: the session itself keeps them."""
    computed = logits(fallback)
    misses = fallback.caches.num_misses
    fallback.open("s", QUERY, DOCUMENTS, 40)
    with pytest.raises(Preempted):
        fallback.next_logits("s", [], is_stale=StaleAt(call))
    assert fallback.caches.num_misses - misses == min(3, call // 3)
    again = torch.stack([fallback.next_logits("s", tokens) for tokens in ([], TOKENS)])
    fallback.close("s")
    assert torch.equal(again, computed)
    assert fallback.caches.num_misses - misses == 3


@pytest.mark.parametrize(
    ("documents", "query"),
    [
        (((0, 5, 6), (0,), (0, 9, 9, 9)), ()),  # what is read last belongs to the documents
        (((5, 6), (), (9,)), (7, 8)),  # no beginning-of-sequence, and a document without text
        (((),), (7, 8)),
        (((0,),), ()),
    ],
)
def test_prompts_without_query_or_document(
    engine: Engine, documents: tuple[tuple[int, ...], ...], query: tuple[int, ...]
) -> None:
    prompt = Prompt(documents, query, tuple(range(len(documents))), (), ())
    engine.runner.open("s", make_rows(prompt), 0, num_scored=0, is_later_turn=False)
    for tokens in ([], TOKENS):
        seen = engine.next_logits("s", tokens)
        for row, document in zip(seen, documents, strict=True):
            with torch.inference_mode():
                ids = torch.tensor([[*document, *query, *tokens]])
                expected = engine.runner.model(input_ids=ids, use_cache=False).logits[0, -1]
            torch.testing.assert_close(row, expected[: engine.vocab_size], atol=1e-4, rtol=1e-4)
    engine.close("s")


def test_a_document_beyond_the_context_is_one_sentence(llama: Engine) -> None:
    with pytest.raises(GenerationError) as raised:
        llama.document_cache("Vantelu Cor " * 200)
    tokenizer = Tokenizer.from_str(llama.tokenizer_json)
    num_tokens = 1 + len(tokenizer.encode("Vantelu Cor " * 200 + "\n\n", add_special_tokens=False).ids)
    assert str(raised.value) == (
        f"A document of {num_tokens} tokens is empty or leaves no room in the context of 160 tokens; "
        "cut documents into other chunks."
    )


def entry(num_tokens: int) -> DocumentCache:
    """16 bytes per token."""
    return DocumentCache(keys=(torch.zeros(1, num_tokens, 2),), values=(torch.zeros(1, num_tokens, 2),))


def test_memory_forgets_what_was_used_least_recently() -> None:
    store = MemoryStore(16 * 10)
    for token in (1, 2):
        store.put([token], entry(4))
    assert store.get([1]) is not None  # now 2 is the oldest
    store.put((3,), entry(4))
    assert [store.get([token]) is not None for token in (1, 2, 3)] == [True, False, True]
    assert (len(store), store.num_bytes) == (2, 16 * 8)


def test_memory_replaces_and_refuses_what_is_too_large() -> None:
    store = MemoryStore(16 * 10)
    store.put([1], entry(4))
    store.put([1], entry(6))
    assert (len(store), store.num_bytes) == (1, 16 * 6)
    store.put([2], entry(11))
    assert store.get([2]) is None
    assert store.get([1]) is not None
    nothing = MemoryStore(0)
    nothing.put([1], entry(1))
    assert (len(nothing), nothing.num_bytes) == (0, 0)


def test_only_the_first_rows_go_to_the_store(llama: Engine) -> None:
    """Of joined documents nothing is kept, whatever is asked next; a bare row has nothing to keep."""
    llama.caches.store = store = MemoryStore(1 << 30)
    texts = ["Another document.", "One more.", "Another document.\n\nOne more.", ""]
    llama.open("s", QUERY, texts, 40, num_stored=2)
    llama.next_logits("s", [])
    llama.close("s")
    assert [store.get(llama.document_tokens(text)) is not None for text in texts[:3]] == [True, True, False]
    assert len(store) == 2


def test_a_document_that_was_cut_is_not_stored(llama: Engine) -> None:
    """Where it is cut depends on the query, so its cache would push out others and hardly be used again."""
    llama.caches.store = store = MemoryStore(1 << 30)
    opened = llama.open("s", QUERY, ["Vantelu Cor " * 200, "Another document."], 40)
    assert opened.truncated == (0,)
    llama.next_logits("s", [])
    llama.close("s")
    assert len(store) == 1
    assert store.get(llama.document_tokens("Another document.")) is not None
