"""`tandem index` with an embedder that needs no model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tandem.errors import GenerationError, RetrievalError
from tandem.retrieval import Embedder, Index
from tandem.system.file_kinds import as_text
from tandem.system.paths import index_folder
from tandem.topology import Party

from .conftest import Run, Shown

IndexRun = Callable[..., Shown]


class LengthEmbedder:
    """Texts of one length get one vector."""

    name = "lengths"
    dimension = 2
    window = None
    fingerprint = "f" * 32

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> np.ndarray:
        angles = np.array([len(text) for text in texts], np.float32)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.fixture(autouse=True)
def embedders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the embedders that were loaded."""
    loaded: list[str] = []

    def load(name: str = "auto", **_: object) -> LengthEmbedder:
        loaded.append(name)
        return LengthEmbedder()

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
    assert len(Index.open(out, LengthEmbedder.fingerprint)) == 2
    assert shown.out.splitlines() == [
        f"Indexed: 2 files, 2 chunks in {out} (Flat, lengths)",
        "Chunks: 2 added, 0 replaced, 0 deleted, 0 unchanged; 2 texts embedded",
        f"From: {notes}",
        f"Use it: tandem ask --set device.index={out} QUESTION",
        f'or permanently, in tandem.toml: device.index = "{out}"',
    ]
    assert "chunks     2 of 2" in shown.err
    assert index(notes).out.startswith("Unchanged: 2 files, 2 chunks")


def test_ids_are_opaque(notes: Path, run: Run) -> None:
    for party in ("device", "cloud"):
        run("index", party, str(notes))
    one, other = (Index.open(index_folder(party)).document(0).id for party in Party)
    assert one != other  # each index has its own key


def test_options_reach_the_index(notes: Path, folders: Path, embedders: list[str], index: IndexRun) -> None:
    settings = ["--set", "retrieval.embedder=offline", "--set", "retrieval.chunk_chars=12"]
    settings += ["--set", "retrieval.chunk_overlap=2"]
    out = folders / "elsewhere"
    assert index(notes, "--out", out, "--factory", "HNSW8", *settings).code == 0
    assert Index.open(out).manifest.factory == "HNSW8"
    assert len(Index.open(out)) > 2
    assert embedders == ["offline"]


def test_an_unreadable_file_among_good_ones(notes: Path, index: IndexRun) -> None:
    (notes / "broken.pdf").write_bytes(b"no pdf")
    shown = index(notes)
    assert "2 files, 2 chunks, 1 problem in" in shown.out
    assert "tandem: broken.pdf was left out" in shown.err
    shown = index(notes, "--json")
    value = json.loads(shown.out)
    assert (value["party"], value["num_files"], value["num_chunks"]) == ("device", 2, 2)
    assert (len(value["problems"]), shown.code, shown.err) == (1, 0, "")


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


def test_an_embedder_that_is_not_there(notes: Path, index: IndexRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str = "auto", **_: object) -> LengthEmbedder:
        raise RetrievalError("No embedder.")

    monkeypatch.setattr(Embedder, "load", load)
    shown = index(notes)
    assert (shown.code, shown.err.splitlines()[-1]) == (1, "tandem: No embedder.")


# ---- caches ----------------------------------------------------------------------------------------------------


def kv_files() -> list[Path]:
    return sorted(index_folder(Party.DEVICE).glob("kv/*/*/*"))


def kv_bytes() -> int:
    return sum(path.stat().st_size for path in kv_files())


def test_caches_are_computed_once_and_follow_the_index(notes: Path, index: IndexRun) -> None:
    shown = index(notes, "--precompute-kv")
    assert f"Caches: 2 chunks computed, 0 already there; {kv_bytes() / 1e6:.1f} MB" in shown.out
    assert "caches: 100 %" in shown.err
    assert len(kv_files()) == 2
    (notes / "two.md").write_text("# Two\n\nTom prefers go.")
    shown = index(notes, "--precompute-kv", "--json")
    report = json.loads(shown.out)["kv"]
    assert (report["num_computed"], report["num_present"], report["num_bytes"]) == (1, 1, kv_bytes())
    assert (shown.code, shown.err) == (0, "")
    assert len(kv_files()) == 2  # that of the text before is gone


def test_caches_of_an_index_that_changed_go_without_kv(notes: Path, index: IndexRun) -> None:
    index(notes, "--precompute-kv")
    index(notes)
    assert len(kv_files()) == 2
    (notes / "one.txt").unlink()
    index(notes)
    assert kv_files() == []


def test_caches_go_though_an_earlier_run_changed_the_index(
    notes: Path, index: IndexRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that changed it failed before it came to the caches."""
    index(notes, "--precompute-kv")
    (notes / "one.txt").unlink()

    def failing(*_: object) -> None:
        raise GenerationError("No model.")

    with monkeypatch.context() as patch:
        patch.setattr("tandem.actors.loading.load_engine", failing)
        assert index(notes, "--precompute-kv").code == 1
    assert len(kv_files()) == 2
    assert index(notes).out.startswith("Unchanged")
    assert kv_files() == []
    index(notes, "--precompute-kv")
    (notes / "three.txt").write_text("More.")
    index(notes, "--precompute-kv")
    index(notes)
    assert len(kv_files()) == 2


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


def test_caches_that_cannot_all_be_kept(notes: Path, index: IndexRun) -> None:
    (notes / "long.txt").write_text("Vantelu Cor has 40 levels. " * 200)
    longer = ["--precompute-kv", "--set", "retrieval.chunk_chars=9000"]
    text = "1 chunk exceeds the model's context and will be computed when used; change retrieval.chunk_chars."
    assert f"tandem: {text}" in index(notes, *longer).err
    largest = max(path.stat().st_size for path in kv_files())
    for path in kv_files():
        path.unlink()
    shown = index(notes, *longer, "--set", f"device.kv_max_bytes={int(1.2 * largest)}")
    assert "1 chunk does not fit into the store or on its disk and will be computed when used; " in shown.err
    assert len(kv_files()) == 1


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


def test_replacing_adding_and_deleting(many: Path, folders: Path, index: IndexRun) -> None:
    shown = index("--delete", "note-99.txt")
    assert (shown.code, shown.err.splitlines()[-1]) == (
        1,
        "tandem: note-99.txt was not deleted: the index holds nothing of it; did you mean note-9.txt?",
    )
    note = many / "note-9.txt"
    note.write_text("Other.")
    assert "Chunks: 0 added, 1 replaced, 0 deleted, 29 unchanged" in index("--add", note).out
    pages = folders / "pages"
    pages.mkdir()
    (pages / "one.txt").write_text("A page.")
    assert f"From: {many}, {pages}" in index("--add", pages).out
    assert "pages/one.txt" in sources()
    (pages / "two.txt").write_text("Another page.")
    assert index().code == 0, "brings all of it up to date"
    assert {"pages/one.txt", "pages/two.txt", "note-9.txt"} < sources()
    assert index("--delete", "note-9.txt", "--delete", "pages").code == 0
    assert len(sources()) == 29
    assert index(note, "--replace").code == 0
    assert sources() == {"note-9.txt"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x --add y", "PATH must be left out with --add and --delete; see `tandem index --help`."),
        ("--replace", "--replace needs a PATH; see `tandem index --help`."),
    ],
)
def test_options_that_do_not_fit(line: str, sentence: str, index: IndexRun) -> None:
    assert index(*line.split()) == (2, "", f"tandem: {sentence}\n")


def test_nothing_to_bring_up_to_date(index: IndexRun) -> None:
    shown = index()
    assert (shown.code, shown.err.splitlines()[-1]) == (
        1,
        "tandem: An index is brought up to date from what it was built from, but "
        f"{index_folder(Party.DEVICE)} remembers none; name a file or folder.",
    )


def test_the_settings_say_where_the_index_goes(notes: Path, index: IndexRun) -> None:
    Path("tandem.toml").write_text('[device]\nindex = "mine"\n')
    assert index(notes).out.endswith("Use it: tandem ask QUESTION\n")
    assert len(Index.open(Path("mine"))) == 2


def test_changed_metadata_are_counted(notes: Path, index: IndexRun) -> None:
    (notes / "two.md").write_text("---\nyear: 2023\n---\nTom likes chess.")
    index(notes)
    (notes / "two.md").write_text("---\nyear: 2024\n---\nTom likes chess.")
    changes = "Chunks: 0 added, 0 replaced, 0 deleted, 1 with other metadata, 1 unchanged; 0 texts embedded"
    assert changes in index(notes).out
    assert [chunk.metadata.get("year") for chunk in opened().chunks()] == [None, 2024]


def test_help_shows_the_table_of_kinds(index: IndexRun) -> None:
    shown = index("--help").out
    assert all(line in shown for line in as_text().splitlines())
