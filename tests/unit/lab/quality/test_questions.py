"""Files of questions: what is read, and one sentence with file, line and field for what cannot be; the household's
questions; and how answers are counted and compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tandem.config.schema import Config
from tandem.corpora import BUNDLED, CORPORA
from tandem.errors import TandemError
from tandem.retrieval.retriever import open_retriever
from tandem.topology import PARTIES
from tandem_lab.quality.document_sets import Counts, search
from tandem_lab.quality.questions import (
    BRIDGES,
    HOUSEHOLD,
    Question,
    contains_answer,
    exact_match,
    f1,
    read_questions,
    with_documents,
)
from tandem_lab.quality.statistics import mcnemar, wilson
from tests.unit.retrieval.conftest import WordEmbedder

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


@pytest.mark.parametrize(
    ("num_right", "count", "expected"),
    [
        (0, 10, (0.0, 0.2775)),
        (10, 10, (0.7225, 1.0)),
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
    ],
)
def test_wilson(num_right: int, count: int, expected: tuple[float, float]) -> None:
    assert wilson(num_right, count) == pytest.approx(expected, abs=1e-4)


def test_mcnemar_is_the_exact_sign_test() -> None:
    first = [True] * 9 + [False] * 1 + [True] * 5
    second = [False] * 9 + [True] * 1 + [True] * 5
    only_first, only_second, p_value = mcnemar(first, second)
    assert (only_first, only_second) == (9, 1)
    assert p_value == pytest.approx(2 * (1 + 10) / 2**10)
    assert mcnemar(second, first)[2] == p_value
    assert mcnemar([True], [True]) == (0, 0, 1.0)


def texts_below(folder: Path) -> dict[str, str]:
    return {
        f"{party}/{path.name}": path.read_text("utf-8")
        for party in PARTIES
        for path in (folder / party).iterdir()
    }


TEXTS = texts_below(BUNDLED.parent / "household")
QUESTIONS = read_questions(HOUSEHOLD)
BRIDGE_TEXTS = texts_below(BRIDGES.with_suffix(""))
BRIDGE_QUESTIONS = read_questions(BRIDGES)
KINDS = {"bridge": 24, "comparison": 8}
"""So many in each half."""


@pytest.mark.parametrize("questions", [QUESTIONS, BRIDGE_QUESTIONS], ids=["household", "bridges"])
def test_no_document_serves_both_halves(questions: list[Question]) -> None:
    splits = defaultdict(set)
    for each in questions:
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


@pytest.mark.parametrize("question", BRIDGE_QUESTIONS, ids=lambda each: each.id)
def test_a_bridge_has_its_answer_at_one_end(question: Question) -> None:
    assert [source.split("/")[0] for source in question.sources] == ["device", "cloud"]
    holders = [name for name, text in BRIDGE_TEXTS.items() if contains_answer(text, question.answers)]
    assert len(holders) == 1
    assert holders[0] in question.sources
    assert not contains_answer(question.text, question.answers)


def test_the_bridges_have_kinds_in_equal_halves_and_no_document_of_the_households_name() -> None:
    kinds = Counter((each.id.split("-")[0], each.split) for each in BRIDGE_QUESTIONS)
    assert kinds == {(kind, split): n for kind, n in KINDS.items() for split in ("tune", "held-out")}
    assert sorted(BRIDGE_TEXTS) == sorted(source for each in BRIDGE_QUESTIONS for source in each.sources)
    assert not BRIDGE_TEXTS.keys() & TEXTS.keys()


def test_a_set_brings_its_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(CORPORA, "bridges", tmp_path)  # so that it is gone afterwards
    del CORPORA["bridges"]
    config = with_documents(Config.load(), "bridges")
    retrievers = {party: open_retriever(party, config, WordEmbedder()) for party in PARTIES}
    for each in BRIDGE_QUESTIONS:
        found = search(retrievers, each.text, [Counts(1, 1)], sources=each.sources)
        texts = [found.texts[place] for place in found.right]
        assert len(texts) >= 2  # each row of a table is one
        assert any(contains_answer(text, each.answers) for text in texts)
