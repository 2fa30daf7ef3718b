"""`tandem init` with models from a hub: a small hub on loopback serves two models, a person chooses them on a terminal.

The real client downloads them, and the real command indexes, loads and answers. The hub serves the bundled reader under
the names of a pair, so nothing is larger than two megabytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tandem.cli.init import HUB_PAIRS
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAIR = HUB_PAIRS[0]

pytestmark = pytest.mark.nightly("two models are downloaded, loaded and asked")


class Hub(BaseHTTPRequestHandler):
    """The two calls of huggingface_hub that downloads need: what a repository has, and a file of it."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        file = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/\w+/([\w.-]+)", path)
        if file and file[1] in (PAIR.device, PAIR.cloud) and (WEIGHTS / file[2]).is_file():
            body = (WEIGHTS / file[2]).read_bytes()
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
        elif info := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(/revision/\w+)?", path):
            files = [{"rfilename": entry.name} for entry in WEIGHTS.iterdir()]
            body = json.dumps({"id": info[1], "sha": COMMIT, "siblings": files}).encode()
            self.send_response(200)
        else:
            body = b""
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def converse(command: list[str], replies: list[str], folder: Path, **variables: str) -> str:
    """What a command prints on a terminal on which someone has typed all replies."""
    ours, its = pty.openpty()
    environment = {**os.environ, **variables, "NO_COLOR": "1", "COLUMNS": "200"}
    environment.pop("HF_HUB_OFFLINE", None)
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, cwd=folder, env=environment, start_new_session=True
    ) as process:
        os.close(its)
        os.write(ours, "".join(f"{reply}\n" for reply in replies).encode())
        printed = b""
        while chunk := _read(ours):
            printed += chunk
    os.close(ours)
    assert process.returncode == 0, printed.decode()
    return printed.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def test_a_pair_of_the_hub_is_downloaded_and_answers(hub: str, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("What Mira wants most is a good puzzle game.")
    printed = converse(
        [sys.executable, "-m", "tandem", "init", "notes"],
        ["2", "Which game should Mira try?"],
        tmp_path,
        HF_ENDPOINT=hub,
        HF_HOME=str(tmp_path / "hub"),
        PYTHONPATH=os.pathsep.join(sys.path),
    )
    assert f"2  {PAIR.device} and {PAIR.cloud}: 1.0 GB as bfloat16, downloaded from the hub" in printed
    config = Config.load(tmp_path / "tandem.toml")
    assert (config.device.model, config.cloud.model) == (PAIR.device, PAIR.cloud)
    assert "puzzle" in printed.rpartition("Which game should Mira try?")[2]
    repositories = {path.name for path in (tmp_path / "hub" / "hub").glob("models--*")}
    assert repositories == {f"models--{name.replace('/', '--')}" for name in (PAIR.device, PAIR.cloud)}
