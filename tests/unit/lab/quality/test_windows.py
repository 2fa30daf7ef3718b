"""Rolling windows: which tokens are the query, which are scored, which are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem_lab.errors import EvaluationError
from tandem_lab.quality.windows import read_text, windows


def text(ids) -> str:
    return " ".join(map(str, ids))


def test_the_first_eighth_is_the_query_and_every_other_token_counts_once() -> None:
    cases = windows(range(70), 16, text)
    assert [case.prompt for case in cases] == [(0, 1), (16, 17), (32, 33), (48, 49)]
    assert [case.query for case in cases] == ["0 1", "16 17", "32 33", "48 49"]
    scored = [token for case in cases for token in case.tokens]
    assert scored == [token for start in (0, 16, 32, 48) for token in range(start + 2, start + 16)]


def test_some_windows_are_spread_over_the_text() -> None:
    assert [case.prompt[0] for case in windows(range(80), 8, text, most=4)] == [0, 16, 40, 56]
    assert len(windows(range(80), 8, text, most=99)) == 10


def test_a_window_with_a_blank_query_is_left_out() -> None:
    cases = windows(range(32), 16, lambda ids: "" if 0 in ids else text(ids))
    assert [case.prompt for case in cases] == [(16, 17)]


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
    (tmp_path / "raw.tokens").write_text("any ending")
    assert read_text(tmp_path) == "first\n\nsecond"
    assert read_text(tmp_path / "raw.tokens") == "any ending"
    (tmp_path / "raw.tokens").write_bytes(b"ab\xff")
    with pytest.raises(EvaluationError, match=r"must be UTF-8, but .* is not \(byte 2\)"):
        read_text(tmp_path / "raw.tokens")
    with pytest.raises(EvaluationError, match=r"but .* cannot be read \(No such file"):
        read_text(tmp_path / "none.txt")
