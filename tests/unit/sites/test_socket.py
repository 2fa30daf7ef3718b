"""A device in one long-running process, asked by others of its user: the commands themselves, and the socket."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem import Config, Tandem
from tandem.client.answers import describe_citations, to_plain
from tandem.errors import CallError, ClusterError
from tandem.events import TokenEvent
from tandem.sites.host import Address, ServedCloud, served
from tandem.sites.local import launch
from tandem.sites.socket import (
    SOCKET,
    connect,
    decode_error,
    encode_error,
    is_device_running,
    listening,
    read_line,
    reserved,
    socket_folder,
    write_line,
)

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
    assert not is_device_running()


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


def test_events_stream_and_two_commands_ask_at_once(rag: Tandem, device: int) -> None:
    with Tandem.connect() as first, Tandem.connect() as second:
        streams = [
            one.stream(QUESTION, seed=seed, temperature=1.0) for seed, one in enumerate((first, second))
        ]
        seen: list[list[Any]] = [[], []]
        for events in zip(*streams, strict=False):
            for index, event in enumerate(events):
                seen[index].append(event)
        for index, stream in enumerate(streams):
            seen[index] += stream
    for seed, events in enumerate(seen):
        tokens = [event.token for event in events if isinstance(event, TokenEvent)]
        assert tokens == list(rag.query(QUESTION, seed=seed, temperature=1.0).token_ids)


def test_tokens_are_counted_by_the_device(rag: Tandem, device: int) -> None:
    with Tandem.connect() as attached:
        assert attached.count_tokens(QUESTION) == rag.count_tokens(QUESTION) > 3


def test_a_server_of_another_process_answers_embeds_and_counts(rag: Tandem, device: int) -> None:
    """All that the server may call, a running device offers."""
    pytest.importorskip("fastapi", reason="fastapi is not installed (extra [server])")
    from tests.server.running import serving

    with Tandem.connect() as attached, serving(attached) as server:
        body = {"model": "tandem", "messages": [{"role": "user", "content": QUESTION}], "seed": 7}
        chat = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=180).json()
        assert chat["choices"][0]["message"]["content"] == rag.query(QUESTION, seed=7).text
        (model,) = (
            each["id"]
            for each in httpx.get(f"{server.url}/v1/models").json()["data"]
            if each["id"] != "tandem"
        )
        body = {"model": model, "input": [QUESTION, "Mira"]}
        vectors = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=180).json()["data"]
        assert [round(sum(x * x for x in each["embedding"]), 3) for each in vectors] == [1, 1]
        page = httpx.get(f"{server.url}/metrics", timeout=60).text
        assert 'tandem_actor_up{actor="draft_queue",party="device"} 1.0' in page


def test_status_is_that_of_the_device(device: int) -> None:
    done = command("status")
    out, said = done.communicate(timeout=180)
    assert done.returncode == 0, said
    assert out.startswith("cluster  joined to 127.0.0.1:")
    assert f"decoder {device}" in out.replace("+", " ").replace(",", " ") or str(device) in out
    assert "cloud    model at 127.0.0.1:" in out


def test_a_second_device_is_refused(device: int, cloud: ServedCloud) -> None:
    done = command("device", "--join", str(cloud.link_for("second")))
    _, said = done.communicate(timeout=180)
    assert done.returncode == 1
    assert said.endswith(
        f"A device of this user is running already (process {device}); `tandem ask` finds it, or stop it first.\n"
    )


def test_the_socket_is_for_this_user_alone(device: int) -> None:
    folder = socket_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o600


def test_a_setting_that_counts_at_the_start_only_is_named(device: int, tmp_path: Path) -> None:
    said: list[str] = []
    with Tandem.connect(None, Config.load(None, ["codec.parameters={depth = 5}"]), progress=said.append):
        pass
    assert any("was started with codec.parameters = {}" in line for line in said)


@pytest.mark.parametrize(
    "request_line",
    [
        {"id": 1, "actor": "draft_queue", "method": "close", "arguments": []},
        {"id": 1, "actor": "decoder", "method": "describe", "arguments": []},
        {"id": 1, "actor": "retriever", "method": "passages", "arguments": "all"},
        {"id": 1, "actor": "draft_queue", "method": "open", "arguments": []},
    ],
)
def test_nothing_else_can_be_called(device: int, request_line: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as talker:
        talker.connect(str(socket_folder() / SOCKET))
        lines = talker.makefile("rb")
        assert read_line(lines.readline())["pid"] == device
        talker.sendall(write_line(request_line))
        reply = read_line(lines.readline())
        assert reply["error"]["kind"] == "CallError"
        talker.sendall(b"garbage\n")
        assert lines.readline() == b"", "a peer that does not speak the protocol is disconnected"


def test_a_command_that_is_killed_leaves_no_query(device: int) -> None:
    asking = command("ask", QUESTION, "--max-new-tokens", "400", "--set", "sampling.stop=never")
    with Tandem.connect() as watching:
        sessions = lambda: max(actor["num_sessions"] for actor in watching.status()["actors"])  # noqa: E731
        wait_until(lambda: sessions() > 0 or asking.poll() is not None)
        asking.kill()
        asking.communicate(timeout=120)
        wait_until(lambda: sessions() == 0)


def wait_until(is_true: Any) -> None:
    deadline_s = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_device_that_stops_ends_its_queries_with_a_sentence(tmp_path: Path) -> None:
    sites = launch(WAIT, lambda line: None)
    with contextlib.closing(sites):
        with reserved(tmp_path), listening(sites, WAIT, tmp_path):
            asking = Tandem(WAIT, connect(lambda line: None, tmp_path))
            assert asking.query(QUESTION, seed=1, max_new_tokens=4).text
        with asking, pytest.raises(Exception, match=r"The device \(process \d+\) has stopped"):
            asking.query(QUESTION, seed=1)
        with pytest.raises(ClusterError, match="No device answers at"):
            connect(lambda line: None, tmp_path)


def test_errors_keep_their_class() -> None:
    for error in (ClusterError("one"), CallError("two")):
        back = decode_error(encode_error(error))
        assert (type(back), str(back)) == (type(error), str(error))
    unknown = encode_error(ClusterError("three")) | {"kind": "SystemExit"}
    assert type(decode_error(unknown)) is CallError
