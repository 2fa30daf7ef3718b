"""The table and the picture of an evaluation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.lm import row as lm_row
from tandem_lab.quality.methods import METHODS
from tandem_lab.quality.plot import plot_evaluation
from tandem_lab.quality.result import Result, Row, Share, table

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")


def test_one_question_has_no_interval(tmp_path: Path) -> None:
    """An interval of one says nothing about other questions."""
    method = METHODS["dynamic"]
    lone = lm_row(method, "dynamic", Counts(1, 1), [np.array([0.5, 0.7])])
    assert lone.perplexity_interval is None
    pair = lm_row(method, "dynamic", Counts(1, 1), [np.array([0.5, 0.7]), np.array([0.1])])
    assert pair.perplexity_interval is not None
    asked = replace(lone, right=(one := Share(value=1.0, interval=None, count=1)), exact=one, f1=1.0)
    text = table(Result(kind="qa", what={}, rows=(asked,)))
    assert "100.0%" in text
    assert "[" not in text
    plot_evaluation(Result(kind="qa", what={}, rows=(asked,)), tmp_path / "one.png")
    assert (tmp_path / "one.png").exists()


def test_columns_are_those_that_some_row_has() -> None:
    """Unscored answers have no perplexity, ideal weights no cost, questions without labels no kinds."""
    right = Share(value=0.5, interval=(0.1, 0.9), count=2)
    row = Row(
        method="evidence",
        label="Tandem",
        counts=Counts(2, 2),
        perplexity=None,
        perplexity_interval=None,
        right=right,
        exact=right,
        f1=0.25,
        by_needs={"device": Share(value=1.0, interval=None, count=1)},
        by_language={"de": Share(value=0.0, interval=None, count=1)},
        seconds=1.5,
        num_tokens=12.0,
    )
    ideal = replace(row, method="oracle", label="ideal", by_needs={}, by_language={}, seconds=None)
    head, first, second = table(Result(kind="qa", what={}, rows=(row, ideal))).splitlines()
    columns = [re.split(" {2,}", line) for line in (head, first, second)]
    assert columns[0][1:] == ["method", "right", "exact", "F1", "device (1)", "de (1)", "CPU s", "tokens"]
    half = "50.0% [10.0%, 90.0%]"
    assert columns[1] == ["2 + 2", "Tandem", half, half, "0.250", "100.0%", "0.0%", "1.50", "12.0"]
    assert columns[2] == ["2 + 2", "ideal", half, half, "0.250"]


def test_answers_without_perplexity_are_drawn(tmp_path: Path) -> None:
    share = Share(value=0.5, interval=(0.1, 0.9), count=2)
    rows = tuple(
        Row(
            method=name,
            label=name,
            counts=Counts(1, 1),
            perplexity=None,
            perplexity_interval=None,
            right=share,
        )
        for name in METHODS
    )
    plot_evaluation(Result(kind="qa", what={}, rows=rows), tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000
