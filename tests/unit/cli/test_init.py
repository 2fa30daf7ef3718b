"""`tandem init`: a file of settings that the other commands read, and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tandem.cli import main
from tandem.config import Config, PartyConfig
from tandem.overrides import walk


@pytest.fixture
def notes(folders: Path) -> Path:
    (folders / "my notes").mkdir()
    return folders / "my notes"


def test_the_file_holds_every_setting_and_sets_what_was_given(
    notes: Path, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders / "pages").mkdir()
    Path("qwen").mkdir()
    assert main(["init", "../my notes", "--cloud", str(folders / "pages"), "--model", "qwen"]) == 0
    text = Path("tandem.toml").read_text("utf-8")
    assert tomllib.loads(text)["device"] == {"model": "./qwen", "index": ".tandem/device"}
    assert all(f"{setting.name} = " in text for _, setting, _ in walk(Config()))
    config = Config.load("tandem.toml")
    assert config.cloud == PartyConfig(
        model=str(folders / "work" / "qwen"), index=str(folders / "work/.tandem/cloud"), num_documents=16
    )
    assert config.decoding == Config().decoding
    assert capsys.readouterr().out.splitlines() == [
        "Wrote tandem.toml. Next:",
        f"  tandem index device '{notes}'",
        f"  tandem index cloud {folders / 'pages'}",
        "  tandem doctor",
        '  tandem search device "QUESTION"',
        '  tandem ask "QUESTION"',
    ]
    assert f"# tandem index device '{notes}'\n" in text


def test_without_a_folder_for_the_cloud_it_has_no_documents(
    notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(notes)]) == 0
    config = Config.load("tandem.toml")
    assert (config.cloud.num_documents, config.cloud.index, config.device.model) == (0, "bundled", "bundled")
    assert "set device.model and cloud.model" in capsys.readouterr().out
    assert '\n# model = "auto"  # language model' in Path("tandem.toml").read_text()


def test_a_hub_id_stays_one(notes: Path) -> None:
    assert main(["init", str(notes), "--model", "Qwen/Qwen2.5-0.5B-Instruct"]) == 0
    assert Config.load("tandem.toml").cloud.model == "Qwen/Qwen2.5-0.5B-Instruct"


def test_what_is_there_is_not_overwritten(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tandem.toml").write_text("mine")
    assert main(["init", str(notes)]) == 1
    assert Path("tandem.toml").read_text() == "mine"
    assert capsys.readouterr().err == (
        f"tandem: {Path('tandem.toml').absolute()} is there already; edit it, or write it again with --force.\n"
    )
    assert main(["init", str(notes), "--force"]) == 0
    assert Config.load("tandem.toml").device.index.endswith(".tandem/device")


def test_a_folder_that_is_not_there(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(notes.with_name("my note"))]) == 1
    assert capsys.readouterr().err == (
        f"tandem: The documents must be a file or a folder, but {notes.with_name('my note')} does not exist; "
        "did you mean my notes?\n"
    )
    assert main(["init", str(notes), "--model", "./none"]) == 1
    assert (
        "The model must be a folder or a hub id, but ./none is no folder; check its path."
        in capsys.readouterr().err
    )
    assert not Path("tandem.toml").exists()
