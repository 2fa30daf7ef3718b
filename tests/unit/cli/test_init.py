"""`tandem init`: a file of settings that the other commands read, and what it refuses."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.cli import main
from tandem.config.files import walk
from tandem.config.schema import Config, PartyConfig
from tandem.corpora import can_load_smollm2
from tandem.errors import GenerationError
from tandem.plugins.setup import init
from tests.tiny_gguf import write_gguf

from .conftest import Run


@pytest.fixture
def notes(folders: Path) -> Path:
    (folders / "my notes").mkdir()
    return folders / "my notes"


def test_the_file_holds_every_setting_and_sets_what_was_given(
    notes: Path, folders: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "count_threads", lambda: 3)
    (folders / "pages").mkdir()
    Path("qwen").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        Path("qwen", name).touch()
    both = ("../my notes", "--cloud", str(folders / "pages"), "--model", "qwen")
    shown = run("init", "--settings-only", *both, code=0)
    text = Path("tandem.toml").read_text("utf-8")
    assert tomllib.loads(text)["device"] == {
        "model": "./qwen",
        "num_threads": 3,
        "index": ".tandem/device",
        "watch": True,
    }
    assert all(f"{setting.name} = " in text for _, setting, _ in walk(Config()))
    config = Config.load("tandem.toml")
    assert config.cloud == PartyConfig(
        model=str(folders / "work" / "qwen"),
        index=str(folders / "work/.tandem/cloud"),
        num_documents=2,
        num_threads=3,
        watch=True,
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


def test_the_embedder_of_many_languages_where_it_is_of_use(
    notes: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(*words: str) -> str:
        run("init", "--settings-only", "--force", str(notes), *words, code=0)
        return Config.load("tandem.toml").retrieval.embedder

    monkeypatch.setattr("tandem.cli.index.has_multilingual", lambda: True)
    (notes / "a.md").write_text("Mira likes puzzle games.")
    assert chosen() == "auto"
    (notes / "b.md").write_text(
        "Der Schlüssel ist in der Küche, und das Licht geht nicht mit dem Schalter an."
    )
    assert chosen() == "multilingual"
    assert chosen("--embedder", "offline") == "offline"
    monkeypatch.setattr("tandem.cli.index.has_multilingual", lambda: False)
    assert chosen() == "auto"


@pytest.fixture
def models(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """~/models with two chat models, one of them in a folder of its own, and three files that are none. Nothing is
    measured: every answer takes seven seconds."""
    place = folders / "home" / "models"
    (place / "large").mkdir(parents=True)
    write_gguf(place / "small.gguf", chat_template="{{ messages }}")
    write_gguf(place / "large" / "large.gguf", kind="F32", chat_template="{{ messages }}")
    write_gguf(place / "base.gguf")
    (place / "part.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(init, "can_load_smollm2", lambda: False)
    monkeypatch.setattr(init, "is_offline", lambda: False)
    monkeypatch.setattr(init, "available_bytes", lambda: 4_000_000_000)
    monkeypatch.setattr(init, "measure", lambda each: replace(each, answer_s=7.0))
    return place


LARGE, SMALL = "~/models/large/large.gguf", "~/models/small.gguf"
FETCHED = "hf download Qwen/Qwen2.5-1.5B-Instruct-GGUF qwen2.5-1.5b-instruct-q4_k_m.gguf --local-dir ~/models"


@pytest.mark.usefixtures("models")
def test_the_best_model_that_fits_is_taken_and_said(
    notes: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    shown = run("init", "--settings-only", str(notes), code=0)
    config = Config.load("tandem.toml")
    assert config.device.model == config.cloud.model == str(Path(LARGE).expanduser())
    assert shown.out.startswith(
        f"Model {LARGE}: 0.0 GB, about 7 s per answer; small: it finds, but often misreads\nBetter ones, "
    )
    assert f"{FETCHED}  # 1.1 GB; Apache-2.0" in shown.out
    assert "Qwen2.5-3B-Instruct" in shown.out
    assert "Qwen2.5-7B-Instruct" not in shown.out, "its memory is not there"
    monkeypatch.setattr(init, "measure", lambda each: replace(each, answer_s=99.0))
    assert init.choose_model(None) == SMALL, "both are slow"
    monkeypatch.setattr(init, "measure", lambda each: None)
    assert init.choose_model(None) is None


def test_what_is_named_wins(models: Path) -> None:
    assert init.choose_model(SMALL) == SMALL
    write_gguf(models / "large" / "larger.gguf", kind="F32", chat_template="{{ messages }}", header={"x": 1})
    assert init.choose_model("~/models/large") in (LARGE, "~/models/large/larger.gguf")


@pytest.mark.skipif(not can_load_smollm2(), reason="SmolLM2 is not installed")
def test_a_model_is_measured() -> None:
    measured = init.measure(init.Candidate("smollm2", 98_000_000, 134_515_008))
    assert measured is not None
    assert 0.1 < measured.answer_s < 1000
    assert "; small: it finds, but often misreads" in str(measured)


def test_a_model_that_cannot_be_loaded_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert init.measure(init.Candidate("./none.gguf", 1, 1)) is None
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.usefixtures("models")
def test_a_person_chooses_a_model_and_asks(notes: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The index is a real one; what would answer is a fake that records how it was asked."""
    asked: list[dict[str, object]] = []
    replies = iter(["2", "Who is Mira?"])
    monkeypatch.setattr("tandem.cli.ask.ask", lambda **options: asked.append(options) or 0)
    monkeypatch.setattr(init, "is_interactive", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(replies))
    (notes / "a.md").write_text("Mira likes puzzle games.")
    shown = run("init", str(notes), code=0)
    assert f"  1  {LARGE}: 0.0 GB, about 7 s per answer" in shown.out
    assert Config.load("tandem.toml").device.model == str(Path(SMALL).expanduser())
    assert asked == [{"question": "Who is Mira?", "runtime": "inline"}]
    assert "Indexed: 1 file" in shown.out


def test_an_answer_from_ones_own_notes(notes: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is alone: no process beside the one that asks, no bundled pages, and not a word about a cloud."""
    monkeypatch.delattr("tandem.plugins.watching.watch_beside")
    (notes / "a.md").write_text("Mira likes puzzle games.")
    words = ("--model", "bundled", "--ask", "Which game should Mira try?")
    shown = run("init", str(notes), *words, code=0)
    assert "Mira likes puzzle games, so try" in shown.out
    said = [line for line in (shown.out + shown.err).splitlines() if "The bundled model is" not in line]
    assert not any("cloud" in line or re.search(r"(?<![\d.])137 (?!ms)", line) for line in said)
    config = Config.load("tandem.toml")
    assert (config.cluster.runtime, config.cloud.num_documents, config.is_alone) == ("inline", 0, True)
    assert config.holders == ("device",)
    assert not any(line[9:].startswith("cloud") for line in run("doctor").out.splitlines())


def test_caches_of_a_small_folder_are_computed_at_once(
    notes: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (notes / "a.md").write_text("Mira likes puzzle games.")
    for number in range(3):
        (notes / f"{number}.md").write_text(f"Ida has {number} bicycles.")
    words = ("init", str(notes), "--model", "bundled", "--force")
    offered = "  tandem index device --precompute-kv  # caches: then answers begin sooner"
    with monkeypatch.context() as patched:
        patched.setattr(init, "SAMPLED_S", 0.0)
        patched.setattr(init, "CACHING_S", 0.0)
        assert offered in run(*words, code=0).out
    with monkeypatch.context() as patched:
        patched.setattr(init, "MAX_CACHED", 3)
        patched.delattr("tandem.actors.loading.load_engine")
        assert offered in run(*words, code=0).out
    assert "precompute-kv" not in run(*words, code=0).out
    assert "0 chunks computed, 4 already there" in run("index", "device", "--precompute-kv", code=0).out


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
