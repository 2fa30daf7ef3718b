"""The household corpus and its questions: counts, halves, and where each answer is and is not."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from tandem.corpora import BUNDLED
from tandem_lab.quality.questions import HOUSEHOLD, Question, contains_answer, read_questions

FOLDER = BUNDLED.parent / "household"
TEXTS = {
    f"{party}/{path.name}": path.read_text("utf-8")
    for party in ("device", "cloud")
    for path in (FOLDER / party).iterdir()
}
QUESTIONS = read_questions(HOUSEHOLD)
EXAMPLES = read_questions(FOLDER / "questions.jsonl")


def test_documents_are_short_and_titled() -> None:
    counts = Counter(name.split("/")[0] for name in TEXTS)
    assert counts["device"] >= 60
    assert counts["cloud"] >= 125
    assert sum(len(text.encode()) for text in TEXTS.values()) < 300_000
    for name, text in TEXTS.items():
        assert re.fullmatch(r"(device|cloud)/[a-z0-9-]+\.md", name)
        title, rest = text.split("\n", 1)
        assert title.startswith("# "), name
        assert 40 <= len(rest.split()) <= 150, name


def test_no_two_documents_share_a_sentence() -> None:
    holders = defaultdict(set)
    for name, text in TEXTS.items():
        for sentence in re.split(r"(?<=[.!?])\s+", text.split("\n", 1)[1]):
            if len(sentence.split()) > 3:
                holders[sentence.strip()].add(name)
    assert not {sentence: names for sentence, names in holders.items() if len(names) > 1}


def test_halves_have_the_same_kinds_and_languages() -> None:
    assert len(QUESTIONS) == 200
    halves = [
        Counter((each.needs, each.language) for each in QUESTIONS if each.split == split)
        for split in ("tune", "held-out")
    ]
    assert halves[0] == halves[1]
    assert Counter(each.needs for each in QUESTIONS) == {"device": 80, "cloud": 80, "both": 40}
    assert Counter(each.language for each in QUESTIONS) == {"en": 170, "de": 30}


def test_nothing_is_asked_twice() -> None:
    assert len({each.id for each in QUESTIONS} - {""}) == len(QUESTIONS)
    asked = sorted(each.text.casefold() for each in [*QUESTIONS, *EXAMPLES])
    assert not [first for first, second in pairwise(asked) if first == second]


def test_no_document_serves_both_halves() -> None:
    splits = defaultdict(set)
    for each in QUESTIONS:
        for source in each.sources:
            splits[source].add(each.split)
    assert not [source for source, names in splits.items() if len(names) > 1]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.id)
def test_an_answer_is_in_its_sources_alone(question: Question) -> None:
    parties = [source.split("/")[0] for source in question.sources]
    assert parties == (["device", "cloud"] if question.needs == "both" else [question.needs])
    assert contains_answer(TEXTS[question.sources[-1]], question.answers)
    assert not contains_answer(question.text, question.answers)
    if question.needs == "both":
        notes = [name for name in TEXTS if name.startswith("device/")]
        assert not [name for name in notes if contains_answer(TEXTS[name], question.answers)]


def test_an_example_is_about_a_document_that_no_question_asks() -> None:
    asked = {source for each in QUESTIONS for source in each.sources}
    assert len(EXAMPLES) == 10
    for each in EXAMPLES:
        assert [name for name in TEXTS if contains_answer(TEXTS[name], each.answers) and name not in asked]
        assert not contains_answer(each.text, each.answers)
