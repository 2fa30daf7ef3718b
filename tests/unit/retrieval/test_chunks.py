"""The chunk store: what was written comes back, row by row and by id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import chunks as chunk_files
from tandem.retrieval.chunks import ChunkStore
from tandem.retrieval.documents import Document


def chunk(identity: str | None, text: str = "t", **metadata: object) -> Document:
    return Document(id=identity, page_content=text, metadata=metadata)


def test_round_trip(tmp_path: Path) -> None:
    documents = [
        chunk("b", "grün\nblau\u2028", n=1, deep={"x": [1, None]}),
        chunk("a", ""),
        chunk("cc", "last"),
    ]
    chunk_files.write(tmp_path, documents)
    store = ChunkStore(tmp_path)
    assert len(store) == 3
    assert store.documents(np.arange(3)) == documents
    assert store.rows(["cc", "a", "b", "a"]).tolist() == [2, 1, 0, 1]
    assert store.rows([]).tolist() == []
    store.close()


@pytest.mark.parametrize("name", ["", "aa", "zzz", "ü", "a" * 50])
def test_an_unknown_id(tmp_path: Path, name: str) -> None:
    chunk_files.write(tmp_path, [chunk("a"), chunk("b")])
    with pytest.raises(RetrievalError) as caught:
        ChunkStore(tmp_path).rows(["a", name])
    assert str(caught.value) == (
        f"The index holds no document with the id {name!r}; it may have been rebuilt: search again."
    )


def test_duplicate_and_missing_ids(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError) as caught:
        chunk_files.write(tmp_path, [chunk("a"), chunk("a")])
    assert str(caught.value) == "Each chunk needs an id of its own, but a comes twice; let `split` set them."
    with pytest.raises(RetrievalError) as caught:
        chunk_files.write(tmp_path, [chunk(None)])
    assert str(caught.value) == (
        "A chunk needs an id of 1 to 20 ASCII characters, but one has None; let `split` set it."
    )
