"""An index that is brought up to date: equal to a fresh one, no text embedded twice, and no document lost; and what it
remembers of where it came from."""

from __future__ import annotations

import os
import random
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
from tandem.retrieval.retriever import Retriever
from tandem.retrieval.store import NAME, Manifest, read_manifest, values_of
from tests.unit.retrieval.helpers import content, names, num_vectors, refused


def counts(report: BuildReport) -> tuple[int, int, int, int, int]:
    """Added, replaced, deleted, unchanged, embedded."""
    return (
        report.num_added,
        report.num_replaced,
        report.num_deleted,
        report.num_unchanged,
        report.num_embedded,
    )


def texts(embedder) -> list[str]:
    """Every text that was embedded since the last call."""
    found = [text for call in embedder.calls for text in call]
    embedder.calls.clear()
    return found


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat"])
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


def test_what_is_embedded_again(corpus: Path, tmp_path: Path, embedder, other_embedder) -> None:
    """Neither equal texts nor those of another name or kind, but all for another embedder."""
    directory = tmp_path / "index"
    (corpus / "copy.txt").write_text((corpus / "soup.txt").read_text())
    assert counts(build_index(corpus, directory, embedder, factory="IVF2,Flat")) == (4, 0, 0, 0, 3)
    (corpus / "soup.txt").rename(corpus / "supper.txt")
    assert counts(build_index(corpus, directory, embedder)) == (1, 0, 1, 3, 0)
    assert counts(build_index(corpus, directory, embedder)) == (0, 0, 0, 4, 0)
    assert counts(build_index(corpus, directory, other_embedder)) == (0, 0, 0, 4, 3)
    with Index.open(directory) as index:
        texts = [chunk.page_content for chunk in index.chunks()]
        assert np.array_equal(index.vectors(np.arange(4)), other_embedder.embed(texts))


def test_adding_and_deleting_some_of_many(corpus: Path, tmp_path: Path, embedder) -> None:
    directory = tmp_path / "index"
    build_index(corpus, directory, embedder, id_key=b"secret")
    note = Document(page_content="Chess at noon.", metadata={"source": "chess.txt", "day": 3})
    texts(embedder)
    report = update_index(directory, embedder, add=[note], delete=["soup.txt", "nothing"])
    assert counts(report) == (0, 1, 1, 1, 1)
    assert texts(embedder) == ["Chess at noon."]
    assert report.problems == [
        "nothing was not deleted: the index holds nothing of it; did you mean soup.txt?"
    ]
    index = Index.open(directory)
    assert {index.document(row).metadata["source"] for row in range(2)} == {"puzzle.md", "chess.txt"}
    assert index.manifest.id_key == b"secret".hex()
    assert update_index(directory, embedder, add=[note]).is_unchanged


def test_documents_without_source_replace_none(tmp_path: Path, embedder) -> None:
    directory = tmp_path / "index"
    given = [Document(page_content=f"Text {number}.") for number in range(5)]
    build_index(given, directory, embedder)
    report = update_index(directory, embedder, add=[Document(page_content="Another."), given[2]])
    assert counts(report) == (1, 0, 0, 5, 1)
    assert len({chunk.id for chunk in Index.open(directory).chunks()}) == 6
    assert update_index(directory, embedder, add=given).is_unchanged


def test_changed_metadata_are_counted_and_stored(tmp_path: Path, embedder) -> None:
    def given(year: int) -> list[Document]:
        chess = Document(page_content="Chess.", metadata={"source": "chess", "year": year})
        return [chess, Document(page_content="Soup.")]

    directory = tmp_path / "index"
    build_index(given(2022), directory, embedder)
    reports = [
        build_index(given(2023), directory, embedder),
        update_index(directory, embedder, add=given(2024)[:1]),
    ]
    for report in reports:
        assert counts(report)[:3] == (0, 0, 0)
        assert (report.num_changed, report.num_embedded, report.is_unchanged) == (1, 0, False)
    with Index.open(directory) as index:
        assert index.document(0).metadata["year"] == 2024
        assert index.select_rows({"year": [2022, 2023]}).tolist() == []


def test_a_place_that_moved_is_no_changed_metadata(tmp_path: Path, embedder) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "One."}\n{"text": "Two."}\n')
    build_index(lines, tmp_path / "index", embedder)
    lines.write_text('{"text": "None."}\n{"text": "One."}\n{"text": "Two."}\n')
    report = build_index(lines, tmp_path / "index", embedder)
    assert (report.num_added, report.num_changed, report.num_unchanged) == (1, 0, 2)


def test_deleting_a_folder_or_everything(corpus: Path, tmp_path: Path, embedder) -> None:
    (corpus / "sub").mkdir()
    (corpus / "sub" / "a.txt").write_text("deep")
    (corpus / "sub.txt").write_text("not so deep")
    directory = tmp_path / "index"
    build_index(corpus, directory, embedder)
    assert counts(update_index(directory, embedder, delete=["sub/"])) == (0, 0, 1, 4, 0)
    with pytest.raises(RetrievalError, match="needs at least one chunk"):
        update_index(directory, embedder, delete=["chess.txt", "puzzle.md", "soup.txt", "sub.txt"])
    assert len(Index.open(directory)) == 4


def test_an_update_of_an_index_that_changed_meanwhile(
    corpus: Path, tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "index"
    build_index(corpus, directory, embedder)
    (corpus / "soup.txt").unlink()
    writing = store.writing

    def late(where: Path, previous: Manifest):
        monkeypatch.undo()
        build_index(corpus, directory, embedder)
        return writing(where, previous)

    monkeypatch.setattr(writer, "writing", late)
    with refused(
        f"An update must start from the index that is there, but {directory} was changed by another process "
        "meanwhile; run the update again."
    ):
        update_index(directory, embedder, delete=["chess.txt"])
    assert len(Index.open(directory)) == 2


def test_vectors_that_outlived_their_build_go(corpus: Path, tmp_path: Path, embedder) -> None:
    directory = tmp_path / "index"
    manifest = build_index(corpus, directory, embedder).manifest
    with store.writing(directory, manifest) as other:
        other.keep_vectors([b"left"], np.ones((1, 32), np.float32))
        assert build_index(corpus, directory, embedder).is_unchanged
        assert num_vectors(directory) == 4, "another process may be using it"
    assert build_index(corpus, directory, embedder).is_unchanged
    assert num_vectors(directory) == 3


def test_a_file_that_a_killed_build_left_goes(
    corpus: Path, tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the commit and the removal of the file before, which holds vectors of a deleted text."""
    directory = tmp_path / "index"
    old = build_index(corpus, directory, embedder, factory="IVF2,Flat").manifest.trained
    (corpus / "soup.txt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(writer, "tidy", lambda directory: None)
        build_index(corpus, directory, embedder, factory="IVF2,Flat")
    assert old in names(directory)
    report = update_index(directory, embedder, delete=["soup.txt"], factory="IVF2,Flat")
    assert report.is_unchanged
    assert names(directory) == [NAME, report.manifest.trained]
    assert len(Index.open(directory)) == 2


def test_nobody_else_may_read_an_index(corpus: Path, tmp_path: Path, embedder) -> None:
    directory = tmp_path / "index"

    def modes() -> set[int]:
        return {path.stat().st_mode & 0o777 for path in directory.iterdir()}

    old = os.umask(0)
    try:
        build_index(corpus, directory, embedder, factory="IVF2,Flat")
        index = Index.open(directory)  # with SQLite's files next to the database
    finally:
        os.umask(old)
    assert len(names(directory)) == 4
    assert modes() == {0o600}
    assert directory.stat().st_mode & 0o777 == 0o700
    index.close()
    for path in directory.iterdir():
        path.chmod(0o644)
    assert build_index(corpus, directory, embedder, factory="IVF2,Flat").is_unchanged
    assert modes() == {0o600}


def write_while_read(path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Somebody writes to the file during its first `times` readings."""
    read, left = loaders.SHARED.read, iter(range(times))

    def overtaken(file: int, name: str, *others: Any) -> tuple[list[Passage], list[str]]:
        answer = read(file, name, *others)
        if name == path.name and next(left, None) is not None:
            with path.open("a") as written:
                written.write(" More.")
        return answer

    monkeypatch.setattr(loaders.SHARED, "read", overtaken)


def test_a_file_that_changed_while_it_was_read_is_read_again_or_left_out(
    corpus: Path, tmp_path: Path, embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_while_read(corpus / "chess.txt", monkeypatch, 1)
    documents, problems, _ = loaders.load_path(corpus)
    assert documents[0].page_content.endswith("players. More.")
    assert problems == []
    write_while_read(corpus / "chess.txt", monkeypatch, 9)
    report = build_index(corpus, tmp_path / "index", embedder)
    sentence = "chess.txt was left out: it changed while it was read; index it again when it is finished."
    assert (report.num_files, report.problems) == (2, [sentence])


def test_documents_of_another_library(tmp_path: Path, embedder) -> None:
    given = [
        Document(id="a", page_content="Chess at noon.", metadata={"page": 3}),
        Document(id="a", page_content="Chess at night."),
        Document(id="b", page_content=" "),
        Document(page_content="Soup.", metadata={"source": "soup"}),
    ]
    report = build_index(given, tmp_path / "index", embedder)
    assert report.problems == [
        "A second document with the id a was left out; give each an id of its own.",
        "b was left out: it holds no text; fill it or remove it.",
    ]
    with Index.open(tmp_path / "index") as index:
        assert [(chunk.page_content, chunk.metadata) for chunk in index.chunks()] == [
            ("Chess at noon.", {"page": 3, "source": "a", "chunk": 0}),
            ("Soup.", {"source": "soup", "chunk": 0}),
        ]
    with pytest.raises(
        RetrievalError, match=r"^A corpus must hold at least one document, but it has none; add one\.$"
    ):
        build_index([], tmp_path / "index", embedder)


@pytest.mark.parametrize("kind", ["Flat", "IVF4,Flat"])
def test_updates_one_after_the_other_give_what_a_build_gives(tmp_path: Path, embedder, kind: str) -> None:
    """Rows are emptied, filled again, moved and added, and filters find lists by each of their values."""
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
            assert set(index.sources()) == set(texts)
            for key in ("source", "tags", "chunk"):
                values = [values_of(chunk.metadata[key]) for chunk in held]
                for value in {value for each in values for value in each}:
                    rows = [row for row, each in enumerate(values) if value in each]
                    assert index.select_rows({key: [value]}).tolist() == rows
            for row in rng.sample(range(len(held)), 5):
                found, scores = index.search(vectors[row], 3)
                assert scores[0] == pytest.approx(1)
                assert held[found[0]].page_content == held[row].page_content


def sources(directory: Path) -> list[str]:
    return sorted(str(chunk.metadata["source"]) for chunk in Index.open(directory).chunks())


def test_the_root_is_absolute(
    index: Path, corpus: Path, embedder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read_manifest(index).roots == [str(corpus)]
    monkeypatch.chdir(tmp_path)
    assert build_index(Path("corpus"), index, embedder).is_unchanged
    (tmp_path / "link").symlink_to(corpus)
    assert build_index(tmp_path / "link", index, embedder).is_unchanged
    assert read_manifest(index).roots == [str(corpus)]


def test_a_report_counts_files_chunks_and_problems(corpus: Path, tmp_path: Path, embedder) -> None:
    (corpus / "bad.txt").write_bytes(b"a\0b")
    (corpus / "long.txt").write_text("word " * 100)
    report = build_index(corpus, tmp_path / "index", embedder, chunk_chars=200, overlap=0)
    assert (report.num_files, report.num_chunks, report.is_unchanged) == (4, 6, False)
    assert [problem[:20] for problem in report.problems] == ["bad.txt was left out"]
    assert report.manifest == Index.open(tmp_path / "index").manifest
    (hit,) = Retriever.open(tmp_path / "index", embedder).search("tomato soup", 1)
    assert hit.document.metadata == {"source": "soup.txt", "chunk": 0}


def test_a_file_of_the_folder_does_not_become_the_index(index: Path, corpus: Path, embedder) -> None:
    with pytest.raises(
        RetrievalError, match=r"was built from .*corpus, .*from .*soup\.txt would delete 2 documents; "
    ):
        build_index(corpus / "soup.txt", index, embedder)
    assert len(sources(index)) == 3
    assert build_index(corpus / "soup.txt", index, embedder, replace=True).num_deleted == 2
    assert read_manifest(index).roots == [str(corpus / "soup.txt")]


def test_a_folder_that_was_moved_is_the_new_root(index: Path, corpus: Path, embedder) -> None:
    moved = corpus.rename(corpus.with_name("moved"))
    assert build_index(moved, index, embedder).is_unchanged
    assert read_manifest(index).roots == [str(moved)]


def test_further_roots_are_brought_up_to_date(index: Path, corpus: Path, tmp_path: Path, embedder) -> None:
    further = tmp_path / "elsewhere" / "corpus"  # of the same name
    further.mkdir(parents=True)
    (further / "soup.txt").write_text("A cold soup.")
    report = update_index(index, embedder, add=further)
    assert (report.num_added, report.num_unchanged) == (1, 3)
    assert sources(index) == ["chess.txt", "corpus-2/soup.txt", "puzzle.md", "soup.txt"]
    (further / "tea.txt").write_text("Tea.")
    (corpus / "chess.txt").unlink()
    for source in (corpus, further, None):
        build_index(source, index, embedder)
        assert sources(index) == ["corpus-2/soup.txt", "corpus-2/tea.txt", "puzzle.md", "soup.txt"]
    assert read_manifest(index).roots == [str(corpus), str(further)]
    further.rename(further.with_name("gone"))
    with pytest.raises(RetrievalError, match=r"but .*elsewhere/corpus does not exist any more; .* --delete,"):
        build_index(corpus, index, embedder)
    update_index(index, embedder, delete=[str(further)])
    assert sources(index) == ["puzzle.md", "soup.txt"]
    assert read_manifest(index).roots == [str(corpus)]
