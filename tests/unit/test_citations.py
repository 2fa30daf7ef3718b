"""Shares of tokens, words and spans: sums, borders, and where nothing is known."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest

from tandem.aggregation.coupling import noise
from tandem.aggregation.race_lists import least_depth, most_probable, race_list
from tandem.citations import CLEAR, Citation, Part, Span, cite, find_spans, find_words

NOTE, PAGE = Citation(documents=(0.9, 0.0), others=0.1), Citation(documents=(0.1, 0.8), others=0.1)
UNCLEAR = Citation(documents=(0.4, 0.4), others=0.2)


@dataclass
class Token:
    text: str
    citation: Citation | None = None


def test_the_shares_of_a_token_are_those_of_its_mixture() -> None:
    shares = cite([0.3, 0.1, 0.1], Part(0.5))
    assert shares.documents == pytest.approx((0.3, 0.1))
    assert (shares.others, shares.nobody) == pytest.approx((0.5, 0.1))


@pytest.mark.parametrize("seed", range(50))
def test_all_shares_add_up_to_one(seed: int) -> None:
    rng = random.Random(seed)
    masses = [rng.random() ** 8 for _ in range(rng.randint(2, 20))]
    total = sum(masses)
    masses = [mass / total * rng.random() for mass in masses]
    part = Part(rng.random(), rng.choice([None, 1.0, 0.5, 0.0]))
    tokens = [Token(" a", cite(masses, part)), Token("b", cite(masses[::-1], part)), Token("c", None)]
    (word,) = find_words(tokens)
    for shares in (tokens[0].citation, tokens[1].citation, word.citation):
        assert shares is not None
        assert min(*shares.documents, shares.others, shares.nobody) >= 0.0
        assert math.fsum([*shares.documents, shares.others, shares.nobody]) == pytest.approx(1.0, abs=1e-12)


def test_what_is_not_known_of_the_others_counts_as_the_most_that_it_can_be() -> None:
    assert Part(0.5, 1.0).of(1.0) == 0.5
    assert Part(0.5, 1.0).of(0.01) == pytest.approx(0.01 / 1.01)
    assert Part(0.5, 0.5).of(1.0) == pytest.approx(2 / 3)
    assert Part(1.0, 1.0).of(1e-6) == 1.0, "nobody else has a say"
    assert Part(0.25).of(1e-6) == 0.25, "exact as it is"


def test_a_clear_document_has_more_than_all_others_together() -> None:
    assert (NOTE.document, PAGE.document, UNCLEAR.document) == (0, 1, None)
    assert Citation(documents=(CLEAR,), others=0.5).document is None
    assert Citation(documents=(), others=1.0).document is None


def test_words_are_whole_and_without_the_punctuation_around_them() -> None:
    pieces = [" On", " Fri", "day", " at", " 3", ".", "30", " (", "Mar", "burg", ")."]
    tokens = [Token(piece, NOTE) for piece in pieces]
    text = "".join(pieces).strip()
    found = [text[word.start : word.end] for word in find_words(tokens)]
    assert found == ["On", "Friday", "at", "3.30", "Marburg"]


def test_scripts_without_spaces_have_a_word_for_each_character() -> None:
    tokens = [
        Token("金曜日", NOTE),
        Token("に", PAGE),
        Token("。", PAGE),
        Token(" Café", NOTE),
        Token("です", None),
    ]
    found = [(word.start, word.end, word.citation.document) for word in find_words(tokens)]
    assert found == [(0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 4, 1), (6, 10, 0)]


def test_a_span_goes_from_the_first_to_the_last_clear_word_of_one_document_in_a_sentence() -> None:
    tokens = [
        Token("Anna", NOTE), Token(" is", UNCLEAR), Token(" here", NOTE), Token(",", UNCLEAR), Token(" says", UNCLEAR),
        Token(" he", PAGE), Token(".", PAGE), Token(" He", PAGE), Token(" can", None),
    ]  # fmt: skip
    first, second, third = find_spans(tokens)
    assert (first.start, first.end, first.document) == (0, 12, 0)
    assert first.share == pytest.approx((0.9 + 0.4 + 0.9) / 3)
    assert (second.start, second.end, second.document) == (19, 21, 1)
    assert (third.start, third.end, third.document) == (23, 25, 1)


@pytest.mark.parametrize("seed", range(30))
def test_spans_lie_in_the_text_in_order_and_never_split_a_word(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "ab. \n,é金。-'9"
    tokens = []
    for _ in range(60):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 4)))
        tokens.append(Token(text, rng.choice([NOTE, PAGE, UNCLEAR, None])))
    text = "".join(token.text for token in tokens).strip()
    end, words = 0, find_words(tokens)
    for span in find_spans(tokens):
        assert isinstance(span, Span)
        assert end <= span.start < span.end <= len(text)
        assert span.start in {word.start for word in words}
        assert span.end in {word.end for word in words}
        assert "\n" not in text[span.start : span.end]
        end = span.end
    for word in words:
        before, after = text[word.start - 1 : word.start], text[word.end : word.end + 1]
        is_single = text[word.start : word.end] in "金"
        assert is_single or not (before.isalnum() and before not in "金")
        assert is_single or not (after.isalnum() and after not in "金")


# ---- what a race list says of a probability ------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_what_a_list_says_depends_on_no_more_than_every_list_has(seed: int, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    dense = rng.dirichlet(np.full(40, 0.3)).astype(np.float32)
    dense[rng.integers(0, 40, 12)] = 0.0
    race = {"seed": seed, "step": 3, "temperature": temperature}
    least = least_depth(8)
    clocks = noise(seed, 3, np.arange(40)) if temperature else np.ones(40)
    best = sorted(range(40), key=lambda token: (-float(dense[token]) / clocks[token], token))[:least]
    for token in range(40):
        values = {
            most_probable(race_list(dense, depth, **race), token, least, **race) for depth in (4, 8, 13, 40)
        }
        (value,) = values
        assert value >= float(dense[token])
        assert most_probable(dense, token, least, **race) == float(dense[token])
        if token in best:
            assert value == float(dense[token])
