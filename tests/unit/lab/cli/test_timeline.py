"""`tandem lab timeline` against a scripted Tandem."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tandem.cli import main
from tandem.errors import install_line
from tandem.events import DoneEvent
from tests.unit.cli.conftest import FakeTandem, statistics, token

QUESTION = "Which game should Mira try?"
COMMAND = ("lab", "timeline", QUESTION)


def test_timeline_and_plot(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main([*COMMAND, "--trace", "out.json", "--plot", "out.svg", "--seed", "7"]) == 0
    shown = capsys.readouterr()
    assert "trace      out.json, for Perfetto (ui.perfetto.dev) or a script\n" in shown.err
    assert "plot       out.svg\n" in shown.err
    written = json.loads(Path("out.json").read_text("utf-8"))
    assert len(written["tandem"]["steps"]) == 5
    assert written["tandem"]["placement"] == "mirror"
    assert "5 tokens, placement mirror, seed 7" in Path("out.svg").read_text("utf-8")


def test_a_failed_answer_has_a_timeline_as_far_as_it_went(tandem: FakeTandem) -> None:
    failed = DoneEvent(reason="failed", statistics=statistics(num_tokens=1), error="The cloud was lost.")
    tandem.script = [token(0, " Mira"), failed]
    assert main([*COMMAND, "--quiet", "--trace", "out.json"]) == 1
    assert json.loads(Path("out.json").read_text("utf-8"))["tandem"]["reason"] == "failed"


def test_an_answer_of_no_tokens_has_no_plot(tandem: FakeTandem, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    tandem.script = [DoneEvent(reason="eos", statistics=statistics(num_tokens=0))]
    assert main([*COMMAND, "--plot", "out.png", "--trace", "out.json"]) == 0
    assert "plot       none, as there is no token; out.png is not written" in capsys.readouterr().err
    assert not Path("out.png").exists()
    assert json.loads(Path("out.json").read_text("utf-8"))["tandem"]["steps"] == []


@pytest.mark.parametrize(
    ("option", "file", "sentence"),
    [
        ("--trace", "none/out.json", "--trace cannot write into 'none', which is not a folder"),
        ("--trace", ".", "--trace needs the name of a file, but '.' is a folder; add a name."),
        (
            "--trace",
            "locked.json",
            "--trace has no permission to write 'locked.json'",
        ),
        ("--plot", "none/out.png", "--plot cannot write into 'none', which is not a folder"),
        ("--plot", "out.gif", "--plot writes one of .png, .pdf, .svg (got 'out.gif'); rename the file."),
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_anything_is_started(
    tandem: FakeTandem,
    option: str,
    file: str,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib")
    access = os.access  # root may write anything
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path) and access(path, mode))
    Path("locked.json").touch()
    assert main([*COMMAND, option, file]) == 1
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert tandem.started == []


def test_a_plot_without_matplotlib(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_lab.timeline.pipeline.find_spec", lambda name: None)
    assert main([*COMMAND, "--plot", "out.png"]) == 1
    assert capsys.readouterr().err == (
        f"tandem: A plot needs matplotlib, which is not installed; run `{install_line('lab')}`.\n"
    )
    assert tandem.started == []


def test_without_a_file_there_is_nothing_to_do(
    tandem: FakeTandem, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND]) == 2
    assert "give --trace FILE, --plot FILE or both" in capsys.readouterr().err
    assert tandem.started == []
