"""Rolling windows, and the table and the picture of an evaluation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem_lab.errors import EvaluationError
from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.lm import read_text, row, windows
from tandem_lab.quality.methods import METHODS
from tandem_lab.quality.plot import plot_evaluation
from tandem_lab.quality.result import Result, Row, Share, table


def text(ids) -> str:
    return " ".join(map(str, ids))


def test_the_first_eighth_is_the_query_and_every_other_token_counts_once() -> None:
    cases = windows(range(70), 16, text)
    assert [case.prompt for case in cases] == [(0, 1), (16, 17), (32, 33), (48, 49)]
    assert [case.query for case in cases] == ["0 1", "16 17", "32 33", "48 49"]
    scored = [token for case in cases for token in case.tokens]
    assert scored == [token for start in (0, 16, 32, 48) for token in range(start + 2, start + 16)]
    assert [case.prompt[0] for case in windows(range(80), 8, text, most=4)] == [0, 16, 40, 56]
    assert len(windows(range(80), 8, text, most=99)) == 10
    blank = windows(range(32), 16, lambda ids: "" if 0 in ids else text(ids))
    assert [case.prompt for case in blank] == [(16, 17)]


@pytest.mark.parametrize(
    ("count", "length", "sentence"),
    [
        (15, 16, "A text must fill at least one window of 16 tokens, but this one has 15; use a longer text"),
        (100, 7, "A window has at least 8 tokens, .* but 7 were asked for; make it longer."),
    ],
)
def test_what_makes_no_window_is_an_error(count: int, length: int, sentence: str) -> None:
    with pytest.raises(EvaluationError, match=sentence):
        windows(range(count), length, text)


def test_texts_are_files_or_folders(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.md").write_text("first")
    (tmp_path / "raw.tokens").write_bytes(b"ab\xff")
    assert read_text(tmp_path) == "first\n\nsecond"
    with pytest.raises(EvaluationError, match=r"must be UTF-8, but .* is not \(byte 2\)"):
        read_text(tmp_path / "raw.tokens")


def test_one_question_has_no_interval() -> None:
    """An interval of one says nothing about other questions."""
    losses = [np.array([0.5, 0.7]), np.array([0.1])]
    for count in (1, 2):
        found = row(METHODS["dynamic"], "dynamic", Counts(1, 1), losses[:count])
        assert (found.perplexity_interval is None) is (count == 1)
    assert "[" not in table(Result(kind="lm", what={}, rows=(replace(found, perplexity_interval=None),)))


def test_the_table_has_the_columns_that_some_row_has_and_the_picture_every_method(tmp_path: Path) -> None:
    """Unscored answers have no perplexity, ideal weights no cost, questions without labels no kinds."""
    right = Share(value=0.5, interval=(0.1, 0.9), count=2)
    of_needs, of_language = (
        {name: replace(right, value=value)} for name, value in (("device", 1.0), ("de", 0.0))
    )
    full = Row(
        method="evidence", label="Tandem", counts=Counts(2, 2), perplexity=None, perplexity_interval=None,
        right=right, exact=right, f1=0.25, by_needs=of_needs, by_language=of_language, seconds=1.5,
        num_tokens=12.0,
    )  # fmt: skip
    ideal = replace(full, method="oracle", label="ideal", by_needs={}, by_language={}, seconds=None)
    lines = table(Result(kind="qa", what={}, rows=(full, ideal))).splitlines()
    head, first, second = (re.split(" {2,}", line) for line in lines)
    assert head[1:] == ["method", "right", "exact", "F1", "device (2)", "de (2)", "CPU s", "tokens"]
    half = "50.0% [10.0%, 90.0%]"
    assert first == ["2 + 2", "Tandem", half, half, "0.250", "100.0%", "0.0%", "1.50", "12.0"]
    assert second == ["2 + 2", "ideal", half, half, "0.250"]
    pytest.importorskip("matplotlib", reason="plots need the extra [lab]")
    rows = tuple(replace(ideal, method=name, label=name) for name in METHODS)
    plot_evaluation(Result(kind="qa", what={}, rows=rows), tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000
