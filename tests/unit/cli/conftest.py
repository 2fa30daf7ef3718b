"""A scripted Tandem and a scripted launcher for the command line, which record what they were asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tandem.cli import main
from tandem.client.ask import BatchItem
from tandem.config.schema import Config
from tandem.errors import QueryError
from tandem.events import DoneEvent, Event, SessionStatistics, Source, SourcesEvent, TokenEvent, collect
from tandem.plugins.ray.nodes import NodeInfo
from tandem.topology import Party
from tests.token_events import committed


class Shown(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    out: str
    err: str


Run = Callable[..., Shown]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command of these words, which ends with that exit code."""

    def run(*words: str, code: int | None = None) -> Shown:
        capsys.readouterr()
        shown = Shown(main(list(words)), *capsys.readouterr())
        assert code in (None, shown.code), shown.err
        return shown

    return run


TEXTS = (" Mira", " likes", " puzzle", " games", ".")


def token(step: int, text: str) -> TokenEvent:
    return committed(
        step,
        token=100 + step,
        text=text,
        cloud_accepted=step != 1,
        committed_s=0.5 + 0.04 * step,
        device_decode_s=0.01,
    )


def statistics(**changes: Any) -> SessionStatistics:
    values: dict[str, Any] = {
        "num_tokens": 5,
        "num_device_accepted": 5,
        "num_cloud_accepted": 4,
        "rtt_s": 0.0012,
        "sent_bytes": 500,
        "received_bytes": 450,
        "first_token_s": 0.5,
        "total_s": 0.7,
    }
    return SessionStatistics(**values | changes)


def answer_events() -> list[Event]:
    device = Source(
        party=Party.DEVICE,
        id="d1",
        title="notes/mira.txt",
        score=0.62,
        text="Mira likes\npuzzle games.",
        metadata={"source": "notes/mira.txt", "year": 2024},
    )
    cloud = (Source(party=Party.CLOUD, id="c8", score=0.41), Source(party=Party.CLOUD, id="c7", score=0.58))
    return [
        SourcesEvent(
            party=Party.DEVICE, sources=(device,), retrieve_s=0.02, prefill_s=0.1, notes=("a note",)
        ),
        SourcesEvent(party=Party.CLOUD, sources=cloud, retrieve_s=0.03, prefill_s=0.2),
        *(token(step, text) for step, text in enumerate(TEXTS)),
        DoneEvent(reason="eos", statistics=statistics()),
    ]


@dataclass
class FakeTandem:
    """Answers with scripted events; an exception among them is raised."""

    script: Sequence[Event | BaseException] = field(default_factory=answer_events)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    started: list[tuple[str, Config]] = field(default_factory=list)
    num_closed: int = 0

    def launch(self, config: Config | None = None, *, progress: Any = None) -> FakeTandem:
        return self._opened("", config, progress)

    def connect(
        self, address: str | None = None, config: Config | None = None, *, progress: Any = None
    ) -> FakeTandem:
        return self._opened(address or "?", config, progress)

    def _opened(self, address: str, config: Config | None, progress: Any) -> FakeTandem:
        assert config is not None
        self.started.append((address, config))
        if progress:
            progress("nodes: 2 up (device, cloud)")
        return self

    def stream(self, question: str, **options: Any) -> Iterator[Event]:
        self.asked.append((question, options))
        for event in self.script:
            if isinstance(event, BaseException):
                raise event
            yield event

    def batch(
        self, questions: Sequence[str], *, concurrency: int, progress: Any, **options: Any
    ) -> Iterator[BatchItem]:
        """The last question first; a question "boom" fails, the others have the script's answer."""
        self.asked.append((f"{len(questions)} questions, {concurrency} at once", options))
        for index, question in reversed(list(enumerate(questions))):
            if question == "boom":
                yield BatchItem(index=index, question=question, error=QueryError("The cloud was lost."))
            else:
                events = [event for event in self.script if not isinstance(event, BaseException)]
                yield BatchItem(index=index, question=question, answer=collect(events, 7))

    def __enter__(self) -> FakeTandem:
        return self

    def __exit__(self, *_: object) -> None:
        self.num_closed += 1


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the command line off the real folders and environment of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        # First set, then deleted: whatever the code under test sets is undone afterwards.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def tandem(monkeypatch: pytest.MonkeyPatch) -> FakeTandem:
    """What the commands get for `tandem.client.tandem.Tandem`."""
    fake = FakeTandem()
    monkeypatch.setattr("tandem.client.tandem.Tandem", fake)
    return fake


@dataclass
class FakeLauncher:
    """Stands for tandem.plugins.ray.actors; its nodes are processes that sleep."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    address: str = "127.0.0.1:7001"
    losses: dict[Party, str] = field(default_factory=dict)  # what a party lacks, as a sentence
    is_up: bool = True  # whether the cluster's head answers

    def is_listening(self, address: str) -> bool:
        return self.is_up

    def find_loss(self, address: str, party: Party, config: Config) -> str | None:
        return self.losses.get(party)

    def check_files(self, config: Config, parties: tuple[Party, ...], progress: object) -> None:
        assert len(parties) == 1

    def start_node(self, party: Party, *, join: str | None, config: Config) -> NodeInfo:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.processes.append(process)
        self.calls.append(("start_node", party, join))
        return NodeInfo(party, join or self.address, process.pid, "" if join else "folder", "log")

    def attach(self, address: str, config: Config) -> None:
        self.calls.append(("attach", address))

    def wait_for_node(self, node: NodeInfo, limit_s: float) -> None:
        self.calls.append(("wait_for_node", node.party))

    def start_party(self, party: Party, config: Config, progress: Any) -> None:
        self.calls.append(("start_party", party))
        self.losses.pop(party, None)

    def stop_node(self, info: NodeInfo) -> None:
        self.calls.append(("stop_node", Party(info.party), info.pid))
        process = next(process for process in self.processes if process.pid == info.pid)
        process.terminate()
        process.wait()


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLauncher]:
    """What `tandem up` and `down` call to start and stop nodes and parties, and plain nodes."""
    from tandem.plugins.ray import actors, attach, nodes, supervisor
    from tandem.sites import startup

    fake = FakeLauncher()
    fakes: dict[ModuleType, tuple[str, ...]] = {
        attach: ("attach", "start_node", "stop_node", "wait_for_node"),
        actors: ("find_loss",),
        nodes: ("is_listening",),
        supervisor: ("start_party",),
        startup: ("check_files",),
    }
    for module, names in fakes.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(fake, name))
    yield fake
    for process in fake.processes:
        process.kill()
        process.wait()
