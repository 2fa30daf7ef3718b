"""The folder for temporary files of a command in a network."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

import pytest

from tandem_lab.netlab.inside import _temporary_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_it_goes_with_all_that_is_in_it_however_the_block_ends(place: Path) -> None:
    with _temporary_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a" / "b").mkdir(parents=True)
    assert not list(place.iterdir())
    with pytest.raises(SystemExit), _temporary_folder():
        raise SystemExit(143)
    assert not list(place.iterdir())


def test_an_interruption_while_it_is_made_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path.mkdir

    def interrupted(path: Path, mode: int = 0o777) -> None:
        made(path, mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), _temporary_folder():
        pass
    assert not list(place.iterdir())


def test_the_folder_of_another_run_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["taken", "free"])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(names))
    (place / "td-taken").mkdir()
    with _temporary_folder() as folder:
        assert folder.name == "td-free"
    assert [path.name for path in place.iterdir()] == ["td-taken"]
