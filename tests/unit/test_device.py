"""A running device as commands ask it: against the server of a scripted Tandem, on a socket of its own."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed (extra [server])")

from tandem.cli.options import PlaceOptions
from tandem.cli.output import StageLog
from tandem.config.schema import Config
from tandem.errors import ClusterError, QueryError
from tandem.events import Event, WaitEvent
from tandem.plugins.server import client as running_device
from tandem.plugins.server.app import create_app
from tandem.plugins.server.client import RunningDevice, reserved
from tandem.plugins.server.http import ServerLimits
from tandem.plugins.server.runner import Server
from tests.unit.cli.conftest import answer_events
from tests.unit.test_request import ALIKE
from tests.waiting import wait_until

EVENTS = [WaitEvent(num_ahead=1), *answer_events()]


class ScriptedTandem:
    """Answers with EVENTS; "boom" fails, and "slow" never ends."""

    config, described, sites = Config(), ALIKE, {"device": None}

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.num_left = 0

    async def astream(self, question: str, **options: Any) -> AsyncGenerator[Event, None]:
        self.asked.append((question, options))
        if question == "boom":
            raise QueryError("The cloud was lost.")
        for event in EVENTS[:2] if question == "slow" else EVENTS:
            yield event
        if question == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                self.num_left += 1

    def status(self) -> dict[str, Any]:
        return {"cluster": "joined", "actors": [{"name": "device/decoder", "decode_s": math.nan}]}


@contextmanager
def listening(tandem: Any, folder: Path) -> Iterator[None]:
    ready = threading.Event()
    with reserved(folder, {"codec.parameters": "{}"}) as listener:
        server = Server(create_app(tandem), ready.set, ServerLimits(drain_timeout_s=0.1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert ready.wait(60)
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def tandem(tmp_path: Path) -> Iterator[ScriptedTandem]:
    tandem = ScriptedTandem()
    with listening(tandem, tmp_path):
        yield tandem


def test_events_come_as_they_were(tandem: ScriptedTandem, tmp_path: Path) -> None:
    with RunningDevice(Config(), tmp_path) as device:
        events = list(device.stream("Which game?", seed=7, only=None))
    assert [type(event) for event in events] == [type(event) for event in EVENTS]
    for event, expected in zip(events, EVENTS, strict=True):
        for name in event.__dataclass_fields__:
            seen, wanted = getattr(event, name), getattr(expected, name)
            assert seen == wanted or (math.isnan(seen) and math.isnan(wanted)) or repr(seen) == repr(wanted)
    assert tandem.asked == [("Which game?", {"seed": 7})]


def test_options_of_a_question_are_the_commands_own(tandem: ScriptedTandem, tmp_path: Path) -> None:
    settings = [
        "sampling.temperature=0.5",
        "sampling.stop=END",
        "link.on_peer_loss=wait",
        "weights.question=0.5",
    ]
    config = Config.load(None, [*settings, "device.num_documents=3", "cluster.query_timeout_s=9"])
    with RunningDevice(config, tmp_path) as device:
        list(device.stream("Which game?", seed=7, temperature=0.25))
    assert tandem.asked[0][1] == {
        "seed": 7,
        "temperature": 0.25,
        "stop": ["END"],
        "on_peer_loss": "wait",
        "num_documents": {"device": 3},
        "timeout_s": 9.0,
    }


@pytest.mark.parametrize(
    ("question", "options", "sentence"),
    [
        ("", {}, r"The question is empty \(got ''\); ask something\."),
        ("boom", {}, r"The cloud was lost\."),
        ("Why?", {"temperature": -1}, r"temperature must be greater than or equal to 0 \(got -1"),
    ],
)
def test_what_fails_is_one_sentence(
    tandem: ScriptedTandem, tmp_path: Path, question: str, options: Any, sentence: str
) -> None:
    with RunningDevice(Config(), tmp_path) as device, pytest.raises(QueryError, match=f"^{sentence}"):
        list(device.stream(question, **options))


def test_a_stream_that_is_left_ends_its_query(tandem: ScriptedTandem, tmp_path: Path) -> None:
    with RunningDevice(Config(), tmp_path) as device:
        next(stream := device.stream("slow"))
        stream.close()  # type: ignore[attr-defined]
        wait_until(lambda: tandem.num_left == 1)
        next(waiting := device.stream("slow"))
        device.close()
        with pytest.raises(ClusterError, match=r"The device \(process \d+\) has stopped"):
            list(waiting)
    wait_until(lambda: tandem.num_left == 2)


def test_many_questions(tandem: ScriptedTandem, tmp_path: Path) -> None:
    counts: list[tuple[int, int]] = []
    with RunningDevice(Config(), tmp_path) as device:
        items = list(
            device.batch(["a", "boom", "b"], concurrency=2, progress=lambda *seen: counts.append(seen))
        )
    assert {item.index: str(item.error) for item in items if item.error} == {1: "The cloud was lost."}
    assert counts == [(1, 3), (2, 3), (3, 3)]
    seeds = {question: options["seed"] for question, options in tandem.asked}
    assert {item.question: item.answer.seed for item in items if item.answer} == {
        question: seeds[question] for question in "ab"
    }


def test_one_device_per_folder(tmp_path: Path) -> None:
    assert not RunningDevice.is_running(tmp_path)
    with pytest.raises(
        ClusterError, match=r"^No device answers in .*; start one with `tandem device --join LINK`"
    ):
        RunningDevice(Config(), tmp_path)
    with listening(ScriptedTandem(), tmp_path):
        assert RunningDevice.is_running(tmp_path)
        with pytest.raises(ClusterError, match=r"running already \(process \d+\)"), reserved(tmp_path, {}):
            pass
        device = RunningDevice(Config(), tmp_path)
    assert not RunningDevice.is_running(tmp_path)
    with pytest.raises(ClusterError, match=r"^The device \(process \d+\) has stopped; start it again with "):
        list(device.stream("Why?"))


def test_commands_find_it_and_name_the_settings_that_it_was_started_without(
    tandem: ScriptedTandem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_device, "device_folder", lambda: tmp_path)
    said: list[str] = []
    log: Any = said.append
    config = Config.load(None, ["codec.parameters={depth = 5}"])
    assert isinstance(PlaceOptions().open_to_ask(config, log), RunningDevice)
    assert any("was started with codec.parameters = {}" in line for line in said)
    opened = object()
    monkeypatch.setattr(PlaceOptions, "open", lambda *_: opened)
    assert PlaceOptions(fresh=True).open_to_ask(config, StageLog(is_quiet=True)) is opened
