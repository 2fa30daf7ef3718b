"""The engine on small random models of each family: cached equals uncached, redone equals never drafted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tandem.engine.engine import Engine
from tandem.engine.session import EngineSession
from tandem.errors import GenerationError

# Fixed, since the fixtures of conftest.py are not importable.
NAMES = ["qwen2", "qwen2-sliding", "llama", "llama-grouped", "opt", "phi", "gpt-neox"]
DOCUMENTS = [
    "Mira likes puzzle games.",
    "",
    "The best rated puzzle game is Vantelu Cor, and it has 40 levels {query}.",
]
QUERY = "Which game should Mira try?"

Save = Callable[..., Path]


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest, save_model: Save) -> Engine:
    """One engine per family."""
    return Engine.load(str(save_model(request.param)), num_threads=1)


def uncached_logits(engine: Engine, row: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Oracle: one fresh pass over one row without padding, mask, positions or cache."""
    with torch.inference_mode():
        output = engine.runner.model(input_ids=torch.tensor([[*row, *tokens]]), use_cache=False)
    return output.logits[0, -1, : engine.vocab_size]


def some_tokens(count: int, seed: int = 3) -> list[int]:
    return [random.Random(seed).randrange(2, 290) for _ in range(count)] if count else []


def test_no_nan_is_left_in_the_cache(engine: Engine) -> None:
    engine.open("s", QUERY, DOCUMENTS, 40)
    engine.next_logits("s", some_tokens(2))
    session = engine.runner.sessions["s"]
    assert isinstance(session, EngineSession)
    for tensor in [*session.cache.keys.values(), *session.cache.values.values()]:
        assert torch.isfinite(tensor).all()
    engine.close("s")


def fresh(engine: Engine, tokens: Sequence[int]) -> torch.Tensor:
    """Oracle: what a session that never drafted anything else computes."""
    engine.open("fresh", QUERY, DOCUMENTS, 40)
    try:
        return engine.next_logits("fresh", tokens)
    finally:
        engine.close("fresh")


def test_threads_that_cannot_be_are_one_sentence(save_model: Save) -> None:
    with pytest.raises(GenerationError, match="num_threads is 0"):
        Engine.load(str(save_model("llama")), num_threads=0)


def test_a_long_row_does_not_change_the_others_with_longrope(save_model: Save) -> None:
    """LongRoPE changes the frequencies of a whole batch when one of its rows exceeds the original context."""
    engine = Engine.load(str(save_model("phi3-longrope")), num_threads=1)
    assert engine.context_length == 96  # and not 320, where the long frequencies end
    documents = [DOCUMENTS[0], "Vantelu Cor " * 60]
    opened = engine.open("s", QUERY, documents, 8)
    assert opened.truncated == (1,)
    prompt = engine.build_prompt(QUERY, documents, 8)
    tokens = some_tokens(8)
    logits = engine.next_logits("s", tokens)
    for document, row in zip(prompt.document_tokens, logits, strict=True):
        alone = uncached_logits(engine, [*document, *prompt.query_tokens], tokens)
        torch.testing.assert_close(row, alone, atol=1e-4, rtol=1e-4)
    engine.close("s")
