"""Fixtures of the retrieval tests: a tiny deterministic embedder and small files of every kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.retrieval import Document, build_index, loaders, split
from tests.unit.retrieval.helpers import CHUNK_CHARS, OVERLAP, make_index

PAGES = {
    "chess.txt": "Chess is an old board game for two players.",
    "puzzle.md": "# Puzzles\n\nThe best rated puzzle game is Vantelu Cor.",
    "soup.txt": "A recipe for tomato soup with basil.",
}


class WordEmbedder:
    """Sum of one hashed vector per word, normalised: texts that share words are near each other."""

    window = None

    def __init__(self, dimension: int = 32, name: str = "words") -> None:
        self.name = name
        self.dimension = dimension
        self.fingerprint = blake2b(f"{name} {dimension}".encode(), digest_size=16).hexdigest()
        self.calls: list[list[str]] = []

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        vectors = np.array([self._vector(text) for text in texts], np.float64)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    def _vector(self, text: str) -> NDArray[np.float64]:
        words = re.findall(r"\w+", text.lower()) or [""]
        return np.sum([self._word(word) for word in words], axis=0)

    def _word(self, word: str) -> NDArray[np.float64]:
        seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest())
        return np.random.default_rng(seed).normal(size=self.dimension)


def pdf_bytes(*pages: str) -> bytes:
    """A minimal pdf whose pages show one line of text each (an empty string: a page without text)."""
    return pdf_of(*(f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else "" for text in pages))


def pdf_of(*streams: str, fields: Sequence[str] = ()) -> bytes:
    """A minimal pdf of pages with these contents; fields: annotations of each."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(streams)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(streams)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, stream in enumerate(streams):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * n} 0 R"
            f" /Resources << /Font << /F1 3 0 R >> >> /Annots [{' '.join(fields)}] >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    body, places = "%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    size = len(objects) + 1
    tail = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return f"{body}{tail}startxref\n{len(body)}\n%%EOF\n".encode()


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder()


@pytest.fixture
def other_embedder() -> WordEmbedder:
    return WordEmbedder(name="other words")


@pytest.fixture(autouse=True)
def _one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads files goes on from one reading to the next, since its start takes half a second."""
    monkeypatch.setattr(loaders.SHARED, "close", lambda: None)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three short pages in a folder."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def chunks() -> list[Document]:
    """What the corpus is cut into."""
    pages = [Document(page_content=text, metadata={"source": name}) for name, text in PAGES.items()]
    return split(pages, CHUNK_CHARS, OVERLAP)


@pytest.fixture
def directory(tmp_path: Path, chunks: list[Document], embedder) -> Path:
    make_index(tmp_path / "index", chunks, embedder)
    return tmp_path / "index"


@pytest.fixture
def index(corpus: Path, tmp_path: Path, embedder) -> Path:
    """The folder of an index that was built from the corpus, as a user builds one."""
    build_index(corpus, tmp_path / "index", embedder, id_key=b"key")
    return tmp_path / "index"
