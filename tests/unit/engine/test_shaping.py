"""Penalties, biases and grammars: against slow oracles, and in any order of prefixes."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("llguidance", reason="answers that follow a grammar need llguidance (extra [grammar])")

from tandem.config.sampling import SamplingParams
from tandem.corpora import model_path
from tandem.engine.shaping import Grammar, Shaper, check_grammar, grammar_tokenizer
from tandem.engine.tokenizer import Detokenizer
from tandem.errors import QueryError
from tandem.modes.reference import shift

Floats = NDArray[np.float64]
TOKENIZER = (Path(model_path("bundled")) / "tokenizer.json").read_text("utf-8")
VOCAB, END = 1636, 1
SCHEMA = {
    "type": "object",
    "properties": {"game": {"type": "string", "maxLength": 12}, "years": {"type": "integer", "maximum": 99}},
    "required": ["game", "years"],
    "additionalProperties": False,
}


# ---- penalties and biases ------------------------------------------------------------------------------------


def check_shift(
    shape: Callable[[Floats, Sequence[int]], Floats], sampling: SamplingParams, biases: dict[int, float]
) -> None:
    """Against the definition on the reference page."""
    draw = random.Random(5)
    for size in (1, 2, 9):
        weights = [draw.choice([0.0, 1.0, 2.0, 5.0]) for _ in range(size)]
        weights[0] += 1
        dense = np.array(weights) / sum(weights)
        prefix = [draw.randrange(size) for _ in range(6)]
        expected = shift(
            dense.tolist(), prefix, biases, sampling.presence_penalty, sampling.frequency_penalty,
            sampling.temperature or 1.0,
        )  # fmt: skip
        np.testing.assert_allclose(shape(dense, prefix), expected, rtol=1e-12, atol=1e-300)


SAMPLINGS = [
    SamplingParams(temperature=temperature, presence_penalty=presence, frequency_penalty=frequency)
    for temperature in (0.0, 0.5, 1.0)
    for presence, frequency in ((0.0, 0.0), (2.0, 0.0), (0.0, -1.5), (0.7, 0.3))
]


@pytest.mark.parametrize("biases", [{}, {0: -100.0}, {1: 3.0, 8: -2.0, 500: 100.0}])
def test_logits_are_shifted_as_the_reference_page_says(biases: dict[int, float]) -> None:
    for sampling in SAMPLINGS:
        check_shift(Shaper(sampling, biases).shape, sampling, biases)


class CountsOnce(Shaper):
    """A mutant that takes the frequency penalty once, however often a token came."""

    def shape(self, dense: Floats, prefix: Sequence[int]) -> Floats:
        return super().shape(dense, list(dict.fromkeys(prefix)))


class IgnoresTheTemperature(Shaper):
    """A mutant that shifts probabilities as if they were taken at temperature 1."""

    def __init__(self, sampling: SamplingParams, biases: dict[int, float]) -> None:
        super().__init__(sampling, biases)
        self._temperature = 1.0


@pytest.mark.parametrize("mutant", [CountsOnce, IgnoresTheTemperature])
def test_mutants_are_found(mutant: Any) -> None:
    def check() -> None:
        for sampling in SAMPLINGS:
            check_shift(mutant(sampling, {1: 3.0}).shape, sampling, {1: 3.0})

    with pytest.raises(AssertionError):
        check()


def test_a_tiny_temperature_and_a_great_bias_leave_a_distribution() -> None:
    dense = np.array([0.0, 1e-300, 1.0])
    for temperature in (1e-3, 1e-37, 1e-320):
        shaped = Shaper(SamplingParams(temperature=temperature), {1: 100.0, 0: 100.0}).shape(dense, ())
        assert shaped.tolist() == [0.0, 1.0, 0.0]


# ---- grammars ------------------------------------------------------------------------------------------------


def make_grammar(**grammar: Any) -> Grammar:
    return Grammar(grammar_tokenizer(TOKENIZER, VOCAB, (END,)), json.dumps(grammar))


def write(allowed: Callable[[Sequence[int]], NDArray[np.bool_]], draw: random.Random, most: int = 300) -> str:
    """A text of allowed tokens at random; an end as soon as it may be."""
    tokens: list[int] = []
    while not (mask := allowed(tokens))[END]:
        assert len(tokens) < most
        tokens.append(int(draw.choice(np.flatnonzero(mask))))
    return Detokenizer(TOKENIZER).text(tokens)


@pytest.mark.parametrize(
    ("grammar", "is_right"),
    [
        ({"regex": "(yes|no|maybe later)"}, lambda text: text in ("yes", "no", "maybe later")),
        ({"regex": "[a-f]{3}-[0-9]{2}"}, lambda text: re.fullmatch("[a-f]{3}-[0-9]{2}", text)),
        ({"json_schema": SCHEMA}, lambda text: json.loads(text)["years"] <= 99),
        ({"lark": 'start: ("ab" | "c")~3'}, lambda text: re.fullmatch("(ab|c){3}", text)),
    ],
)
def test_whatever_is_allowed_is_right(grammar: Any, is_right: Callable[[str], object]) -> None:
    for seed in range(20):
        text = write(make_grammar(**grammar).allowed, random.Random(seed))
        assert is_right(text), text


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, VOCAB - 1), max_size=2)), max_size=8))
def test_what_is_allowed_is_a_function_of_the_prefix(jumps: list[tuple[int, list[int]]]) -> None:
    """After drafts that were rolled back, and after tokens that break the rules, as with a new grammar."""
    own = make_grammar(json_schema=SCHEMA)
    tokens = [93, 4]  # {"
    while len(tokens) < 9:
        tokens.append(int(np.flatnonzero(own.allowed(tokens))[-1]))
    for length, wrong in jumps:
        prefix = [*tokens[:length], *wrong]
        assert np.array_equal(own.allowed(prefix), make_grammar(json_schema=SCHEMA).allowed(prefix))


def test_after_what_no_answer_may_be_only_an_end_is_left() -> None:
    assert np.flatnonzero(make_grammar(regex="yes").allowed([80, 80])).tolist() == [END]


def test_where_nothing_allowed_has_a_probability_all_of_it_has_the_same() -> None:
    shaper = Shaper(SamplingParams(), {}, make_grammar(regex="(yes|no)"))
    dense = np.zeros(VOCAB)
    dense[7] = 1.0
    shaped = shaper.shape(dense, ())
    assert math.isclose(shaped.sum(), 1.0)
    assert set(shaped[shaped > 0].tolist()) == {1 / np.count_nonzero(shaped)}


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ({"regex": "("}, "invalid regex"),
        ({"lark": "start: nothing"}, "nothing"),
        ({"json_schema": {"type": "object", "properties": {"a": {"not": {}}}}}, "not"),
        ({"json_schema": {"type": "thing"}}, "thing"),
        ({}, "unpack"),
        ({"gbnf": "root"}, "gbnf"),
        ([1], "items"),
        ({"regex": 1}, ""),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_one_sentence(grammar: Any, reason: str) -> None:
    with pytest.raises(
        QueryError, match=r"^The grammar of the answer cannot be followed \(.*\); correct it"
    ) as caught:
        check_grammar(json.dumps(grammar))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
