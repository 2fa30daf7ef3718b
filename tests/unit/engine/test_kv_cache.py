"""Caches of documents: a stored one gives the very bits of a computed one, for every family; the memory store.

The oracle for values is an uncached pass; mutants (other padding, positions, documents) show that it can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.engine.engine import Engine
from tandem.engine.kv import MemoryStore
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
