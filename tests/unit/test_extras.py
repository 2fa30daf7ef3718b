"""The line that installs an extra is the one for this very installation."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import install_line


class Installed:
    """A distribution that came from somewhere."""

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


def line(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> list[str]:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin))
    return shlex.split(install_line("lab"))[1:]


def test_of_a_clone_its_folder_and_constraints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    origin = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    assert line(monkeypatch, origin) == ["-m", "pip", "install", "-e", f"{clone}[lab]"]
    (clone / "constraints.txt").touch()
    constraints = ["-c", f"{clone}/constraints.txt"]
    assert line(monkeypatch, origin) == ["-m", "pip", "install", *constraints, "-e", f"{clone}[lab]"]
    assert line(monkeypatch, {"url": clone.as_uri(), "dir_info": {}})[3:] == [*constraints, f"{clone}[lab]"]


def test_of_a_wheel_its_file_or_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "tandem_rag-0.2.0-py3-none-any.whl"
    assert line(monkeypatch, {"url": (tmp_path / name).as_uri(), "archive_info": {}})[3:] == [
        f"{tmp_path}/{name}[lab]"
    ]
    address = f"https://example.org/{name}"
    assert line(monkeypatch, {"url": address, "archive_info": {}})[3:] == [f"tandem-rag[lab] @ {address}"]


@pytest.mark.parametrize("is_active", [True, False])
def test_the_interpreter_that_runs_now(monkeypatch: pytest.MonkeyPatch, is_active: bool) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: sys.executable if is_active else "/usr/bin/python")
    assert shlex.split(install_line("lab"))[0] == ("python" if is_active else sys.executable)
