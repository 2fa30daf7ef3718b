"""Rules of one token, on rows of four tokens that a reader can follow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tandem.corpora import CORPORA
from tandem.topology import Party
from tandem_lab.errors import EvaluationError
from tandem_lab.quality.rules import PartyRows, Rows, delta, divergence, log_rows, nbce, pced
from tandem_lab.quality.squad import read_squad

BARE = [0.4, 0.3, 0.2, 0.1]
SURE, LIKE_BARE, FLAT = [0.05, 0.05, 0.05, 0.85], [0.42, 0.3, 0.18, 0.1], [0.25, 0.25, 0.25, 0.25]


def rows(*documents: list[float], relevance: tuple[float, ...] = (), bare: list[float] = BARE) -> PartyRows:
    return PartyRows(
        log_rows(np.log(documents)), log_rows(np.log(bare)), relevance or (0.5,) * len(documents)
    )


def both(device: PartyRows, cloud: PartyRows) -> Rows:
    return {Party.DEVICE: device, Party.CLOUD: cloud}


def test_the_expert_that_its_document_changes_most_gives_the_token() -> None:
    seen = both(rows(SURE), rows(LIKE_BARE))
    assert pced(seen, seen) == 3
    # a row that its document does not change keeps its model's favourite
    alone = {Party.CLOUD: rows(LIKE_BARE)}
    assert pced(alone, alone) == 0
    # relevance decides between experts that are equally sure
    mirrored = SURE[::-1]
    seen = both(rows(SURE, relevance=(0.3,)), rows(mirrored, relevance=(0.6,)))
    assert pced(seen, seen) == 0


def test_the_contrast_is_with_what_the_first_token_showed() -> None:
    """A divergence of zero at the first token leaves a row as it is; later ones do not change that."""
    first = {Party.DEVICE: rows(BARE)}
    later = {Party.DEVICE: rows([0.45, 0.44, 0.06, 0.05], bare=[0.7, 0.1, 0.1, 0.1])}
    assert pced(later, first) == 0
    assert pced(later, {Party.DEVICE: rows(SURE)}) == 1


def test_the_surest_row_gives_the_token() -> None:
    seen = both(rows(FLAT, LIKE_BARE), rows(SURE))
    assert nbce(seen, seen) == 3
    # of two tokens that it finds alike, the one that its model does not say anyway
    alone = {Party.DEVICE: rows([0.46, 0.44, 0.05, 0.05], bare=[0.7, 0.1, 0.1, 0.1])}
    assert nbce(alone, alone) == 1


def test_notes_steer_the_cloud_by_no_more_than_the_bound() -> None:
    seen = both(rows([0.1, 0.2, 0.3, 0.4]), rows([0.4, 0.35, 0.15, 0.1]))
    assert delta(seen, seen) == 3
    certain = both(rows([1e-9, 1e-9, 1e-9, 1.0]), rows([0.9989, 5e-4, 5e-4, 1e-4]))
    assert delta(certain, certain) == 0
    assert delta({Party.DEVICE: rows(SURE)}, {}) == delta({Party.CLOUD: rows(SURE)}, {}) == 3


def test_what_a_party_cannot_say_is_not_said() -> None:
    """Of pieces a party has only some."""
    with np.errstate(divide="ignore"):
        seen = both(rows([0.0, 0.6, 0.4, 0.0], bare=[0.0, 0.4, 0.6, 0.0]), rows(FLAT))
    assert [pced(seen, seen), nbce(seen, seen), delta(seen, seen)] == [1, 1, 1]


def test_the_divergence_is_in_bits() -> None:
    ends = log_rows(np.log([[1.0, 1e-300], [1e-300, 1.0]]))
    assert divergence(*ends) == pytest.approx(1.0)
    assert divergence(ends[0], ends[0]) == 0.0


def test_paragraphs_are_dealt_to_both_parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = [
        {"question": "Wie hoch ist der Turm?", "answers": [{"text": "40 m", "answer_start": 3}], "id": "x"}
    ]
    texts = ["Der Turm ist 40 m hoch.", "Er ist aus Holz und nicht aus Stein."]
    article = {"title": "Turm", "paragraphs": [{"context": text, "qas": asked} for text in texts]}
    unanswered = {"title": "", "paragraphs": [{"context": "", "qas": [{"question": "?", "answers": []}]}]}
    (path := tmp_path / "turm.json").write_text(json.dumps({"data": [article, unanswered]}), "utf-8")
    try:
        name, questions = read_squad(path)
        assert [(each.needs, each.sources) for each in questions] == [
            ("device", ("device/00000.md",)),
            ("cloud", ("cloud/00001.md",)),
        ]
        assert {(each.answers, each.language, each.split) for each in questions} == {
            (("40 m",), "de", "tune")
        }
        assert (CORPORA[name] / "cloud/00001.md").read_text("utf-8") == texts[1]
        assert read_squad(path)[0] == name
    finally:
        CORPORA.pop(name)


@pytest.mark.parametrize("content", ["[]", '{"data": 3}', "{", '{"data": []}'])
def test_a_file_of_another_form(tmp_path: Path, content: str) -> None:
    (path := tmp_path / "other.json").write_text(content)
    with pytest.raises(EvaluationError, match=r"name (a|another) file"):
        read_squad(path)
