"""Names of models that cannot be loaded: one sentence with the remedy, at once, the same from every command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.actors.loading import check_model
from tandem.cli.doctor import check, language_model
from tandem.config.schema import PartyConfig
from tandem.corpora import WEIGHTS
from tandem.engine import places
from tandem.errors import GenerationError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
HUB = '"Qwen/Qwen2.5-0.5B-Instruct"'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and a hub without a cache that nobody may ask."""
    monkeypatch.setattr(places, "is_offline", lambda: True)
    monkeypatch.setattr(places, "is_cached", lambda name, file: name == "org/cached")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def fault(model: str) -> str:
    """The sentence of a start, which the doctor's row repeats."""
    party = PartyConfig(model=model)
    with pytest.raises(GenerationError) as caught:
        check_model(party)
    found = check("device model", lambda: language_model(party))
    assert (found.status, found.finding) == ("missing", str(caught.value))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smolm2", "There is no model 'smolm2'; did you mean 'smollm2'?"),
        ("bundlde", "There is no model 'bundlde'; did you mean 'bundled'?"),
        (
            "gpt-4o-mini",
            "'gpt-4o-mini' is a model of a service, and Tandem runs models itself; name a folder, a GGUF file, a hub "
            f'id such as {HUB}, or "smollm2" or "bundled".',
        ),
        (
            "llama3.2",
            "There is no model 'llama3.2'; if Ollama has downloaded it, name it \"ollama:llama3.2\", else a GGUF file, "
            'a folder, a hub id such as "meta-llama/Llama-3.2-1B-Instruct", or "smollm2" or "bundled".',
        ),
        (
            "qwen2.5:0.5b",
            "There is no model 'qwen2.5:0.5b'; if Ollama has downloaded it, name it \"ollama:qwen2.5:0.5b\", else a "
            f'GGUF file, a folder, a hub id such as {HUB}, or "smollm2" or "bundled".',
        ),
        (
            "xyzzy",
            f"There is no model 'xyzzy'; name a folder, a GGUF file, a hub id such as {HUB}, or \"smollm2\" or "
            '"bundled".',
        ),
        (
            "org/elsewhere",
            "The model 'org/elsewhere' is not in the hub's cache, and HF_HUB_OFFLINE keeps it from being downloaded; "
            "correct the name, download the model, or name a folder.",
        ),
        (
            "./none.gguf",
            "'./none.gguf' is neither a model directory nor a hub id: there is no such file; correct the path.",
        ),
    ],
)
def test_a_name_that_is_none(name: str, sentence: str) -> None:
    assert fault(name) == sentence


def point(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(POINTER)


def point_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(POINTER)


def lose_a_shard(folder: Path) -> None:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors").rename(folder / shards["a"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def damage_the_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")


def lose_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\1\0")


def cut_gguf(folder: Path) -> None:
    lose_weights(folder)
    (folder / "model.gguf").write_bytes(b"GGUF\3\0\0\0")


def point_gguf(folder: Path) -> None:
    lose_weights(folder)
    (folder / "model.gguf").write_bytes(POINTER)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            point,
            "'{0}/model.safetensors' is a Git LFS pointer and not the file itself; run `git lfs pull` in its folder, "
            "or download the model with `hf download`.",
        ),
        (
            point_tokenizer,
            "'{0}/tokenizer.json' is a Git LFS pointer and not the file itself; run `git lfs pull` in its folder, or "
            "download the model with `hf download`.",
        ),
        (
            point_gguf,
            "'{0}/model.gguf' is a Git LFS pointer and not the file itself; run `git lfs pull` in its folder, or "
            "download the model with `hf download`.",
        ),
        (
            lose_a_shard,
            "The model directory '{0}' lacks 1 of the files that model.safetensors.index.json names "
            "(model-00002-of-00002.safetensors); download the model again, or copy what is missing.",
        ),
        (damage_the_index, "'{0}/model.safetensors.index.json' is damaged; download the model again."),
        (
            lose_weights,
            "The model directory '{0}' has a config.json but no weights (*.safetensors); download the model again, or "
            "save it there with save_pretrained.",
        ),
        (cut_header, "'{0}/model.safetensors' is no whole safetensors file; download the model again."),
        (cut_gguf, "'{0}/model.gguf' is no whole GGUF file: its header is incomplete; download it again."),
    ],
)
def test_a_folder_that_is_not_whole(here: Path, damage: Callable[[Path], None], sentence: str) -> None:
    folder = here / "model"
    shutil.copytree(WEIGHTS, folder)
    places.check_directory(str(folder))
    damage(folder)
    assert fault(str(folder)) == sentence.format(folder)
