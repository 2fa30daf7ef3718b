"""`tandem search` over small indexes, with an embedder that needs no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.plugins.embedders import Embedder
from tandem.retrieval import build_index
from tandem.retrieval.documents import Document
from tests.unit.retrieval.conftest import WordEmbedder

from .conftest import Run


@pytest.fixture(autouse=True)
def _embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Embedder, "load", lambda *_, **__: WordEmbedder())


@pytest.fixture
def index(folders: Path) -> list[str]:
    """The settings that name an index of two notes and a page."""
    documents = [
        Document(page_content="Mira likes\npuzzle games.", metadata={"source": "mira.md", "year": 2024}),
        Document(page_content="Tom likes chess.", metadata={"source": "tom.md", "year": 2023}),
        Document(page_content="games " * 200, metadata={"source": "rules.pdf", "page": 3}),
    ]
    build_index(documents, folders / "index", WordEmbedder())
    return ["--set", f"device.index={folders / 'index'}"]


def test_passages_best_first(index: list[str], run: Run) -> None:
    words = ("search", "device", "puzzle games", "--num-documents", "2", *index)
    shown = run(*words, code=0)
    lines = shown.out.splitlines()
    assert lines[0].split()[::2] == ["1", "mira.md"]
    assert lines[1:4] == ["    Mira likes", "    puzzle games.", "    year=2024"]
    assert lines[4].split()[2:] == ["rules.pdf,", "page", "3"]
    assert lines[-1] == "    ..."
    assert len(lines) == 9, "an excerpt of three lines"
    assert "found      2 passages of 4" in shown.err
    assert run(*words, "--full", code=0).out.count("games") > 100


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        (["device", " "], 1, "The question is empty (got ' '); ask something."),
        (["device", "x", "--filter", "year"], 2,
         "--filter must be KEY=VALUE, such as source=notes.md (got 'year'); see `tandem search --help`."),
        (["phone", "x"], 2,
         "PARTY is not valid: 'phone' is not one of 'device', 'cloud'; see `tandem search --help`."),
        (["device", "x", "--set", "device.index=/nowhere"], 1,
         "An index must hold a tandem-index.sqlite, but /nowhere has none; build it with `tandem index`."),
    ],
)  # fmt: skip
def test_bad_input(line: list[str], code: int, sentence: str, run: Run) -> None:
    assert run("search", *line, code=code).err == f"tandem: {sentence}\n"
