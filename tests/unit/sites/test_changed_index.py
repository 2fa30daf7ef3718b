"""A device's index that changes on disk, in place and by another one, while it is asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tandem import Config, Tandem
from tandem.retrieval import Embedder, build_index
from tandem.topology import Party

QUESTION = "Which game should Mira try?"


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("company") / "notes"
    folder.mkdir()
    (folder / "mira.txt").write_text("Mira likes puzzle games.")
    build_index(folder, folder.parent / "index", Embedder.load("offline"))
    return folder


@pytest.fixture(scope="module")
def rag(notes: Path) -> Iterator[Tandem]:
    settings = (
        f"device.index={notes.parent / 'index'}",
        "sampling.max_new_tokens=6",
        "link.on_peer_loss=wait",
    )
    with Tandem.launch(Config.load(None, settings), runtime="inline") as tandem:
        yield tandem


def texts(rag: Tandem) -> set[str]:
    return {source.text or "" for source in rag.query(QUESTION).sources if source.party is Party.DEVICE}


def test_the_next_question_finds_what_was_added(rag: Tandem, notes: Path) -> None:
    index, embedder = notes.parent / "index", Embedder.load("offline")
    assert texts(rag) == {"Mira likes puzzle games."}
    (notes / "tom.txt").write_text("Tom likes chess.")
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(texts, rag) for _ in range(4)]
        build_index(notes, index, embedder)
        seen = [answer.result() for answer in answers]
    whole = [{"Mira likes puzzle games."}, {"Mira likes puzzle games.", "Tom likes chess."}]
    assert all(found in whole for found in seen), "each query used one index"
    assert texts(rag) == whole[1]
    shutil.rmtree(index)
    (notes / "mira.txt").unlink()
    build_index(notes, index, embedder)
    assert texts(rag) == {"Tom likes chess."}
