"""A device in one long-running process, asked by others of its user: the commands themselves."""

from __future__ import annotations

import json
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed (extra [server])")

from tandem import Config, Tandem
from tandem.client.answers import describe_citations, to_plain
from tandem.plugins.server.client import SOCKET, RunningDevice, device_folder
from tandem.sites.host import Address, ServedCloud, served
from tests.waiting import wait_until

from .conftest import command

QUESTION = "Which game should Mira try?"
WAIT = Config.load(None, ["link.on_peer_loss=wait"])


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCloud]:
    with served(WAIT, Address("127.0.0.1", 0), tmp_path_factory.mktemp("keys")) as running:
        yield running


@pytest.fixture(scope="module")
def device(cloud: ServedCloud, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """`tandem device`, ready; its process id."""
    link = tmp_path_factory.mktemp("link") / "link"
    link.write_text(str(cloud.link_for("laptop")))
    link.chmod(0o600)
    process = command("device", "--join", str(link), "--set", "link.on_peer_loss=wait")
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if "ask this device" in line:
            break
    assert process.poll() is None, said
    yield process.pid
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert not RunningDevice.is_running()


def test_ask_finds_the_device_and_gets_the_answer_of_two_sides(rag: Tandem, device: int) -> None:
    done = command("ask", QUESTION, "--seed", "7", "--temperature", "1", "--json")
    out, said = done.communicate(timeout=180)
    assert done.returncode == 0, said
    assert f"process {device} is running here" in said
    answer = json.loads(out)
    expected = rag.query(QUESTION, seed=7, temperature=1.0)
    assert [token["token"] for token in answer["tokens"]] == list(expected.token_ids)
    assert [token["citation"] for token in answer["tokens"]] == to_plain(
        [each.citation for each in expected.tokens]
    )
    assert answer["citations"] == describe_citations(expected.citations, expected.sources)
    titles = {source["title"] for source in answer["sources"] if source["party"] == "device"}
    assert titles
    assert None not in titles


def test_a_command_that_is_killed_leaves_no_query(device: int) -> None:
    """The socket by which it asks is for this user alone."""
    folder = device_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o600
    asking = command("ask", QUESTION, "--max-new-tokens", "400", "--set", "sampling.stop=never")
    with RunningDevice(WAIT) as watching:
        status = watching.status()
        assert status["cluster"].startswith("joined to 127.0.0.1:")
        assert {actor["pid"] for actor in status["actors"]} == {device}

        def num_sessions() -> int:
            return max(actor["num_sessions"] for actor in watching.status()["actors"])

        wait_until(lambda: num_sessions() > 0 or asking.poll() is not None)
        asking.kill()
        asking.communicate(timeout=120)
        wait_until(lambda: num_sessions() == 0)
