"""The frame of the command line: usage, exit codes, and what is imported when."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import tandem
from tandem import cli
from tandem.cli import main

from .conftest import Run

ROOT = Path(tandem.__file__).parents[1]
COMMANDS = (
    "ask", "chat", "init", "index", "search", "serve", "mcp", "up", "down", "device", "status", "doctor",
    "cloud", "model", "lab",
)  # fmt: skip


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_help_names_every_command_is_quick_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from tandem.cli import main; main(['--help']);"
        "heavy = {'numpy', 'torch', 'ray', 'transformers', 'tandem.client.tandem', 'tandem_lab', 'matplotlib'};"
        "print(set(sys.modules) & heavy)"
    )
    start_s = time.monotonic()
    shown = python("-c", script).stdout
    assert time.monotonic() - start_s < 15  # 0.3 s where nothing else runs
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert shown.endswith("set()\n")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "Missing command; see `tandem --help`."),
        ("aks", "No such command 'aks'. Did you mean 'ask'?"),
        ("lab bensh", "No such command 'bensh'. Did you mean 'bench'?"),
        ("up phone", "PARTY must be device or cloud (got 'phone'); see `tandem up --help`."),
        ("ask", "`tandem ask` needs a QUESTION, - or --file FILE; see `tandem ask --help`."),
        ("ask x --file q.txt",
         "`tandem ask` takes a question or --file (got 'x' and q.txt); leave out one; see `tandem ask --help`."),
        ("ask - --provisional",
         "`tandem ask --provisional` shows the drafts of one answer; ask one question; see `tandem ask --help`."),
        ("ask - --concurrency 0", "--concurrency must be greater than or equal to 1; see `tandem ask --help`."),
        ("device", "`tandem device` needs --join LINK; `tandem cloud serve` prints one; see `tandem device --help`."),
        ("ask x y", "Got unexpected extra argument(s) (y); see `tandem ask --help`."),
        ("ask x --seed", "Option '--seed' requires an argument."),
        ("ask x --seed many",
         "--seed must be a valid integer, unable to parse string as an integer; see `tandem ask --help`."),
        ("ask x --temprature 1",
         "No such option: --temprature (Possible options: --temperature); see `tandem ask --help`."),
        ("ask x --only moon", "--only is not valid: 'moon' is not one of 'device', 'cloud'; see `tandem ask --help`."),
        ("doctor --settings --json",
         "--settings prints TOML, so it goes without --json; see `tandem doctor --help`."),
        ("index", "PARTY is missing; see `tandem index --help`."),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(line: str, sentence: str, run: Run) -> None:
    assert run(*line.split()) == (2, "", f"tandem: {sentence}\n")


def test_doctor_prints_a_file_of_settings_that_it_reads_back(folders: Path, run: Run) -> None:
    text = run("doctor", "--settings", "--set", "link.peer_loss_margin_s=3", code=0).out
    Path("tandem.toml").write_text(text, "utf-8")
    assert run("doctor", "--settings", code=0).out == text
    assert "peer_loss_margin_s = 3.0  # silence allowed" in text


def test_control_c_is_130(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("tandem.cli.options.SettingsOptions.load", interrupt)
    assert run("doctor", code=130).err == "\ntandem: interrupted\n"


SIGNALLED = """
import os, signal, sys
from tandem.cli import main, options
signal.signal(signal.SIGHUP, signal.{before})
def run(*_):
    try:
        os.kill(os.getpid(), signal.{name})
    finally:
        os.kill(os.getpid(), signal.SIGHUP)
        print("cleaned up", flush=True)
    raise SystemExit(0)
options.SettingsOptions.load = run
sys.exit(main(["doctor"]))
"""
"""The end of a terminal comes twice, from shell and kernel."""


@pytest.mark.parametrize(
    ("name", "before", "code"),
    [("SIGHUP", "SIG_DFL", 129), ("SIGTERM", "SIG_IGN", 143), ("SIGHUP", "SIG_IGN", 0)],
    ids=["terminal closed", "terminated", "nohup"],
)
def test_a_signal_that_ends_a_command_cleans_up(name: str, before: str, code: int) -> None:
    done = python("-c", SIGNALLED.format(name=name, before=before))
    assert (done.returncode, done.stdout) == (code, "cleaned up\n")


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    pipe = f"{sys.executable} -m tandem doctor --settings | true"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False, env=environment)
    assert done.stderr == ""


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def fail(number: int) -> Callable[[], NoReturn]:
        def build_command() -> NoReturn:
            raise OSError(number, os.strerror(number), "/home/it")

        return build_command

    monkeypatch.setattr(cli, "build_command", fail(errno.ENOSPC))
    shown = run("status", code=1)
    sentence = "/home/it cannot be used (No space left on device); check the disk and the permissions."
    assert shown.err == f"tandem: {sentence}\n"
    monkeypatch.setattr(cli, "build_command", fail(errno.EBADF))
    with pytest.raises(OSError, match="Bad file descriptor"):
        main(["status"])
