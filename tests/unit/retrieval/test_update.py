"""An index that is brought up to date: equal to a fresh one, and no text embedded twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.errors import RetrievalError
from tandem.retrieval import build as writer
from tandem.retrieval import loaders, store
from tandem.retrieval.build import BuildReport, build_index, update_index
from tandem.retrieval.documents import Document, Passage, split
from tandem.retrieval.index import Index
from tandem.retrieval.loaders import ReaderProcess
from tandem.retrieval.store import NAME
from tests.unit.retrieval.helpers import content


def counts(report: BuildReport) -> tuple[int, int, int, int, int]:
    """Added, replaced, deleted, unchanged, embedded."""
    return (
        report.num_added,
        report.num_replaced,
        report.num_deleted,
        report.num_unchanged,
        report.num_embedded,
    )


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def texts(embedder) -> list[str]:
    """Every text that was embedded since the last call."""
    found = [text for call in embedder.calls for text in call]
    embedder.calls.clear()
    return found


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat", "SQ8", "HNSW8"])
def test_a_changed_folder(corpus: Path, tmp_path: Path, embedder, factory: str) -> None:
    directory = tmp_path / "index"
    first = build_index(corpus, directory, embedder, factory=factory)
    assert counts(first) == (3, 0, 0, 0, 3)
    (corpus / "soup.txt").write_text("A recipe for leek soup.")
    (corpus / "chess.txt").unlink()
    (corpus / "walk.txt").write_text("A walk in the hills.")
    texts(embedder)
    report = build_index(corpus, directory, embedder, factory=factory)
    assert counts(report) == (1, 1, 1, 1, 2)
    assert sorted(texts(embedder)) == ["A recipe for leek soup.", "A walk in the hills."]
    build_index(corpus, tmp_path / "fresh", embedder, factory=factory)
    assert content(directory) == content(tmp_path / "fresh")


def test_an_update_of_an_index_that_changed_meanwhile(
    corpus: Path, tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "index"
    build_index(corpus, directory, embedder)
    (corpus / "soup.txt").unlink()
    writing = store.writing

    def late(where: Path):
        monkeypatch.undo()
        build_index(corpus, directory, embedder)
        return writing(where)

    monkeypatch.setattr(writer, "writing", late)
    with pytest.raises(RetrievalError) as caught:
        update_index(directory, embedder, delete=["chess.txt"])
    assert str(caught.value) == (
        f"An update must start from the index that is there, but {directory} was changed by another process "
        "meanwhile; run the update again."
    )
    assert len(Index.open(directory)) == 2


def test_what_was_embedded_before_a_failure_is_not_embedded_again(
    corpus: Path, tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "EMBED_AT_ONCE", 1)
    embed, left = embedder.embed, iter(range(2))

    def failing(some, **named):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return embed(some, **named)

    monkeypatch.setattr(embedder, "embed", failing)
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, tmp_path / "index", embedder)
    monkeypatch.setattr(embedder, "embed", embed)
    assert build_index(corpus, tmp_path / "index", embedder).num_embedded == 1
    assert names(tmp_path / "index") == [NAME, "vectors-1.faiss"]


KILLED_AFTER_ITS_COMMIT = """
import os, sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from tandem.retrieval import build as writer
from tandem.retrieval import store
from tandem.retrieval.build import build_index
sys.path.insert(0, sys.argv[3])
from tests.unit.retrieval.conftest import WordEmbedder

writer.tidy = lambda directory: os._exit(9)
build_index(Path(sys.argv[1]), Path(sys.argv[2]), WordEmbedder())
"""


def test_texts_that_were_deleted_go_though_the_build_was_killed(
    corpus: Path, tmp_path: Path, embedder
) -> None:
    """Killed between the commit and the removal of the files before."""
    directory = tmp_path / "index"
    build_index(corpus, directory, embedder)
    (corpus / "soup.txt").unlink()
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", KILLED_AFTER_ITS_COMMIT, str(corpus), str(directory), root]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": root}, check=False).returncode == 9
    (directory / writer.JOURNAL).unlink()
    assert {"vectors-1.faiss", "vectors-2.faiss"} < set(names(directory))
    assert update_index(directory, embedder, delete=["soup.txt"]).is_unchanged
    assert names(directory) == [NAME, "vectors-2.faiss"]
    assert len(Index.open(directory)) == 2


def test_a_deleted_text_leaves_the_disk(corpus: Path, tmp_path: Path, embedder) -> None:
    directory = tmp_path / "index"
    build_index(corpus, directory, embedder)
    assert any(b"tomato" in path.read_bytes() for path in directory.iterdir())
    update_index(directory, embedder, delete=["soup.txt"])
    assert not any(b"tomato" in path.read_bytes() for path in directory.iterdir())


def test_nobody_else_may_read_an_index(corpus: Path, tmp_path: Path, embedder) -> None:
    directory = tmp_path / "index"

    def modes() -> set[int]:
        return {path.stat().st_mode & 0o777 for path in directory.iterdir()}

    old = os.umask(0)
    try:
        build_index(corpus, directory, embedder, factory="SQ8")
        index = Index.open(directory)  # with SQLite's files next to the database
    finally:
        os.umask(old)
    assert len(names(directory)) == 5
    assert modes() == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700
    index.close()
    for path in directory.iterdir():
        path.chmod(0o644)
    assert build_index(corpus, directory, embedder, factory="SQ8").is_unchanged
    assert modes() == {0o600}


SCRIPT = """
import resource, signal, sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
import numpy as np
from tandem.errors import RetrievalError
from tandem.retrieval.build import build_index
from tandem.retrieval.documents import Document, Passage, split

class Ones:
    name, dimension, fingerprint, window = "ones", 64, "1" * 32, None
    def embed(self, texts, *, is_query=False):
        return np.ones((len(texts), 64), np.float32) / 8

documents = [Document(page_content=f"text {n}", metadata={"source": str(n)}) for n in range(1000)]
build_index(documents[:1], Path(sys.argv[1]), Ones())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    build_index(documents, Path(sys.argv[1]), Ones())
except RetrievalError as error:
    print(error)
"""


@pytest.mark.parametrize("num_bytes", [20_000, 200_000])
def test_a_disk_that_takes_no_more(tmp_path: Path, num_bytes: int) -> None:
    """The system refuses what goes beyond that many bytes of a file: of the chunks, or of the journal."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "index"), str(num_bytes)]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"The index {tmp_path}/index could not be written (")
    assert ended.stdout.endswith(
        "what it held before is kept: free space or check its rights, then build again.\n"
    )
    assert len(Index.open(tmp_path / "index")) == 1
    assert (tmp_path / "index" / writer.JOURNAL).exists() == (num_bytes > 100_000)


def write_while_read(path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Somebody writes to the file during its first `times` readings."""
    reader, left = loaders.SHARED, iter(range(times))

    class Overtaken(ReaderProcess):
        def read(self, file: int, name: str, *others: Any) -> tuple[list[Passage], list[str]]:
            answer = reader.read(file, name, *others)
            if name == path.name and next(left, None) is not None:
                with path.open("a") as file:
                    file.write(" More.")
            return answer

    monkeypatch.setattr(loaders, "SHARED", Overtaken())


def test_a_file_that_changed_while_it_was_read_is_read_again(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_while_read(corpus / "chess.txt", monkeypatch, 1)
    documents, problems, _ = loaders.load_path(corpus)
    assert documents[0].page_content.endswith("players. More.")
    assert problems == []


@pytest.mark.parametrize("kind", ["Flat", "IVF4,Flat", "HNSW8"])
def test_updates_one_after_the_other_give_what_a_build_gives(tmp_path: Path, embedder, kind: str) -> None:
    """Rows are emptied, filled again, moved and added; HNSW, which forgets nothing, is built again each time."""
    rng = random.Random(7)
    texts = {f"{n}.txt": [f"text {n} {rng.random()}"] * rng.randint(1, 3) for n in range(40)}

    def documents(names: Iterable[str]) -> list[Document]:
        return [
            Document(page_content=text, metadata={"source": name, "tags": [len(text) % 3, name[0]]})
            for name in names
            for text in texts[name]
        ]

    build_index(documents(texts), tmp_path / "index", embedder, factory=kind)
    for step in range(12):
        gone = rng.sample(sorted(texts), rng.randint(0, 6))
        for name in gone:
            del texts[name]
        changed = rng.sample(sorted(texts), rng.randint(0, 3)) + [
            f"new-{step}-{n}" for n in range(rng.randint(0, 6))
        ]
        texts |= {name: [f"{name} {rng.random()}" for _ in range(rng.randint(1, 4))] for name in changed}
        if not gone + changed:
            continue
        added = documents(changed)
        report = update_index(tmp_path / "index", embedder, add=added, delete=gone, factory=kind)
        wanted = sorted(
            (c.page_content, str(sorted(c.metadata.items()))) for c in split(documents(texts), 800, 100)
        )
        with Index.open(tmp_path / "index") as index:
            held = list(index.chunks())
            assert sorted((c.page_content, str(sorted(c.metadata.items()))) for c in held) == wanted
            assert (report.num_chunks, report.num_files) == (len(held), len(texts))
            vectors = embedder.embed([chunk.page_content for chunk in held])
            np.testing.assert_allclose(index.vectors(np.arange(len(held))), vectors, atol=1e-6)
            for key in ("source", "tags", "chunk"):
                for value in {str(chunk.metadata[key]): chunk.metadata[key] for chunk in held}.values():
                    rows = [row for row, chunk in enumerate(held) if chunk.metadata[key] == value]
                    assert index.select_rows({key: [value]}).tolist() == rows or key == "tags"
            for row in rng.sample(range(len(held)), 5):
                found, scores = index.search(vectors[row], 3)
                assert scores[0] == pytest.approx(1)
                assert held[found[0]].page_content == held[row].page_content
