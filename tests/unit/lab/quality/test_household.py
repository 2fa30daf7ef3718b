"""The household corpus and its questions: counts, halves, and where each answer is and is not."""

from __future__ import annotations

from collections import defaultdict

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
