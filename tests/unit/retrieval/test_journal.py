"""The journal of a build: what was appended comes back, and nothing that was not."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tandem.retrieval.store import Journal, text_key

KEYS = [text_key(text) for text in ("one", "two", "three")]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)


def opened(path: Path, fingerprint: str = "f", dimension: int = 4) -> Journal:
    return Journal(path, fingerprint, dimension)


def num_kept(path: Path, fingerprint: str = "f") -> int:
    with opened(path, fingerprint) as journal:
        return len(journal)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "j") as journal:
        journal.append(KEYS[:2], VECTORS[:2])
        journal.append(KEYS[2:], VECTORS[2:])
    return tmp_path / "j"


def test_what_was_appended_comes_back(path: Path) -> None:
    with opened(path) as journal:
        assert len(journal) == 3
        assert np.array_equal(journal.vectors([KEYS[2], KEYS[0], KEYS[2]]), VECTORS[[2, 0, 2]])
        assert text_key("four") not in journal
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("column", ["key", "vector"])
def test_a_vector_that_does_not_fit_its_checksum_is_dropped_and_can_be_written_again(
    path: Path, column: str
) -> None:
    database = sqlite3.connect(path)
    (data,) = database.execute(f"SELECT {column} FROM embedded WHERE row = 1").fetchone()
    changed = bytes([data[0] ^ 4]) + data[1:]
    database.execute(f"UPDATE embedded SET {column} = ? WHERE row = 1", (changed,))
    database.commit()
    database.close()
    with opened(path) as journal:
        assert [key in journal for key in KEYS] == [False, True, True]
        journal.append(KEYS[:1], VECTORS[:1])
    with opened(path) as journal:
        assert np.array_equal(journal.vectors(KEYS), VECTORS)


@pytest.mark.parametrize("cut", [1, 1000, 65_536, 100_000])
def test_a_file_that_was_cut_off_gives_no_wrong_vector(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    with opened(path) as journal:
        known = [place for place, key in enumerate(KEYS) if key in journal]
        if known:
            assert np.array_equal(journal.vectors([KEYS[place] for place in known]), VECTORS[known])
        journal.append(KEYS, VECTORS)
    with opened(path) as journal:
        assert np.array_equal(journal.vectors(KEYS), VECTORS)


def test_another_embedder_finds_nothing_of_the_first(path: Path) -> None:
    with opened(path, dimension=8) as journal:
        assert len(journal) == 0
    with opened(path, "g") as journal:
        journal.append(KEYS[:1], VECTORS[1:2])
    with opened(path, "g") as journal:
        assert np.array_equal(journal.vectors(KEYS[:1]), VECTORS[1:2])
    assert (num_kept(path, "g"), num_kept(path)) == (1, 3)


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 500])
def test_any_bytes_can_be_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "j").write_bytes(data)
    with opened(tmp_path / "j") as journal:
        journal.append(KEYS, VECTORS)
    assert num_kept(tmp_path / "j") == 3
