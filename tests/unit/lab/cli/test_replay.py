"""`tandem lab replay`: what a person can get wrong is found before anything is built. No network, no cluster."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.cli.output import StageLog
from tandem.config.schema import Config
from tandem_lab.cli import outputs
from tandem_lab.cli import replay as command
from tandem_lab.netlab import NetLab, Shape, inside
from tandem_lab.replay.records import QuestionRun, Replay

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], Shape]]:
    """What would be run in the network."""
    calls: list[tuple[str, list[str], Shape]] = []

    def fake(lab: Any, arguments: list[str], shape: Shape) -> int:
        calls.append((lab.name, arguments, shape))
        return 7

    monkeypatch.setattr(inside, "inside", fake)
    monkeypatch.setattr(command.tools, "require", lambda: None)
    monkeypatch.setattr(command.tools, "which", lambda program: program)
    return calls


def test_the_inner_command_line_says_the_same(asked: list[tuple[str, list[str], Shape]]) -> None:
    options = ["--temperature", "1", "--set", "link.on_peer_loss=wait", "--set", "decoding.placement=device"]
    assert main(["lab", "replay", "constant-100", "--out", "found", *options, "--json"]) == 7
    ((name, arguments, shape),) = asked
    assert shape == Shape(rtt_s=0.1)
    assert arguments == [
        *("lab", "replay", "constant-100", "--out", "found", "--temperature", "1"),
        *(
            "--set",
            "link.on_peer_loss=wait",
            "--set",
            "decoding.placement=device",
            "--json",
            "--within",
            name,
        ),
    ]
    assert Path("found").is_dir()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["constant-77"], "'constant-77' is neither a bundled trace nor a file; the nearest bundled one is"),
        (["none.csv"], "none.csv cannot be read"),
        (
            ["bad.csv"],
            "bad.csv, line 3, field delay_ms: expected a number of ms of at least 0, but it is 'x'",
        ),
        (["5g", "--questions", "none"], "but none cannot be read"),
        (["5g", "--questions", "bad.jsonl"], "bad.jsonl, line 2: "),
        (["5g", "--out", "bad.csv"], "--out needs a folder to write into, but 'bad.csv' cannot be created"),
        (["5g", "--out", "full"], "--out writes the file 'full/replay.json', but a folder has that name"),
        (["5g", "--temperature", "-1"], "temperature"),
        (["5g", "--set", "link.on_peer_loss=stop"], "on_peer_loss"),
    ],
)
def test_bad_input(
    asked: list[tuple[str, list[str], Shape]],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    Path("bad.csv").write_text("time_s,delay_ms,jitter_ms,rate_mbit,loss_pct\n0,1,0,,0\n1,x,0,,0\n", "utf-8")
    Path("bad.jsonl").write_text('One?\n{"question": 1}\n', "utf-8")
    Path("full/replay.json").mkdir(parents=True)
    assert main(["lab", "replay", *arguments]) == 1
    assert re.search(re.escape(sentence), capsys.readouterr().err)
    assert asked == []
    assert not Path("replay").exists()


def test_what_was_seen_is_written_before_the_cluster_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopping may take longer than the inner process has."""
    there_at_the_stop: list[bool] = []

    @contextlib.contextmanager
    def launch(*_: Any) -> Iterator[None]:
        try:
            yield
        finally:
            there_at_the_stop.extend((tmp_path / name).is_file() for name in command.NAMES)

    class Interrupted:
        def __init__(self, tandem: Any, lab: Any, into: Replay, progress: Any) -> None:
            self._into = into

        def run(self, questions: list[str]) -> None:
            self._into.asked.append(QuestionRun(questions[0], 1, 0.5))
            self._into.took_s = 1.0
            raise KeyboardInterrupt

    monkeypatch.setattr("tandem_lab.bench.places.launch", launch)
    monkeypatch.setattr("tandem_lab.replay.replayer.Replayer", Interrupted)
    trace, log = command.bundled("constant-100"), StageLog(is_quiet=True)
    with pytest.raises(KeyboardInterrupt):
        command.play(NetLab("lab"), Config(), trace, ["Why?"], tmp_path, log, as_json=False)
    assert there_at_the_stop == [True] * 2
    assert '"question": "Why?"' in (tmp_path / "replay.json").read_text("utf-8")


def test_without_matplotlib_there_are_numbers_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An hour of measuring is not lost for a picture."""

    class Done:
        def __init__(self, tandem: Any, lab: Any, into: Replay, progress: Any) -> None:
            self._into = into

        def run(self, questions: list[str]) -> None:
            self._into.asked.append(QuestionRun(questions[0], 1, 0.5))
            self._into.took_s = 1.0

    monkeypatch.setattr("tandem_lab.plots.find_spec", lambda name: None)
    monkeypatch.setattr("tandem_lab.bench.places.launch", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("tandem_lab.replay.replayer.Replayer", Done)
    folder = outputs.check_folder("--out", str(tmp_path / "out"), command.NAMES, needs_plots=False)
    trace = command.bundled("constant-100")
    assert command.play(NetLab("lab"), Config(), trace, ["Why?"], folder, StageLog(), as_json=False) == 0
    assert [path.name for path in folder.iterdir()] == ["replay.json"]
    printed = capsys.readouterr()
    assert "questions" in printed.out
    assert "no picture A plot needs matplotlib" in " ".join(printed.err.split())
