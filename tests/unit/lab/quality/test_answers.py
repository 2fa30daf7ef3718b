"""Exact match and F1 against cases worked out by hand."""

from __future__ import annotations

import pytest

from tandem_lab.quality.questions import contains_answer, exact_match, f1, normalize


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Quick, brown fox!", "quick brown fox"),
        ("an A.B. the", "ab"),
        ("  ", ""),
        ("theatre and anthem", "theatre and anthem"),  # articles are whole words
    ],
)
def test_normalised(text: str, expected: str) -> None:
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("given", "answers", "is_exact"),
    [
        ("the Vantelu Cor.", ["Vantelu Cor"], True),
        ("Vantelu", ["Vantelu Cor"], False),
        ("b", ["c", "B!"], True),
        ("", ["the"], True),
    ],
)
def test_exact_match(given: str, answers: list[str], is_exact: bool) -> None:
    assert exact_match(given, answers) is is_exact


@pytest.mark.parametrize(
    ("given", "answers", "expected"),
    [
        ("Vantelu Cor", ["Vantelu Cor"], 1.0),
        ("x y", ["z"], 0.0),
        ("try Vantelu Cor now", ["Vantelu Cor"], 2 * 0.5 * 1.0 / 1.5),  # precision 2/4, recall 2/2
        ("a cat cat", ["cat dog"], 2 * 0.5 * 0.5 / 1.0),  # one common: the second cat has no match
        ("x", ["y", "x z"], 2 * 1.0 * 0.5 / 1.5),  # the best of the answers
        ("the", ["an"], 1.0),  # both are empty once normalised
        ("the", ["x"], 0.0),
    ],
)
def test_f1(given: str, answers: list[str], expected: float) -> None:
    assert f1(given, answers) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "answers", "is_right"),
    [
        ("It leaves at 7.30.", ["7:30", "7.30"], True),
        ("It leaves at 17.30.", ["7.30"], False),  # whole words alone
        ("Ask the OWL\nHOUSE", ["owl house"], True),
        ("in a bowl", ["owl"], False),
        ("Gro\u0308ße: 5\u00a0bar", ["größe", "5 bar"], True),
        ("Piper\u2019s Chair", ["piper's chair"], True),
        ("", ["x"], False),
    ],
)
def test_contains_answer(given: str, answers: list[str], is_right: bool) -> None:
    assert contains_answer(given, answers) is is_right
