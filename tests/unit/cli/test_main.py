"""The frame of the command line: usage, exit codes, and what is imported when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import tandem
from tandem.cli import main

ROOT = Path(tandem.__file__).parents[1]
COMMANDS = (
    "ask",
    "index",
    "profile",
    "up",
    "down",
    "status",
    "doctor",
    "config",
    "eval",
    "fuzz",
    "netlab",
    "replay",
    "bench",
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_help_is_quick_and_names_every_command() -> None:
    start_s = time.monotonic()
    done = python("-m", "tandem", "--help")
    assert done.returncode == 0
    assert all(f"\n    {name} " in done.stdout for name in COMMANDS)
    assert time.monotonic() - start_s < 5  # 0.1 s where nothing else runs


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: tandem {name}" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from tandem.cli.parser import parser; parser().format_help();"
        "print(set(sys.modules) & {'numpy', 'torch', 'ray', 'transformers', 'tandem.client'})"
    )
    assert python("-c", script).stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: COMMAND"),
        (["aks"], "invalid choice: 'aks'"),
        (["up", "phone"], "invalid choice: 'phone'"),
        (["ask"], "required: QUESTION"),
        (["ask", "x", "--seed", "-1"], "a seed is a whole number from 0 to 2^64 - 1, but it is '-1'"),
        (["ask", "x", "--seed", "many"], "but it is 'many'"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_wrong_setting_is_one_sentence_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", "codec.q=1"]) == 1
    assert capsys.readouterr() == ("", "tandem: 'codec.q' is not a setting; the nearest is 'codec.p'.\n")


def test_config_prints_a_file_that_it_reads_back(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", "weights.scale=3"]) == 0
    text = capsys.readouterr().out
    Path("tandem.toml").write_text(text, "utf-8")
    assert main(["config"]) == 0
    assert capsys.readouterr().out == text
    assert "scale = 3.0  # R(d, x)" in text


def command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Lets `tandem config` fail with an error."""

    def run(_args: object) -> int:
        raise error

    monkeypatch.setitem(sys.modules, "tandem.cli.show", SimpleNamespace(run=run))


def test_control_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command(monkeypatch, KeyboardInterrupt())
    assert main(["config"]) == 130
    assert capsys.readouterr().err == "\ntandem: interrupted\n"


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["config"])


def test_termination_cleans_up_and_is_143() -> None:
    script = """
import os, signal, sys, types
from tandem.cli import main
def run(args):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    finally:
        print("cleaned up", flush=True)
sys.modules["tandem.cli.show"] = types.SimpleNamespace(run=run)
sys.exit(main(["config"]))
"""
    done = python("-c", script)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "cleaned up\n")


def test_termination_by_rays_handler_is_143_too(monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, SystemExit(int(signal.SIGTERM)))
    assert main(["config"]) == 143
    command(monkeypatch, SystemExit(3))
    with pytest.raises(SystemExit):
        main(["config"])


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    script = "import sys; from tandem.cli import main; sys.exit(main(['config']))"
    command_line = f'{sys.executable} -c "{script}" | true'
    done = subprocess.run(
        ["bash", "-c", command_line],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stderr == ""


def test_the_package_offers_its_names_lazily() -> None:
    script = (
        "import sys, tandem; assert 'tandem.config' not in sys.modules;"
        "from tandem import Answer, Config, Party, TokenEvent;"
        "print(Config().codec.p, Party.DEVICE, 'ray' in sys.modules)"
    )
    assert python("-c", script).stdout == "0.8 device False\n"
    assert set(tandem.__all__) <= set(dir(tandem))
    with pytest.raises(AttributeError, match="no attribute 'Tandme'"):
        tandem.Tandme  # noqa: B018
