"""`tandem index` with an embedder that needs no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tandem.cli import main
from tandem.errors import GenerationError, RetrievalError
from tandem.retrieval import Embedder, Index
from tandem.system.file_kinds import as_text
from tandem.system.paths import index_folder
from tandem.topology import Party


class LengthEmbedder:
    """Texts of one length get one vector."""

    name = "lengths"
    dimension = 2
    fingerprint = "f" * 32

    def embed(self, texts: Sequence[str], *, keep_end: bool = False) -> np.ndarray:
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
def notes(folders: Path) -> Path:
    folder = folders / "notes"
    folder.mkdir()
    (folder / "one.txt").write_text("Mira likes puzzle games.")
    (folder / "two.md").write_text("# Two\n\nTom likes chess.")
    return folder


def test_an_index_and_how_to_use_it(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "device", str(notes)]) == 0
    out = index_folder(Party.DEVICE)
    assert len(Index.open(out, LengthEmbedder.fingerprint)) == 2
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"Indexed: 2 files, 2 chunks in {out} (Flat, lengths)",
        "Chunks: 2 added, 0 replaced, 0 deleted, 0 unchanged; 2 texts embedded",
        f"From: {notes}",
        f"Use it: tandem ask --set device.index={out} QUESTION",
        f'or permanently, in tandem.toml: device.index = "{out}"',
    ]
    assert "chunks     2 of 2" in shown.err
    assert main(["index", "device", str(notes)]) == 0
    assert capsys.readouterr().out.startswith("Unchanged: 2 files, 2 chunks")


def test_ids_are_opaque(notes: Path) -> None:
    for party in ("device", "cloud"):
        assert main(["index", party, str(notes)]) == 0
    one, other = (Index.open(index_folder(party)).document(0).id for party in Party)
    assert one != other  # each index has its own key


def test_options_reach_the_index(notes: Path, folders: Path, embedders: list[str]) -> None:
    settings = ["--set", "retrieval.embedder=offline", "--set", "retrieval.chunk_chars=12"]
    settings += ["--set", "retrieval.chunk_overlap=2"]
    out = folders / "elsewhere"
    assert main(["index", "cloud", str(notes), "--out", str(out), "--factory", "HNSW8", *settings]) == 0
    index = Index.open(out)
    assert index.manifest.factory == "HNSW8"
    assert len(index) > 2
    assert embedders == ["offline"]


def test_json(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (notes / "broken.pdf").write_bytes(b"no pdf")
    assert main(["index", "device", str(notes), "--json"]) == 0
    shown = capsys.readouterr()
    value = json.loads(shown.out)
    assert (value["party"], value["num_files"], value["num_chunks"]) == ("device", 2, 2)
    assert len(value["problems"]) == 1
    assert shown.err == ""


def test_an_unreadable_file_among_good_ones(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (notes / "broken.pdf").write_bytes(b"no pdf")
    assert main(["index", "device", str(notes)]) == 0
    shown = capsys.readouterr()
    assert "2 files, 2 chunks, 1 problem in" in shown.out
    assert "tandem: broken.pdf was left out" in shown.err


def test_a_missing_corpus_is_found_before_the_embedder_is_loaded(
    embedders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "device", "/no/such/folder"]) == 1
    assert "/no/such/folder does not exist" in capsys.readouterr().err
    assert embedders == []


def test_an_error_loses_nothing(notes: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "device", str(notes)]) == 0
    empty = folders / "empty"
    empty.mkdir()
    assert main(["index", "device", str(empty)]) == 1
    assert main(["index", "device", str(notes), "--factory", "Nonsense"]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tandem: ")]
    assert len(errors) == 2
    assert len(Index.open(index_folder(Party.DEVICE))) == 2


def test_an_embedder_that_is_not_there(
    notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str = "auto", **_: object) -> LengthEmbedder:
        raise RetrievalError("No embedder.")

    monkeypatch.setattr(Embedder, "load", load)
    assert main(["index", "device", str(notes)]) == 1
    assert capsys.readouterr().err.endswith("tandem: No embedder.\n")


def kv_files(party: Party = Party.DEVICE) -> list[Path]:
    return sorted(index_folder(party).glob("kv/*/*/*"))


def test_caches_are_computed_once_and_follow_the_index(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", "device", str(notes), "--precompute-kv"]) == 0
    shown = capsys.readouterr()
    size = sum(path.stat().st_size for path in kv_files())
    assert f"Caches: 2 chunks computed, 0 already there; {size / 1e6:.1f} MB" in shown.out
    assert "caches: 100 %" in shown.err
    assert len(kv_files()) == 2
    (notes / "two.md").write_text("# Two\n\nTom prefers go.")
    assert main(["index", "device", str(notes), "--precompute-kv", "--json"]) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)["kv"]
    assert (report["num_computed"], report["num_present"], report["num_bytes"]) == (
        1,
        1,
        sum(path.stat().st_size for path in kv_files()),
    )
    assert shown.err == ""
    assert len(kv_files()) == 2  # that of the text before is gone


def test_caches_of_an_index_that_changed_go_without_kv(notes: Path) -> None:
    assert main(["index", "device", str(notes), "--precompute-kv"]) == 0
    assert main(["index", "device", str(notes)]) == 0
    assert len(kv_files()) == 2
    (notes / "one.txt").unlink()
    assert main(["index", "device", str(notes)]) == 0
    assert kv_files() == []


def test_caches_go_though_an_earlier_run_changed_the_index(
    notes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run that changed it failed before it came to the caches."""
    assert main(["index", "device", str(notes), "--precompute-kv"]) == 0
    (notes / "one.txt").unlink()

    def failing(*_: object) -> None:
        raise GenerationError("No model.")

    with monkeypatch.context() as patch:
        patch.setattr("tandem.actors.loading.load_engine", failing)
        assert main(["index", "device", str(notes), "--precompute-kv"]) == 1
    assert len(kv_files()) == 2
    capsys.readouterr()
    assert main(["index", "device", str(notes)]) == 0
    assert capsys.readouterr().out.startswith("Unchanged")
    assert kv_files() == []
    assert main(["index", "device", str(notes), "--precompute-kv"]) == 0
    (notes / "three.txt").write_text("More.")
    assert main(["index", "device", str(notes), "--precompute-kv"]) == 0
    assert main(["index", "device", str(notes)]) == 0
    assert len(kv_files()) == 2


def test_a_store_that_keeps_nothing_is_found_before_the_index_is_built(notes: Path) -> None:
    assert main(["index", "device", str(notes), "--precompute-kv", "--set", "device.kv_store=off"]) == 1
    assert not index_folder(Party.DEVICE).exists()


def test_caches_that_cannot_all_be_kept(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (notes / "long.txt").write_text("Vantelu Cor has 40 levels. " * 200)
    longer = ["--set", "retrieval.chunk_chars=9000"]
    assert main(["index", "device", str(notes), "--precompute-kv", *longer]) == 0
    text = "1 chunk exceeds the model's context and will be computed when used; change retrieval.chunk_chars."
    assert f"tandem: {text}" in capsys.readouterr().err
    largest = max(path.stat().st_size for path in kv_files())
    for path in kv_files():
        path.unlink()
    less = ["--set", f"device.kv_max_bytes={int(1.2 * largest)}"]
    assert main(["index", "device", str(notes), "--precompute-kv", *longer, *less]) == 0
    assert (
        "1 chunk does not fit into the store or on its disk and will be computed when used; "
        in capsys.readouterr().err
    )
    assert len(kv_files()) == 1
    assert main(["index", "device", str(notes), "--precompute-kv", "--set", "device.kv_store=memory"]) == 1
    assert capsys.readouterr().err.endswith(
        'tandem: Caches are precomputed for a store on disk, but device.kv_store is "memory"; '
        'set it to "disk", or omit --precompute-kv.\n'
    )


@pytest.fixture
def many(notes: Path) -> Path:
    for number in range(28):
        (notes / f"note-{number}.txt").write_text(f"Note {'x' * number}.")
    assert main(["index", "device", str(notes)]) == 0
    return notes


def sources() -> set[str]:
    index = Index.open(index_folder(Party.DEVICE))
    return {chunk.metadata["source"] for chunk in index.chunks()}


def test_another_path_is_refused_before_the_embedder_is_loaded(
    many: Path, embedders: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    embedders.clear()
    capsys.readouterr()
    note = many / "note-9.txt"
    assert main(["index", "device", str(note)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"tandem: The index {index_folder(Party.DEVICE)} was built from {many}, and building it from {note} would "
        "delete 29 documents; use --replace (in Python replace=True: the index becomes this alone), "
        f"--add {note} (adds it to what is there), or --delete NAME (removes a document)."
    )
    assert embedders == []
    assert len(sources()) == 30


def test_replacing_adding_and_deleting(many: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = many / "note-9.txt"
    note.write_text("Other.")
    assert main(["index", "device", "--add", str(note)]) == 0
    assert "Chunks: 0 added, 1 replaced, 0 deleted, 29 unchanged" in capsys.readouterr().out
    pages = folders / "pages"
    pages.mkdir()
    (pages / "one.txt").write_text("A page.")
    assert main(["index", "device", "--add", str(pages)]) == 0
    assert f"From: {many}, {pages}" in capsys.readouterr().out
    assert "pages/one.txt" in sources()
    (pages / "two.txt").write_text("Another page.")
    assert main(["index", "device"]) == 0, "brings all of it up to date"
    assert {"pages/one.txt", "pages/two.txt", "note-9.txt"} < sources()
    assert main(["index", "device", "--delete", "note-9.txt", "--delete", "pages"]) == 0
    assert len(sources()) == 29
    assert main(["index", "device", str(note), "--replace"]) == 0
    assert sources() == {"note-9.txt"}


def test_deleting_what_is_not_there(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "device", "--delete", "note-99.txt"]) == 1
    assert capsys.readouterr().err.endswith(
        "tandem: note-99.txt was not deleted: the index holds nothing of it; did you mean note-9.txt?\n"
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "index device x --add y",
            "PATH must be left out with --add and --delete; see `tandem index --help`.",
        ),
        ("index device --replace", "--replace needs a PATH; see `tandem index --help`."),
    ],
)
def test_options_that_do_not_fit(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"tandem: {sentence}\n"


def test_nothing_to_bring_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "device"]) == 1
    assert capsys.readouterr().err.endswith(
        "tandem: An index is brought up to date from what it was built from, but "
        f"{index_folder(Party.DEVICE)} remembers none; name a file or folder.\n"
    )


def test_the_settings_say_where_the_index_goes(
    notes: Path, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tandem.toml").write_text('[device]\nindex = "mine"\n')
    assert main(["index", "device", str(notes)]) == 0
    assert len(Index.open(Path("mine"))) == 2
    assert capsys.readouterr().out.endswith("Use it: tandem ask QUESTION\n")


def test_changed_metadata_are_counted(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (notes / "two.md").write_text("---\nyear: 2023\n---\nTom likes chess.")
    assert main(["index", "device", str(notes)]) == 0
    (notes / "two.md").write_text("---\nyear: 2024\n---\nTom likes chess.")
    capsys.readouterr()
    assert main(["index", "device", str(notes)]) == 0
    shown = capsys.readouterr().out
    assert (
        "Chunks: 0 added, 0 replaced, 0 deleted, 1 with other metadata, 1 unchanged; 0 texts embedded"
        in shown
    )
    years = [chunk.metadata.get("year") for chunk in Index.open(index_folder(Party.DEVICE)).chunks()]
    assert years == [None, 2024]


def test_help_shows_the_table_of_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(line in shown for line in as_text().splitlines())
