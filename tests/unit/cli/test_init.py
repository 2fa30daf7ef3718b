"""`tandem init`: a file of settings that the other commands read, and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tandem.cli import main
from tandem.config.files import walk
from tandem.config.schema import Config, PartyConfig
from tandem.errors import GenerationError
from tandem.plugins.setup import init

from .conftest import Run


@pytest.fixture
def notes(folders: Path) -> Path:
    (folders / "my notes").mkdir()
    return folders / "my notes"


def test_the_file_holds_every_setting_and_sets_what_was_given(notes: Path, folders: Path, run: Run) -> None:
    (folders / "pages").mkdir()
    Path("qwen").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        Path("qwen", name).touch()
    both = ("../my notes", "--cloud", str(folders / "pages"), "--model", "qwen")
    shown = run("init", "--settings-only", *both, code=0)
    text = Path("tandem.toml").read_text("utf-8")
    assert tomllib.loads(text)["device"] == {"model": "./qwen", "index": ".tandem/device"}
    assert all(f"{setting.name} = " in text for _, setting, _ in walk(Config()))
    config = Config.load("tandem.toml")
    assert config.cloud == PartyConfig(
        model=str(folders / "work" / "qwen"), index=str(folders / "work/.tandem/cloud"), num_documents=2
    )
    assert config.decoding == Config().decoding
    assert shown.out.splitlines() == [
        "Wrote tandem.toml.",
        "Next:",
        f"  tandem index device '{notes}'",
        f"  tandem index cloud {folders / 'pages'}",
        "  tandem doctor",
        '  tandem search device "QUESTION"',
        '  tandem ask "QUESTION"',
    ]
    assert f"# tandem index device '{notes}'\n" in text


def test_what_is_there_is_not_overwritten(notes: Path, run: Run) -> None:
    Path("tandem.toml").write_text("mine")
    shown = run("init", "--settings-only", str(notes), code=1)
    assert Path("tandem.toml").read_text() == "mine"
    assert shown.err == (
        f"tandem: {Path('tandem.toml').absolute()} is there already; edit it, or write it again with --force.\n"
    )
    assert main(["init", "--settings-only", str(notes), "--force"]) == 0
    assert Config.load("tandem.toml").device.index.endswith(".tandem/device")


def test_models_are_proposed_that_fit_and_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.plugins.setup.init.can_load_smollm2", lambda: True)
    monkeypatch.setattr("tandem.engine.places.is_offline", lambda: False)
    assert init.propose(1_000_000_000) == [init.SMOLLM2_PAIR]
    assert init.propose(64_000_000_000) == [init.SMOLLM2_PAIR, *init.HUB_PAIRS]
    assert init.propose(6_200_000_000)[-1].cloud == "Qwen/Qwen2.5-1.5B-Instruct"
    monkeypatch.setattr("tandem.engine.places.is_offline", lambda: True)
    monkeypatch.setattr("tandem.engine.places.is_cached", lambda name, file: "SmolLM2" in name)
    assert init.propose(64_000_000_000) == [init.SMOLLM2_PAIR, init.HUB_PAIRS[0]]
    monkeypatch.setattr("tandem.plugins.setup.init.find_spec", lambda name: None)
    assert init.propose(64_000_000_000) == [init.SMOLLM2_PAIR], "nothing computes a model of the hub"


def test_a_person_chooses_models_and_asks(notes: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The index is a real one; what would answer is a fake that records how it was asked."""
    asked: list[dict[str, object]] = []
    replies = iter(["3", "Who is Mira?"])
    monkeypatch.setattr("tandem.cli.ask.ask", lambda **options: asked.append(options) or 0)
    monkeypatch.setattr("tandem.plugins.setup.init.is_interactive", lambda: True)
    monkeypatch.setattr("tandem.plugins.setup.doctor.available_bytes", lambda: 64_000_000_000)
    monkeypatch.setattr("tandem.plugins.setup.init.can_load_smollm2", lambda: True)
    monkeypatch.setattr("tandem.engine.places.is_offline", lambda: False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(replies))
    (notes / "a.md").write_text("Mira likes puzzle games.")
    shown = run("init", str(notes), code=0)
    config = Config.load("tandem.toml")
    models = [config.device.model, config.cloud.model]
    assert models == ["Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"]
    assert config.cloud.dtype == "bfloat16"
    assert asked == [{"question": "Who is Mira?", "runtime": "inline"}]
    assert "Indexed: 1 file" in shown.out


def test_an_answer_from_ones_own_notes(notes: Path, run: Run) -> None:
    """The device is alone: no process beside the one that asks, no bundled pages, and not a word about a cloud."""
    (notes / "a.md").write_text("Mira likes puzzle games.")
    words = ("--model", "bundled", "--ask", "Which game should Mira try?")
    shown = run("init", str(notes), *words, code=0)
    assert "Mira likes puzzle games, so try" in shown.out
    said = [line for line in (shown.out + shown.err).splitlines() if "The bundled model is" not in line]
    assert not any("cloud" in line or "137" in line for line in said)
    config = Config.load("tandem.toml")
    assert (config.cluster.runtime, config.cloud.num_documents, config.is_alone) == ("inline", 0, True)
    assert config.holders == ("device",)
    assert not any(line[9:].startswith("cloud") for line in run("doctor").out.splitlines())


def test_after_a_try_that_failed_the_same_command_works(
    notes: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file can be read, then the model cannot answer; another folder takes the place of what was indexed."""
    (notes / "old.doc").write_text("x")
    words = ("init", str(notes), "--model", "bundled", "--ask", "Which game should Mira try?")
    run(*words, code=1)
    assert not list(Path().glob("tandem.toml*"))
    (notes / "a.md").write_text("Mira likes puzzle games.")

    def fail(**_: object) -> None:
        raise GenerationError("The model cannot be loaded; free memory.")

    with monkeypatch.context() as patched:
        patched.setattr("tandem.cli.ask.ask", fail)
        assert "free memory" in run(*words, code=1).err
    assert not list(Path().glob("tandem.toml*"))
    (notes.parent / "other").mkdir()
    (notes.parent / "other" / "b.md").write_text("Mira likes puzzle games.")
    shown = run("init", str(notes.parent / "other"), *words[2:], code=0)
    assert "Mira likes puzzle games, so try" in shown.out
    assert Path("tandem.toml").exists()
