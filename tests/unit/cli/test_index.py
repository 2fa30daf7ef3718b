"""`tandem index` with an embedder that needs no model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.cli.index import excerpt
from tandem.plugins.embedders import Embedder
from tandem.retrieval import Index, build_index
from tandem.retrieval.documents import Document
from tandem.retrieval.embedding import HUB_NAME
from tandem.system.paths import index_folder
from tandem.topology import Party
from tests.unit.retrieval.conftest import WordEmbedder

from .conftest import Run, Shown

IndexRun = Callable[..., Shown]


@pytest.fixture(autouse=True)
def embedders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the embedders that were loaded."""
    loaded: list[str] = []

    def load(name: str = "auto", **_: object) -> WordEmbedder:
        loaded.append(name)
        return WordEmbedder()

    monkeypatch.setattr(Embedder, "load", load)
    return loaded


@pytest.fixture
def index(run: Run) -> IndexRun:
    """Runs `tandem index device`."""
    return lambda *words: run("index", "device", *map(str, words))


@pytest.fixture
def notes(folders: Path) -> Path:
    folder = folders / "notes"
    folder.mkdir()
    (folder / "one.txt").write_text("Mira likes puzzle games.")
    (folder / "two.md").write_text("# Two\n\nTom likes chess.")
    return folder


def opened() -> Index:
    return Index.open(index_folder(Party.DEVICE))


def test_an_index_and_how_to_use_it(notes: Path, index: IndexRun) -> None:
    shown = index(notes)
    out = index_folder(Party.DEVICE)
    assert len(Index.open(out, WordEmbedder().fingerprint)) == 2
    assert shown.out.splitlines() == [
        f"Indexed: 2 files, 2 chunks in {out} (Flat, words)",
        "Chunks: 2 added, 0 replaced, 0 deleted, 0 unchanged; 2 texts embedded",
        f"From: {notes}",
        f"Use it: tandem ask --set device.index={out} QUESTION",
        f'or permanently, in tandem.toml: device.index = "{out}"',
    ]
    assert "chunks     2 of 2" in shown.err
    assert index(notes).out.startswith("Unchanged: 2 files, 2 chunks")


def test_an_error_loses_nothing(notes: Path, folders: Path, embedders: list[str], index: IndexRun) -> None:
    index(notes)
    (folders / "empty").mkdir()
    for words in ([folders / "empty"], [notes, "--factory", "Nonsense"]):
        shown = index(*words)
        assert shown.code == 1
        assert shown.err.splitlines()[-1].startswith("tandem: ")
    assert len(opened()) == 2
    embedders.clear()
    shown = index("/no/such/folder")
    assert shown.code == 1
    assert "/no/such/folder does not exist" in shown.err
    assert embedders == [], "found before the embedder is loaded"


def test_files_in_other_languages_than_the_embedders(
    notes: Path, index: IndexRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.cli.index.has_multilingual", lambda: True)
    (notes / "drei.md").write_text(
        "Der Schlüssel ist in der Küche, und das Licht geht nicht mit dem Schalter an."
    )
    (notes / "four.md").write_text("Ключ от дома лежит на кухне.")
    assert "not in English" not in index(notes).out, "nobody knows what this embedder knows"
    monkeypatch.setattr(Embedder, "load", lambda *_, **__: WordEmbedder(name=HUB_NAME))
    said = (
        "2 of 4 files are not in English, which is all that the embedder knows; set retrieval.embedder to "
        '"multilingual"'
    )
    assert f"{said}.\n" in index(notes).out
    monkeypatch.setattr("tandem.cli.index.has_multilingual", lambda: False)
    (notes / "drei.md").unlink()
    assert "1 of 3 files is not in English" in (out := index(notes).out)
    assert 'to "multilingual" and run `' in out


# ---- caches ----------------------------------------------------------------------------------------------------


def kv_files() -> list[Path]:
    return sorted(index_folder(Party.DEVICE).glob("kv/*/*/*"))


def kv_bytes() -> int:
    return sum(path.stat().st_size for path in kv_files())


def test_caches_are_computed_once_and_follow_the_index(notes: Path, index: IndexRun) -> None:
    shown = index(notes, "--precompute-kv")
    assert f"Caches: 2 chunks computed, 0 already there; {kv_bytes() / 1e6:.1f} MB" in shown.out
    assert len(kv_files()) == 2
    (notes / "two.md").write_text("# Two\n\nTom prefers go.")
    shown = index(notes, "--precompute-kv", "--json")
    report = json.loads(shown.out)["kv"]
    assert (report["num_computed"], report["num_present"], report["num_bytes"]) == (1, 1, kv_bytes())
    assert (shown.code, shown.err) == (0, "")
    assert len(kv_files()) == 2  # that of the text before is gone


@pytest.mark.parametrize("kind", ["off", "memory"])
def test_a_store_that_keeps_nothing_is_found_before_the_index_is_built(
    notes: Path, index: IndexRun, kind: str
) -> None:
    assert index(notes, "--precompute-kv", "--set", f"device.kv_store={kind}") == (
        1,
        "",
        f'tandem: Caches are precomputed for a store on disk, but device.kv_store is "{kind}"; set it to "disk", or '
        "omit --precompute-kv.\n",
    )
    assert not index_folder(Party.DEVICE).exists()


# ---- an index that has grown -------------------------------------------------------------------------------------


@pytest.fixture
def many(notes: Path, index: IndexRun) -> Path:
    for number in range(28):
        (notes / f"note-{number}.txt").write_text(f"Note {'x' * number}.")
    assert index(notes).code == 0
    return notes


def sources() -> set[str]:
    return {chunk.metadata["source"] for chunk in opened().chunks()}


def test_another_path_is_refused_before_the_embedder_is_loaded(
    many: Path, embedders: list[str], index: IndexRun
) -> None:
    embedders.clear()
    note = many / "note-9.txt"
    shown = index(note)
    assert (shown.code, shown.err.splitlines()[-1]) == (
        1,
        f"tandem: The index {index_folder(Party.DEVICE)} was built from {many}, and building it from {note} would "
        "delete 29 documents; use --replace (in Python replace=True: the index becomes this alone), "
        f"--add {note} (adds it to what is there), or --delete NAME (removes a document).",
    )
    assert embedders == []
    assert len(sources()) == 30


@pytest.fixture
def settings(folders: Path) -> list[str]:
    """The settings that name an index of two notes and a page."""
    documents = [
        Document(page_content="Mira likes\npuzzle games.", metadata={"source": "mira.md", "year": 2024}),
        Document(page_content="Tom likes chess.", metadata={"source": "tom.md", "year": 2023}),
        Document(page_content="games " * 200, metadata={"source": "rules.pdf", "page": 3}),
    ]
    build_index(documents, folders / "index", WordEmbedder())
    return ["--set", f"device.index={folders / 'index'}"]


def test_passages_best_first(settings: list[str], run: Run) -> None:
    words = ("search", "device", "puzzle games", "--num-documents", "2", *settings)
    shown = run(*words, code=0)
    lines = shown.out.splitlines()
    assert lines[0].split()[::2] == ["1", "mira.md"]
    assert lines[1:4] == ["    Mira likes", "    puzzle games.", "    year=2024"]
    assert lines[4].split()[2:] == ["rules.pdf,", "page", "3"]
    assert lines[-1] == "    ..."
    assert len(lines) == 9, "an excerpt of three lines"
    assert "found      2 passages of 4" in shown.err
    assert run(*words, "--full", code=0).out.count("games") > 100


def test_the_lines_that_fit_are_shown() -> None:
    lines = [f"    line {n}" for n in range(9)]
    lines[5] = "    the key of the hut"
    assert excerpt(lines, "Where is the hut's key?") == ["    ...", *lines[3:6], "    ..."]
    assert excerpt(lines, "nothing of it") == [*lines[:3], "    ..."]
    assert excerpt(lines[:2], "hut") == lines[:2]


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
