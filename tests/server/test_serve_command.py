"""`tandem serve` as a process: it listens, logs nothing private, and ends open answers before it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tandem
from tandem.cli import TERMINATED, main
from tests.server.running import KEY, QUESTION, wait_until

ROOT = Path(tandem.__file__).parents[1]
MARKER = "xylophone-marker"
"""In questions and options; it must not come back in the log."""


class Process:
    """`tandem serve --log-json` with the bundled models, and its log."""

    def __init__(self, log: Path, key_file: Path) -> None:
        self.log = log
        arguments = ["--listen", "127.0.0.1:0", "--log-json", "--api-key-file", str(key_file)]
        homes = {f"XDG_{kind}_HOME": str(log.parent / kind.lower()) for kind in ("DATA", "STATE")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandem", "serve", *arguments],
            stderr=log.open("wb"),
            env=os.environ | {"PYTHONPATH": str(ROOT)} | homes,
        )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines() if line.endswith("}")]

    def url(self) -> str:
        def urls() -> list[str]:
            assert self.process.poll() is None, self.log.read_text("utf-8")
            return [line["url"] for line in self.lines() if line["event"] == "listening"]

        wait_until(lambda: bool(urls()), 300)
        return urls()[0]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    key_file = tmp_path / "key"
    key_file.write_text(KEY, "utf-8")
    key_file.chmod(0o600)
    started = Process(tmp_path / "log", key_file)
    yield started
    started.process.kill()
    started.process.wait()


def test_from_start_to_sigterm(process: Process) -> None:
    url = process.url()
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=180) as client:
        chat = {"model": "tandem", "messages": [{"role": "user", "content": f"{QUESTION} {MARKER}"}]}
        assert client.post("/v1/chat/completions", json=chat | {"max_tokens": 2}).status_code == 200
        ignored = client.post("/v1/chat/completions", json=chat | {"max_tokens": 2, MARKER: 1, "user": "u"})
        assert ignored.headers["x-tandem-ignored"] == f"{MARKER}, user"
        for wrong in (chat | {"model": MARKER}, chat | {"stop": [MARKER, 3]}):
            assert client.post("/v1/chat/completions", json=wrong).status_code in (400, 404)
        assert client.post("/v1/completions", content=MARKER).status_code == 400
        assert client.get("/v1/tandem/documents").json()["can_add"], "its device runs in this process"
        assert client.get(f"/{MARKER}").status_code == 404
        long = chat | {"stream": True, "max_tokens": 60, "temperature": 20.0, "seed": 0}
        with client.stream("POST", "/v1/chat/completions", json=long) as response:
            lines = response.iter_lines()
            next(lines)
            process.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not accepts(url))
            rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.process.wait(120) == TERMINATED
    text = process.log.read_text("utf-8")
    assert MARKER not in text
    assert QUESTION not in text
    assert KEY not in text
    requests = [line for line in process.lines() if line["event"] == "request" and line["path"] != "/health"]
    assert [line["status"] for line in requests] == [200, 200, 404, 400, 400, 200, 404, 200]
    assert requests[0]["path"] == "/v1/chat/completions"
    assert [line["name"] for line in process.lines() if line["event"] == "ignored field"] == ["user"]


def accepts(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=1)
    except httpx.HTTPError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "key", "sentence"),
    [
        (["--listen", "0.0.0.0:0"], "", "needs an API key"),
        (["--listen", "192.0.2.1"], "", "needs an API key"),
        (["--listen", "0.0.0.0:0"], "short", "fewer than 16"),
        (["--api-key-file", "missing"], "", "there is no such file"),
        (["--api-key-file", "open"], "", "must be readable by this user alone"),
        (["--api-key-file", "empty"], "", "fewer than 16"),
        (["--listen", "192.0.2.1"], KEY, "cannot listen on 192.0.2.1:8000"),
        (["--listen", "nowhere.invalid"], KEY, "There is no address 'nowhere.invalid'"),
    ],
)
def test_it_does_not_start_where_it_must_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    key: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TANDEM_API_KEY", key)
    Path("open").write_text(KEY, "utf-8")
    Path("open").chmod(0o644)
    Path("empty").touch(0o600)
    assert main(["serve", "--runtime", "inline", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "--runtime", "inline"]) == 1
    assert re.search(r"needs uvicorn.*pip install.*\[server\]", capsys.readouterr().err)
