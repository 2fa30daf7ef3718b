"""An editable installation of a clone, used from where people put their scripts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tandem

pytest.importorskip("setuptools", reason="setuptools, which builds Tandem, is not installed here")
ROOT = Path(tandem.__file__).parents[1]
BUILD = "from setuptools import build_meta; print(build_meta.build_editable('built'))"
SCRIPT = "from tandem import ConfigError, __version__\nprint(__version__, ConfigError.__module__)\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in a folder named as the package, with no more than this test imports."""
    clone = tmp_path / "tandem"
    (clone / "tandem" / "system").mkdir(parents=True)
    package = ("tandem/__init__.py", "tandem/errors.py", "tandem/system/__init__.py")
    for name in ("pyproject.toml", "README.md", "LICENSE", *package):
        if not (ROOT / name).exists():
            pytest.skip(f"{name} is not part of this installation")
        shutil.copy(ROOT / name, clone / name)
    return clone


def install(clone: Path, environment: Path) -> Path:
    """An editable installation, as pip makes it, in a new virtual environment; its interpreter."""
    subprocess.run([sys.executable, "-c", BUILD], cwd=clone, check=True, capture_output=True)
    venv.create(environment, with_pip=False, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (wheel,) = (clone / "built").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(packages)
    return environment / "bin" / "python"


def test_a_system_that_is_none_of_these_is_told_so() -> None:
    """One sentence, instead of a module that only other systems have."""
    script = "import sys; sys.platform = 'win32'; import tandem.cli"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: Tandem runs on Linux and macOS; on Windows, install it within WSL 2."


def test_a_script_beside_the_clone_imports_the_package(clone: Path, tmp_path: Path) -> None:
    """Its folder comes first in the search, and holds a folder "tandem" that is no package."""
    python = install(clone, tmp_path / "venv")
    script = tmp_path / "ask.py"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for folder in (tmp_path, clone, Path("/")):
        done = subprocess.run(
            [python, script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == (f"{tandem.__version__} tandem.errors\n", "")
