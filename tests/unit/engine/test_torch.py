"""PyTorch on small random models of each family: rows, stored documents and likelihoods against passes without a cache.

What every engine promises is in `test_contract`. Mutants (other padding, positions, sums) show that the comparisons can
fail. `benchmarks/batch_invariance.py` runs a thousand random batches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from benchmarks.batch_invariance import growing_differs, random_model
from tandem.aggregation.document_weights import MAX_QUESTION, MIN_PROBABILITY
from tandem.conversation import Message
from tandem.engine.engine import Engine
from tandem.engine.kv import MemoryStore
from tandem.plugins.torch.batch import BatchModel, TorchModel
from tandem.plugins.torch.runner import TorchRunner

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
Load = Callable[..., Engine]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def load(save_model: Save) -> Load:
    """load("llama growing") -> the engine of a family, here of one that fell back, loaded once, without a store."""
    loaded: dict[str, Engine] = {}

    def load_one(name: str) -> Engine:
        family, _, how = name.partition(" ")
        if name not in loaded:
            loaded[name] = Engine.load(str(save_model(family)), num_threads=1, is_batched=not how)
        loaded[name].caches.store = None
        return loaded[name]

    return load_one


def logits(engine: Engine) -> torch.Tensor:
    """Those after the prompt and after some tokens, [2, rows, vocab]."""
    engine.open("s", QUERY, DOCUMENTS, 40)
    try:
        return torch.stack([engine.next_logits("s", tokens) for tokens in ([], TOKENS)])
    finally:
        engine.close("s")


def plain_pass(engine: Engine, *parts: Sequence[int]) -> torch.Tensor:
    """Oracle: a fresh pass over one row without padding, mask, positions or cache, [tokens, vocab]."""
    row = [token for part in parts for token in part]
    with torch.inference_mode():
        output = engine.runner.model(input_ids=torch.tensor([row]), use_cache=False)
    return output.logits[0, :, : engine.vocab_size]


def uncached(engine: Engine) -> torch.Tensor:
    """What `logits` should be."""
    prompt = engine.build_prompt(QUERY, DOCUMENTS, 40)
    return torch.stack(
        [
            torch.stack(
                [plain_pass(engine, row, prompt.query_tokens, tokens)[-1] for row in prompt.document_tokens]
            )
            for tokens in ([], TOKENS)
        ]
    )


def is_right(engine: Engine) -> bool:
    return torch.allclose(logits(engine), uncached(engine), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*NAMES, "llama growing", "opt growing", "qwen2-sliding growing"])
def test_stored_equals_computed_bit_for_bit_and_an_uncached_pass_to_tolerance(load: Load, name: str) -> None:
    engine = load(name)
    computed = logits(engine)
    engine.caches.store = MemoryStore(1 << 20)
    before = engine.caches.num_misses, engine.caches.num_hits
    storing, fetched = logits(engine), logits(engine)
    assert torch.equal(storing, computed)
    assert torch.equal(fetched, computed)
    after = engine.caches.num_misses, engine.caches.num_hits
    assert (after[0] - before[0], after[1] - before[1]) == (3, 3)
    torch.testing.assert_close(fetched, uncached(engine), atol=1e-4, rtol=1e-4)


def test_a_long_row_does_not_change_the_others_with_longrope(load: Load) -> None:
    """LongRoPE changes the frequencies of a whole batch when one of its rows exceeds the original context."""
    engine = load("phi3-longrope")
    assert engine.context_length == 96  # and not 320, where the long frequencies end
    documents, tokens = [DOCUMENTS[0], "Vantelu Cor " * 60], TOKENS * 2
    assert engine.open("s", QUERY, documents, len(tokens)).truncated == (1,)
    prompt = engine.build_prompt(QUERY, documents, len(tokens))
    for document, row in zip(prompt.document_tokens, engine.next_logits("s", tokens), strict=True):
        alone = plain_pass(engine, document, prompt.query_tokens, tokens)[-1]
        torch.testing.assert_close(row, alone, atol=1e-4, rtol=1e-4)
    engine.close("s")


# ---- how probable each row finds the question ----------------------------------------------------------------

HISTORY = (Message("user", "Who?"), Message("assistant", "Mira."))


def likelihoods(
    engine: Engine, documents: Sequence[str], query: str, history: Sequence[Message] = ()
) -> tuple[float, ...]:
    """Of a session of its own."""
    engine.open("s", query, documents, 20, history=history, scores_question=True)
    try:
        engine.next_logits("s", ())
        return engine.question_likelihoods("s")
    finally:
        engine.close("s")


def plain_likelihoods(engine: Engine, query: str, history: Sequence[Message] = ()) -> list[float]:
    """By a plain pass over each row, in float64."""
    prompt = engine.build_prompt(query, DOCUMENTS, 20, history)
    found = []
    for document in prompt.document_tokens:
        row = [*document, *prompt.query_tokens]
        log_p = torch.log_softmax(plain_pass(engine, row).double(), dim=-1)
        log_p = log_p.clamp(min=float(torch.log(torch.tensor(MIN_PROBABILITY))))
        places = range(len(row) - prompt.num_question + 1, len(row))
        total = sum(float(log_p[place - 1, row[place]]) for place in places)
        found.append(total * min(1.0, MAX_QUESTION / len(places)))
    return found


def test_the_question_alone_is_scored(load: Load) -> None:
    """What precedes it, a document and earlier turns, changes what it is scored by, and is not scored itself."""
    engine = load("llama-grouped")
    prompt = engine.build_prompt(QUERY, DOCUMENTS, 20)
    assert prompt.num_question == len(prompt.query_tokens)
    later = engine.build_prompt(QUERY, DOCUMENTS, 20, HISTORY)
    asked = Tokenizer.from_str(engine.tokenizer_json).decode(list(later.query_tokens[-later.num_question :]))
    assert QUERY in asked
    assert "Mira." not in asked
    found = likelihoods(engine, DOCUMENTS, QUERY, HISTORY)
    assert found == pytest.approx(plain_likelihoods(engine, QUERY, HISTORY), abs=1e-3)


# ---- engines that fall back, and mutants ---------------------------------------------------------------------


def test_the_fallback_gives_the_logits_of_every_prefix(load: Load) -> None:
    engine = load("llama growing")
    for name in "ab":
        engine.open(name, QUERY, DOCUMENTS, 20)
    (block,) = engine.forward({"b": TOKENS}, {"b": len(TOKENS) + 1})
    singles = [engine.next_logits("a", TOKENS[:count]) for count in range(len(TOKENS) + 1)]
    for name in "ab":
        engine.close(name)
    assert torch.equal(block, torch.stack(singles, dim=1))


FALLBACKS = pytest.mark.parametrize("name", ["llama growing", "opt growing"])


@FALLBACKS
def test_mutant_later_positions_off_by_one(load: Load, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TorchModel.run

    def shifted(model: TorchModel, is_stale: Any, **inputs: Any) -> torch.Tensor:
        positions = inputs["position_ids"]
        return run(model, is_stale, **inputs | {"position_ids": positions + (positions[0, 0] > 0)})

    assert is_right(load(name))
    monkeypatch.setattr(TorchModel, "run", shifted)
    assert not is_right(load(name))


def test_control_a_growing_cache_has_other_bits() -> None:
    assert growing_differs(random_model("llama", "float32"), random.Random(0))


def test_mutant_padding_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without padding, functions like exp see incomplete vectors: the self-check finds it."""

    class Unpadded(BatchModel):
        @property
        def multiple(self) -> int:
            return 1

        @multiple.setter
        def multiple(self, value: int) -> None: ...

    monkeypatch.setattr("tandem.plugins.torch.runner.BatchModel", Unpadded)
    assert TorchRunner(random_model("llama", "float32")).fault == (
        "the last bits of a row depend on what else is in the batch"
    )


def test_a_model_that_fails_the_check_falls_back(
    save_model: Save, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tandem.plugins.torch.runner.find_fault", lambda *arguments: "it was told to")
    engine = Engine.load(str(save_model("llama")), num_threads=1)
    assert [record.message for record in caplog.records] == [engine.fallback]
    assert "because it was told to (on this machine" in engine.fallback
    assert all(parameter.is_contiguous() for parameter in engine.runner.model.parameters())
    assert is_right(engine)


def test_a_library_that_splits_long_sums_elsewhere_is_noticed(
    load: Load, save_model: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As oneMKL does on some processors above 192 columns: in the middle, wherever that is."""

    def split(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        half = weights.shape[-1] // 2
        return weights[..., :half] @ values[:, :, :half] + weights[..., half:] @ values[:, :, half:]

    assert not load("llama").fallback
    monkeypatch.setattr("tandem.plugins.torch.batch.weigh", split)
    fallback = Engine.load(str(save_model("llama")), num_threads=1).fallback
    assert "because the last bits of attention depend on the width of the cache" in fallback
