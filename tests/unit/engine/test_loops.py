"""Answers that repeat themselves end: a function of the committed tokens, at one step, only at temperature 0."""

from __future__ import annotations

import random

import pytest

from tandem.config.sampling import SamplingParams
from tandem.engine import tokenizer
from tandem.engine.tokenizer import StopRule, is_loop


def ends_with_blocks(tokens: list[int]) -> bool:
    """The slow oracle: tile every possible block and compare."""
    for period in range(1, len(tokens) + 1):
        span = max(24, 4 * period)
        if span <= len(tokens):
            block = tokens[len(tokens) - span :][:period]
            if tokens[len(tokens) - span :] == (block * span)[:span]:
                return True
    return False


def cases() -> list[list[int]]:
    """Beginnings of answers that fall into loops of every length, some broken by one token."""
    rng = random.Random(1)
    answers = []
    for _ in range(300):
        head = [rng.randrange(50) for _ in range(rng.randrange(12))]
        block = [rng.randrange(3) for _ in range(rng.randrange(1, 14))]
        answer = head + (block * 60)[: rng.randrange(20, 60)]
        if rng.random() < 0.3:
            answer[rng.randrange(len(answer))] = 7
        answers.append(answer)
    return answers


def test_it_is_what_the_oracle_says() -> None:
    found = [is_loop(answer) for answer in cases()]
    assert found == [ends_with_blocks(answer) for answer in cases()]
    assert 50 < sum(found) < 250


@pytest.mark.parametrize(("name", "value"), [("LOOP_REPEATS", 3), ("LOOP_TOKENS", 23), ("LOOP_TOKENS", 25)])
def test_a_rule_that_is_off_by_one_is_found(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, name, value)
    assert [is_loop(answer) for answer in cases()] != [ends_with_blocks(answer) for answer in cases()]


@pytest.mark.parametrize(("period", "length"), [(1, 24), (5, 24), (6, 24), (7, 28), (20, 80)])
def test_it_ends_at_the_first_step_at_which_it_holds(period: int, length: int) -> None:
    block = list(range(period))
    answer = [99, 98, *(block * 99)]
    lengths = [end for end in range(len(answer)) if is_loop(answer[:end])]
    assert lengths[0] == 2 + length


def test_only_the_most_probable_tokens_are_cut() -> None:
    tokens = [5] * 24
    assert StopRule.of((), SamplingParams(max_new_tokens=99), None).find_reason(tokens) == "loop"
    assert StopRule.of((), SamplingParams(max_new_tokens=99), None).find_reason(tokens[:-1]) is None
    assert (
        StopRule.of((), SamplingParams(max_new_tokens=99, temperature=0.1), None).find_reason(tokens) is None
    )
    assert StopRule.of((5,), SamplingParams(), None).find_reason(tokens) == "eos"
