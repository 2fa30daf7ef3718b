"""The table and the picture of an evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.lab.quality.document_sets import Counts
from tandem.lab.quality.lm import row as lm_row
from tandem.lab.quality.methods import METHODS
from tandem.lab.quality.plot import plot_evaluation
from tandem.lab.quality.result import Result, Share, table

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")


def test_one_question_has_no_interval(tmp_path: Path) -> None:
    """An interval of one says nothing about other questions."""
    method = METHODS["dynamic"]
    lone = lm_row(method, "dynamic", Counts(1, 1), [np.array([0.5, 0.7])])
    assert lone.perplexity_interval is None
    pair = lm_row(method, "dynamic", Counts(1, 1), [np.array([0.5, 0.7]), np.array([0.1])])
    assert pair.perplexity_interval is not None
    asked = replace(lone, exact=Share(value=1.0, interval=None), f1=1.0)
    text = table(Result(kind="qa", what={}, rows=(asked,)))
    assert "100.0%" in text
    assert "[" not in text
    plot_evaluation(Result(kind="qa", what={}, rows=(asked,)), tmp_path / "one.png")
    assert (tmp_path / "one.png").exists()
