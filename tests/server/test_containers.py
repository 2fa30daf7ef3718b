"""The container files as far as they can be checked without a daemon: what they copy, start, and ask for health."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import tandem
from tests.server.running import Served

ROOT = Path(tandem.__file__).parents[1]
FILE = ROOT / "containers" / "Dockerfile"

pytestmark = pytest.mark.skipif(
    not FILE.exists(), reason="the container files are not part of this installation"
)


def targets() -> dict[str, str]:
    """The instructions of each stage, long lines joined."""
    text = re.sub(r"\\\n\s*", "", FILE.read_text("utf-8"))
    return dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", text, re.MULTILINE | re.DOTALL))


def command(target: str, instruction: str) -> list[str]:
    """The arguments of an instruction's CMD."""
    (found,) = re.findall(rf"^{instruction}(\[.*\])$", targets()[target], re.MULTILINE)
    arguments: list[str] = json.loads(found)
    return arguments


def probe(target: str, port: int) -> int:
    """How the health check of an image ends, with another port."""
    program, *arguments = command(target, "HEALTHCHECK .*CMD ")
    assert program == "python"
    own = {"cloud": "7800", "device": "8000"}[target]
    assert own in arguments[1]
    arguments[1] = arguments[1].replace(own, str(port))
    return subprocess.run([sys.executable, *arguments], stderr=subprocess.DEVNULL, check=False).returncode


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (FILE.parent / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", targets()["built"], re.MULTILINE)
        for name in line.split()[:-1]
    }
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_no_process_runs_as_root() -> None:
    assert re.search(r"^USER tandem$", targets()["base"], re.MULTILINE)
    assert not [name for name in ("cloud", "device") if "USER" in targets()[name]]


@pytest.mark.parametrize(("target", "names"), [("cloud", ["cloud", "serve"]), ("device", ["serve"])])
def test_the_command_exists(target: str, names: list[str]) -> None:
    arguments = command(target, "CMD ")
    assert arguments[: len(names)] == names
    done = subprocess.run(
        [sys.executable, "-m", "tandem", *names, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not [word for word in arguments if word.startswith("--") and word not in done.stdout]


@pytest.mark.parametrize("target", ["cloud", "device"])
def test_the_health_check_tells_a_server_from_none(target: str, served: Served) -> None:
    port = urlsplit(served.url).port
    assert port is not None
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert probe(target, unused.getsockname()[1]) != 0
    assert probe(target, port) == 0
