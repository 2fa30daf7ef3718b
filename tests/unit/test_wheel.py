"""The wheel: what is in it, and that it runs from where it is unpacked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tandem

ROOT = Path(tandem.__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="an installed package has nothing to build a wheel of"
)


def run(*command: str, **environment: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy, since setuptools leaves folders beside what it builds, and takes what is in them."""
    clone, folder = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("tandem", "examples", "benchmarks", "tests/server"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(clone),
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, as pip would leave them."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_it_holds_the_package_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {
        path for path in (ROOT / "tandem").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == {path.relative_to(ROOT).as_posix() for path in package}
    for suffix in (".html", ".js", ".css", ".safetensors", ".npy", "py.typed", "server/grafana.json"):
        assert [name for name in names if name.endswith(suffix)], suffix
    assert wheel.stat().st_size < 20_000_000


def test_it_offers_the_command_and_the_extras(site: Path) -> None:
    (info,) = site.glob("tandem_rag-*.dist-info")
    assert (info / "entry_points.txt").read_text().split() == [
        "[console_scripts]",
        "tandem",
        "=",
        "tandem.cli:main",
    ]
    metadata = (info / "METADATA").read_text("utf-8")
    assert f"Version: {tandem.__version__}\n" in metadata
    for extra in (
        "all",
        "embedders",
        "langchain",
        "llama",
        "llamaindex",
        "offline",
        "ray",
        "server",
        "torch",
    ):
        assert f"Provides-Extra: {extra}\n" in metadata


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(("--version",), tandem.__version__), (("serve", "--help"), "--listen")],
)
def test_it_runs_where_it_is_unpacked(
    site: Path, tmp_path: Path, arguments: tuple[str, ...], shown: str
) -> None:
    where = "import tandem; print(tandem.__file__)"
    assert run("-P", "-c", where, PYTHONPATH=str(site)).startswith(str(site))
    assert shown in run("-P", "-m", "tandem", *arguments, PYTHONPATH=str(site), COLUMNS="200")


def test_without_the_laboratory_a_sentence_says_where_it_is(site: Path) -> None:
    ask = (
        "import sys; from pathlib import Path; "
        "sys.path[:] = [each for each in sys.path if not (Path(each) / 'tandem_lab').exists()]; "
        "from tandem.cli import main; sys.exit(main(['lab', 'fuzz']))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", ask],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tandem: The laboratory does not come with the package; ")
