"""`tandem profile` on the bundled model, a few tokens long."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.cli import main
from tandem.config.schema import Config
from tandem.engine.engine import Engine
from tandem.errors import install_line
from tandem.profiler.estimates import DecodeLine
from tandem.topology import Party

from .conftest import Run

SHORT = ["--limit", "48", "--runs", "1", "--set", "device.num_documents=2"]


@pytest.fixture
def cache(folders: Path) -> Path:
    return folders / "cache"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were loaded."""
    loaded: list[str] = []
    load = Engine.load

    def recorded(model: str, **options: Any) -> Engine:
        loaded.append(model)
        return load(model, **options)

    monkeypatch.setattr(Engine, "load", recorded)
    return loaded


def test_a_line_and_where_it_is_kept(cache: Path, loads: list[str], run: Run) -> None:
    shown = run("profile", "device", *SHORT, code=0)
    first, fit, what, *_, where = shown.out.splitlines()
    assert first.startswith("device   ")
    assert "ms per token after a prompt of" in first
    assert first.endswith("ms per 1000 more")
    assert fit.endswith("tokens x 1 run")
    assert "bundled, 2 rows, cpu, float32, 1 thread, " in what
    (file,) = (cache / "tandem" / "profiles").iterdir()
    assert where.strip() == f"kept in {file}"
    assert shown.err.count(" %\n") == 11
    assert shown.err.endswith("device: 100 %\n")
    shown = run("profile", "device", *SHORT, code=0)
    assert shown.out.splitlines()[:3] == [first, fit, what]
    assert f"cached in {file}; measure again with --force" in shown.out
    assert len(loads) == 1


def test_a_line_that_falls_is_remarked_upon(cache: Path, run: Run) -> None:
    assert main(["profile", "device", *SHORT]) == 0
    (file,) = (cache / "tandem" / "profiles").iterdir()
    value = json.loads(file.read_text())
    steps = len(value["profile"]["seconds"])
    for seconds, is_falling in ((list(range(steps)), False), (list(range(steps, 0, -1)), True)):
        value["profile"]["seconds"] = seconds
        file.write_text(json.dumps(value))
        assert ("the line falls" in run("profile", "device", *SHORT, code=0).out) == is_falling


def test_more_than_is_cached_is_measured(loads: list[str]) -> None:
    assert main(["profile", "device", *SHORT]) == 0
    assert main(["profile", "device", *SHORT, "--limit", "47"]) == 0
    assert len(loads) == 1
    assert main(["profile", "device", *SHORT, "--limit", "49"]) == 0
    assert main(["profile", "device", *SHORT, "--runs", "2"]) == 0
    assert main(["profile", "device", *SHORT, "--force"]) == 0
    assert len(loads) == 4


def test_json_of_both_parties(run: Run) -> None:
    arguments = ["--limit", "70", "--runs", "1", "--set", "cloud.num_documents=2", "--json"]
    shown = run("profile", *arguments, code=0)
    assert shown.err == ""
    value = json.loads(shown.out)
    assert list(value) == ["device", "cloud"]
    for party, rows in (("device", 4), ("cloud", 2)):
        found = value[party]
        assert found["rows"] == found["key"]["num_documents"] == rows
        assert found["lengths"][-1] == 70
        assert len(found["seconds"]) == len(found["lengths"])
        assert found["start_s"] > 0
        assert set(found["line"]) == {"k_a", "k_b", "k_c", "start"}
        assert not found["is_cached"]


def test_parties_that_are_alike_are_measured_once(loads: list[str], run: Run) -> None:
    assert "cached in" in run("profile", *SHORT, "--set", "cloud.num_documents=2", code=0).out
    assert len(loads) == 1


def test_a_damaged_file_is_measured_again(cache: Path, run: Run) -> None:
    assert main(["profile", "device", *SHORT]) == 0
    (file,) = (cache / "tandem" / "profiles").iterdir()
    file.write_text("{")
    assert f"The profile {file} was ignored because" in run("profile", "device", *SHORT, code=0).err
    assert json.loads(file.read_text())["format"] == 1


def test_a_plot(run: Run) -> None:
    pytest.importorskip("matplotlib")
    shown = run("profile", "device", *SHORT, "--plot", "profile.png", code=0)
    path = Path("profile.png").absolute()
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"Plot: {path}" in shown.out
    assert "matplotlib.pyplot" not in sys.modules  # no window, no state that is shared
    assert main(["profile", "device", *SHORT, "--plot", "profile.svg"]) == 0
    text = Path("profile.svg").read_text()
    assert "<svg" in text


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("profile.xyz", "written as one of .png, .pdf, .svg (got 'profile.xyz')"),
        ("no/p.png", "/no; choose another"),
    ],
)
def test_a_plot_that_cannot_be_is_said_at_once(
    target: str, sentence: str, loads: list[str], run: Run
) -> None:
    pytest.importorskip("matplotlib")
    assert sentence in run("profile", "device", *SHORT, "--plot", target, code=1).err
    assert loads == []


def test_a_plot_without_matplotlib(loads: list[str], monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("tandem.plugins.papers.profile.find_spec", lambda name: None)
    assert run("profile", "device", *SHORT, "--plot", "profile.png", code=1).err == (
        f"tandem: A plot needs matplotlib, which is not installed; run `{install_line('lab')}`, or omit --plot.\n"
    )
    assert loads == []


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--set", "device.model=/no/such/model"], 1, "'/no/such/model' is neither"),
        ([*SHORT, "--limit", "3"], 1, "raise the limit"),
        (["--runs", "0"], 2, "--runs must be a whole number of at least 1 (got '0').\n"),
    ],
)
def test_wrong_models_and_limits_are_one_sentence(
    options: list[str], code: int, sentence: str, run: Run
) -> None:
    assert sentence in run("profile", "device", *options, code=code).err


def test_a_vector_store_has_no_lengths(run: Run) -> None:
    assert run(
        "profile", "device", *SHORT, "--set", "device.index=langchain:shelf:store", code=1
    ).err.endswith(
        "tandem: A profile takes the length of documents from an index, but langchain:shelf:store is a vector "
        "store; profile with --set device.index=bundled.\n"
    )


def test_the_decoder_describes_what_was_kept(tmp_path: Path) -> None:
    from tandem.actors.base import Runtime
    from tandem.actors.decoder import DecoderActor

    def described(*overrides: str) -> list[float]:
        async def prepare() -> list[float]:
            runtime = Runtime(secret=b"", directory=str(tmp_path), config=Config.load(None, overrides))
            lines: list[float] = (await DecoderActor(Party.DEVICE, runtime).prepare())["decode_line"]
            return lines

        return asyncio.run(prepare())

    assert described() == []
    assert main(["profile", "device", *SHORT]) == 0
    line = described("device.num_documents=2")
    assert DecodeLine.from_tuple(line).predict(40) > 0
    assert described() == []  # has another number of rows
