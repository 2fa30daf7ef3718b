"""Folders by the rules of the platform, and the fallback for caches that nobody else may have prepared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.errors import ConfigError
from tandem.system import paths


@pytest.mark.parametrize(
    ("function", "variable", "default"),
    [
        (paths.cache_folder, "XDG_CACHE_HOME", ".cache"),
        (paths.data_folder, "XDG_DATA_HOME", ".local/share"),
        (paths.state_folder, "XDG_STATE_HOME", ".local/state"),
    ],
)
def test_folders_of_the_platform(
    function, variable: str, default: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    assert function() == tmp_path / default / "tandem"
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    assert function() == tmp_path / "elsewhere" / "tandem"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for caches when the user's own cannot be written: it is a file."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"tandem-cache-{os.getuid()}"


def test_a_temporary_folder_of_this_user_alone(temporary: Path) -> None:
    assert paths.cache_folder() == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert paths.cache_folder() == temporary


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o704])
def test_a_temporary_folder_that_others_may_use_is_refused(temporary: Path, mode: int) -> None:
    temporary.mkdir()
    temporary.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        paths.cache_folder()
    assert str(caught.value) == (
        f"The folder for caches must belong to this user alone, but {temporary} belongs to uid {os.getuid()} "
        f"with mode {mode:04o}; remove it, or set XDG_CACHE_HOME to a writable folder."
    )


def test_a_temporary_folder_of_another_user_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.getuid() + 1
    theirs = temporary.with_name(f"tandem-cache-{uid}")
    theirs.mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: uid)
    with pytest.raises(ConfigError, match=rf"belongs to uid {uid - 1} with mode 0700; remove it"):
        paths.cache_folder()
