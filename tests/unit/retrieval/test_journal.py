"""The journal of a build: what was appended comes back, and nothing that was not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem.retrieval.journal import Journal, text_key

KEYS = [text_key(text) for text in ("one", "two", "three")]
VECTORS = np.arange(12, dtype=np.float32).reshape(3, 4)


def opened(path: Path, fingerprint: str = "f", dimension: int = 4) -> Journal:
    return Journal(path, fingerprint, dimension)


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


@pytest.mark.parametrize("cut", [1, 12, 36, 37])
def test_a_record_that_was_cut_off_is_dropped_and_can_be_written_again(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    num_kept = 3 - (cut + 35) // 36
    with opened(path) as journal:
        assert len(journal) == num_kept
        journal.append(KEYS[num_kept:], VECTORS[num_kept:])
    with opened(path) as journal:
        assert np.array_equal(journal.vectors(KEYS), VECTORS)


@pytest.mark.parametrize("place", [32, 50, 70])
def test_a_flipped_bit_ends_what_is_trusted(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    with opened(path) as journal:
        assert len(journal) == (place - 32) // 36


def test_another_embedder_starts_anew(path: Path) -> None:
    with opened(path, dimension=8) as journal:
        assert len(journal) == 0
    with opened(path, "g") as journal:
        journal.append(KEYS[:1], VECTORS[:1])
    assert len(opened(path)) == 0


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 500])
def test_any_bytes_can_be_there(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "j").write_bytes(data)
    with opened(tmp_path / "j") as journal:
        journal.append(KEYS, VECTORS)
    assert len(opened(tmp_path / "j")) == 3
