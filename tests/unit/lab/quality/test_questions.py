"""Files of questions: what is read, and one sentence with file, line and field for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem import Config
from tandem.errors import TandemError
from tandem_lab.errors import EvaluationError
from tandem_lab.quality.questions import (
    Question,
    contains_answer,
    exact_match,
    f1,
    question_texts,
    read_household,
    read_questions,
    select_split,
)

GOOD = '{"question": "Who?", "answers": ["A", "B"]}'


def test_answers_may_be_several_or_one(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(f'{GOOD}\n\n{{"question": "When?", "answer": "Now", "id": 3}}\n')
    assert read_questions(path) == [Question("Who?", ("A", "B")), Question("When?", ("Now",), id="3")]


def test_labels_are_read_and_others_of_the_same_name_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    labels = '"needs": "both", "sources": ["device/a.md"], "language": "de", "split": "tune"'
    others = '"needs": 1, "sources": "b", "language": null, "split": []'
    path.write_text(
        "".join(f'{{"question": "Who?", "answers": ["A"], {each}}}\n' for each in (labels, others))
    )
    assert read_questions(path) == [
        Question("Who?", ("A",), needs="both", sources=("device/a.md",), language="de", split="tune"),
        Question("Who?", ("A",)),
    ]


def test_without_a_file_the_questions_suit_the_documents() -> None:
    config = Config.load(None, ['cloud.index="household"'])
    asked = question_texts(None, config)
    assert asked == [each.text for each in read_household("tune")]
    assert not set(asked) & {each.text for each in read_household("held-out")}


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


def test_the_first_questions_of_a_half_tell_something_of_every_kind() -> None:
    held_out, everything = read_household("held-out"), read_household("all")
    assert len(held_out) == 100
    assert {each.split for each in held_out} == {"held-out"}
    assert len(everything) == 200
    for first in (held_out[:20], read_household("tune")[:20]):
        assert {each.needs for each in first} == {"device", "cloud", "both"}
        assert {each.language for each in first} == {"en", "de"}


def test_a_split_that_no_question_is_in_is_an_error() -> None:
    asked = [Question("Who?", ("A",)), Question("When?", ("B",), split="tune")]
    assert select_split(asked, "all") == asked
    assert select_split(asked, "tune") == asked[1:]
    with pytest.raises(EvaluationError, match='No question has "split": "held-out"; add it'):
        select_split(asked, "held-out")


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
