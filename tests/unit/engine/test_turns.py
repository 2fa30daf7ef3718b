"""Rows of ended queries serve the next turn: fewer tokens are computed, with the same bits, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tandem.conversation import Message
from tandem.engine.engine import Engine
from tandem.engine.kv import TurnCaches
from tandem.plugins.torch.batch import TorchRows

DOCUMENTS = ["Mira likes puzzle games.", "The best rated puzzle game is Vantelu Cor."]
FIRST, SECOND = "Which game?", "And for Question Answer?"
LENGTH = 6

Save = Callable[..., Path]


@pytest.fixture(scope="module", params=["llama", "qwen2-sliding", "opt"])
def loaded(request: pytest.FixtureRequest, save_model: Save) -> list[Engine]:
    return [Engine.load(str(save_model(request.param)), num_threads=1) for _ in range(2)]


@pytest.fixture
def engines(loaded: list[Engine]) -> list[Engine]:
    """One that keeps the rows of ended queries, and one that keeps none."""
    for engine, max_bytes in zip(loaded, (1 << 30, 0), strict=True):
        engine.runner.turns = TurnCaches()
        engine.turns.max_bytes = max_bytes
    return loaded


def decode(engine: Engine, session: str, start: Sequence[int] = ()) -> tuple[list[int], list[torch.Tensor]]:
    """The likeliest tokens of the first row, one by one, and the logits that they are of."""
    tokens, logits = list(start), []
    for _ in range(LENGTH):
        logits.append(engine.next_logits(session, tokens).clone())
        tokens.append(int(logits[-1][0].argmax()))
    return tokens, logits


def converse(
    engine: Engine, first: Sequence[str], second: Sequence[str], answer: str | None = None
) -> list[torch.Tensor]:
    """The logits of two turns. answer: what the client says was answered; None: what was."""
    engine.open("first", FIRST, first, 20)
    tokens, logits = decode(engine, "first")
    engine.close("first")
    history = [Message("user", FIRST), Message("assistant", answer or engine.text(tokens).strip())]
    engine.open("second", SECOND, second, 20, history=history)
    _, later = decode(engine, "second")
    engine.close("second")
    return [*logits, *later]


def assert_equal(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("second", [DOCUMENTS, DOCUMENTS[::-1], DOCUMENTS[1:], []])
def test_the_second_turn_has_the_bits_of_one_that_computes_all(
    engines: list[Engine], second: list[str]
) -> None:
    engine, plain = engines
    first = DOCUMENTS if second else []
    assert_equal(converse(engine, first, second), converse(plain, first, second))
    question = engine.build_prompt(FIRST, [], 20).query_tokens
    assert engine.turns.num_reused >= len(question) * max(1, len(second)), (
        "each row begins with that question"
    )
    assert plain.turns.statistics() == {"turn_tokens": 0, "turn_bytes": 0}


def test_an_engine_that_fell_back_computes_all(save_model: Save) -> None:
    engine = Engine.load(str(save_model("llama")), num_threads=1, is_batched=False)
    engine.turns.max_bytes = 1 << 30
    converse(engine, DOCUMENTS, DOCUMENTS)
    assert engine.turns.statistics() == {"turn_tokens": 0, "turn_bytes": 0}


# ---- what is kept ----------------------------------------------------------------------------------------------


def cache_of(num_columns: int) -> TorchRows:
    cache = TorchRows(1, num_columns)
    cache.add_layer(0, torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    return cache


def test_the_least_recently_used_goes_first_and_the_budget_holds() -> None:
    turns = TurnCaches()
    turns.max_bytes = 2 * cache_of(64).num_bytes
    for start in (1, 2):
        turns.keep(((start, 5, 5),), cache_of(64), [0, 0])
    assert turns.find([1, 5, 9], 1) is not None
    turns.keep(((3, 5, 5),), cache_of(64), [0, 0])
    assert turns.num_bytes == turns.max_bytes
    assert turns.find([2, 5, 5], 1) is None
    found = turns.find([1, 5, 9], 1)
    assert found is not None
    assert found.num_tokens == 2
    turns.keep(((4,),), cache_of(64 * 4), [0, 0])
    assert turns.find([4], 1) is None, "larger than the budget"


def test_a_longer_turn_takes_the_place_of_those_that_it_continues() -> None:
    turns = TurnCaches()
    turns.max_bytes = 1 << 20
    turns.keep(((1, 2), (8,)), cache_of(64), [0, 0])
    turns.keep(((1, 2, 3), (8, 9)), cache_of(128), [0, 0])
    assert turns.num_bytes == cache_of(128).num_bytes
    turns.keep(((1, 2, 4), (8, 9)), cache_of(64), [0, 0])
    assert turns.num_bytes == cache_of(128).num_bytes + cache_of(64).num_bytes


def test_the_longest_common_beginning_is_found_if_it_covers_the_document() -> None:
    turns = TurnCaches()
    turns.max_bytes = 1 << 20
    turns.keep(((1, 2, 3),), cache_of(64), [0, 0])
    turns.keep(((7,), (1, 2, 3, 4)), cache_of(64), [0, 0])
    found = turns.find([1, 2, 3, 4, 5], 2)
    assert found is not None
    assert (found.row, found.num_tokens) == (1, 4)
    assert turns.find([1, 2, 3, 4, 5], 5) is None
    assert turns.find([6], 0) is None
