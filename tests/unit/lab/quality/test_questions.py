"""Files of questions: what is read, and one sentence with file, line and field for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import TandemError
from tandem_lab.quality.questions import contains_answer, exact_match, f1, read_questions

GOOD = '{"question": "Who?", "answers": ["A", "B"]}'


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2: each line must be a JSON object, this is not .*; correct it."),
        ("[1]", "line 2: each line must be a JSON object, this is of type list; correct it."),
        (
            '{"answers": ["x"]}',
            "line 2: an object must hold \"question\", this one holds 'answers'; rename it.",
        ),
        ('{"question": " ", "answers": ["x"]}', "line 2: \"question\" must be .*, it is ' '; correct it."),
        ('{"question": "x"}', 'line 2: "answers" must be a list of texts that are not empty, it is None'),
        ('{"question": "x", "answers": []}', 'line 2: "answers" must be .* it is \\[\\]; correct it.'),
        ('{"question": "x", "answers": ["y", 3]}', 'line 2: "answers" must be .*3\\]; correct it.'),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(TandemError, match=f"q.jsonl, {sentence}"):
        read_questions(path)


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
def test_an_answer_that_contains_an_accepted_text_is_right(
    given: str, answers: list[str], is_right: bool
) -> None:
    assert contains_answer(given, answers) is is_right


@pytest.mark.parametrize(
    ("given", "answers", "is_exact", "expected"),
    [
        ("the Vantelu Cor.", ["Vantelu Cor"], True, 1.0),
        ("Vantelu", ["Vantelu Cor"], False, 2 * 1.0 * 0.5 / 1.5),
        ("x y", ["z"], False, 0.0),
        ("try Vantelu Cor now", ["Vantelu Cor"], False, 2 * 0.5 * 1.0 / 1.5),  # precision 2/4, recall 2/2
        ("a cat cat", ["cat dog"], False, 2 * 0.5 * 0.5 / 1.0),  # the second cat has no match
        ("x", ["y", "x z"], False, 2 * 1.0 * 0.5 / 1.5),  # the best of the answers
        ("the", ["an"], True, 1.0),  # both are empty once normalised
        ("theatre", ["atre"], False, 0.0),  # articles are whole words
    ],
)
def test_exact_match_and_f1(given: str, answers: list[str], is_exact: bool, expected: float) -> None:
    assert exact_match(given, answers) is is_exact
    assert f1(given, answers) == pytest.approx(expected, abs=1e-12)
