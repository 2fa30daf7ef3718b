"""Rows to learn from: what counts, what is hidden from the drafter, and that answers follow the target's law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from scipy import stats

from tandem.engine.engine import Engine
from tandem.errors import GenerationError
from tandem.plugins.papers.flexspec.training import answer_rows, check_rows, draw_answers, text_rows

QUESTION, DOCUMENT = "Which game should Mira try?", "Mira likes puzzle games."


@pytest.fixture(scope="module")
def engine(save_model: Callable[..., Path]) -> Engine:
    return Engine.load(str(save_model("llama")), num_threads=1)


def test_texts_are_cut_into_rows_in_which_all_counts(engine: Engine) -> None:
    rows = text_rows(engine, ["Mira likes puzzle games, so try Vantelu Cor. " * 4, "Answer"], 10)
    heads = {own.ids[0] for own, _ in rows}
    assert len(heads) == 1  # beginning-of-sequence
    assert all(own is other and own.start == 1 for own, other in rows)
    text = engine.detokenizer.text([token for own, _ in rows for token in own.ids[1:]])
    assert text == "Mira likes puzzle games, so try Vantelu Cor. " * 4 + "Answer"
    assert max(len(own.ids) for own, _ in rows) == 11


def test_both_see_the_answer_and_the_drafter_half_of_the_documents(engine: Engine) -> None:
    rows = answer_rows(engine, [QUESTION], [DOCUMENT], num_answers=40, max_new_tokens=4, rng=Random(1))
    assert len(rows) == 40
    for own, other in rows:
        assert own.ids[own.start :] == other.ids[other.start :]
        assert DOCUMENT in engine.detokenizer.text(other.ids)
    num_hidden = sum(DOCUMENT not in engine.detokenizer.text(own.ids) for own, _ in rows)
    assert 8 <= num_hidden <= 32  # binomial(40, 1/2): out of this with probability 2e-4, for a fixed seed
    again = answer_rows(engine, [QUESTION], [DOCUMENT], num_answers=40, max_new_tokens=4, rng=Random(1))
    assert rows == again
    assert not engine.runner.sessions


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Of a chi-square test; tokens that are expected less than 5 times count as one."""
    expected = law * counts.sum()
    is_common = expected >= 5
    found = [*counts[is_common], counts[~is_common].sum()]
    wanted = [*expected[is_common], expected[~is_common].sum()]
    return float(stats.chisquare(found, wanted).pvalue)


@pytest.mark.nightly("samples many answers")
def test_answers_follow_the_target_at_temperature_1(engine: Engine) -> None:
    """First tokens of 2,000 answers; false alarm 1e-9. The law at temperature 0.8 must be told apart."""
    engine.open("law", QUESTION, [DOCUMENT], 1)
    logits = engine.next_logits("law", [])[0].double()
    engine.close("law")
    answers = draw_answers(engine, [(QUESTION, [DOCUMENT])] * 2000, 1, Random(3))
    counts = np.bincount([tokens[0] for tokens in answers], minlength=len(logits))
    assert p_value(counts, logits.softmax(-1).numpy()) > 1e-9
    assert p_value(counts, (logits / 0.8).softmax(-1).numpy()) < 1e-9


def test_too_little_to_learn_from_is_one_sentence() -> None:
    with pytest.raises(
        GenerationError, match=r"^There are 0 rows to learn from, .*; name more text, or more"
    ):
        check_rows([], 1)
