"""What a model's name stands for; of one that cannot be loaded one sentence, at once, the same from every command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tandem.actors.loading import check_model
from tandem.config.schema import PartyConfig
from tandem.corpora import WEIGHTS
from tandem.engine import places
from tandem.errors import GenerationError
from tandem.plugins.gguf import header as gguf
from tandem.plugins.setup.doctor import check, language_model

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
            "https://example.org/a/model.gguf",
            "'https://example.org/a/model.gguf' is an address on the web, and Tandem loads models of this machine; "
            "download its file, such as with `hf download`, and name that.",
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


ONE, INDEX, SHARD = "model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"
SHARDS = {"a": SHARD, "b": "model-00002-of-00002.safetensors"}
POINTED = (
    "'{{0}}/{}' is a Git LFS pointer and not the file itself; run `git lfs pull` in its folder, or download the model "
    "with `hf download`."
)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({ONE: POINTER}, POINTED.format(ONE)),
        ({"tokenizer.json": POINTER}, POINTED.format("tokenizer.json")),
        ({ONE: None, "model.gguf": POINTER}, POINTED.format("model.gguf")),
        (
            {
                ONE: None,
                SHARD: (WEIGHTS / ONE).read_bytes(),
                INDEX: json.dumps({"weight_map": SHARDS}).encode(),
            },
            "The model directory '{0}' lacks 1 of the files that model.safetensors.index.json names "
            "(model-00002-of-00002.safetensors); download the model again, or copy what is missing.",
        ),
        ({INDEX: b"{"}, "'{0}/model.safetensors.index.json' is damaged; download the model again."),
        (
            {ONE: None},
            "The model directory '{0}' has a config.json but no weights (*.safetensors); download the model again, or "
            "save it there with save_pretrained.",
        ),
        ({ONE: b"\1\0"}, "'{0}/model.safetensors' is no whole safetensors file; download the model again."),
        (
            {ONE: None, "model.gguf": b"GGUF\3\0\0\0"},
            "'{0}/model.gguf' is no whole GGUF file: its header is incomplete; download it again.",
        ),
    ],
)
def test_a_folder_that_is_not_whole(here: Path, damage: dict[str, bytes | None], sentence: str) -> None:
    """damage: what is written to the files of a whole one; None: they are deleted."""
    folder = here / "model"
    shutil.copytree(WEIGHTS, folder)
    places.check_directory(str(folder))
    for name, content in damage.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
    assert fault(str(folder)) == sentence.format(folder)


# ---- which engine computes a model, and models by the names of other tools -----------------------------------


@pytest.mark.parametrize(
    ("setting", "name", "device", "installed", "expected"),
    [
        ("auto", "m.gguf", "cpu", {"torch", "xllamacpp"}, "llama"),
        ("auto", "m.gguf", "cpu", {"torch"}, "torch"),
        ("auto", "m.gguf", "cpu", set(), "llama"),
        ("auto", "m.gguf", "cuda", {"torch", "xllamacpp"}, "torch"),
        ("auto", "folder", "cpu", {"xllamacpp"}, "torch"),
        ("torch", "m.gguf", "cpu", {"xllamacpp"}, "torch"),
        ("llama", "m.gguf", "cpu", set(), "llama"),
        ("mine", "m.gguf", "cpu", {"xllamacpp"}, "mine"),
    ],
)
def test_auto_takes_llama_cpp_for_files_that_it_computes_on_the_processor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    name: str,
    device: str,
    installed: set[str],
    expected: str,
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(
        "tandem.plugins.gguf.find_spec", lambda package: package if package in installed else None
    )
    assert places.name_engine(setting, str(tmp_path / name), device) == expected


# ---- Ollama's store --------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With llama3.2:1b, mira/notes:latest and a model of another host."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    (tmp_path / "blobs").mkdir()
    for number, place in enumerate(
        (
            "registry.ollama.ai/library/llama3.2/1b",
            "registry.ollama.ai/mira/notes/latest",
            "hf.co/org/repo/Q4_0",
        )
    ):
        manifest = tmp_path / "manifests" / place
        manifest.parent.mkdir(parents=True)
        layers = [
            {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:ab{number}"},
        ]
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        (tmp_path / "blobs" / f"sha256-ab{number}").write_bytes(b"GGUF rest")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "number"), [("llama3.2:1b", 0), ("mira/notes", 1), ("hf.co/org/repo:Q4_0", 2)]
)
def test_a_model_of_ollama_is_the_blob_that_its_manifest_names(store: Path, name: str, number: int) -> None:
    file = places.expand(f"ollama:{name}")
    assert file == str(store / "blobs" / f"sha256-ab{number}")
    assert gguf.find_file(file) == Path(file), "a GGUF file without a suffix"


def test_models_of_ollama_are_listed_by_the_names_that_find_them(store: Path) -> None:
    listed = dict(gguf.list_ollama())
    assert list(listed) == ["ollama:hf.co/org/repo:Q4_0", "ollama:llama3.2:1b", "ollama:mira/notes:latest"]
    assert all(places.expand(name) == str(file) for name, file in listed.items())
    assert gguf.list_models() == {}, "none of these files is whole"


@pytest.mark.parametrize("name", ["llama3.2", "nobody", "../../etc/passwd"])
def test_a_model_that_ollama_has_not_is_said_with_those_that_it_has(store: Path, name: str) -> None:
    with pytest.raises(GenerationError) as caught:
        places.expand(f"ollama:{name}")
    text = str(caught.value)
    assert text.startswith(
        f"Ollama's store has no model {name!r} ('{store}' has llama3.2:1b, notes:latest, repo:Q4_0)"
    )
    assert f"run `ollama pull {name}`" in text


@pytest.mark.parametrize("has_own", [True, False])
def test_the_store_of_the_service_is_looked_at_too(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own: bool
) -> None:
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setattr(gguf, "SERVICE_STORE", store)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    own = tmp_path / "home/.ollama/models"
    if has_own:
        own.mkdir(parents=True)
    assert places.expand("ollama:llama3.2:1b") == str(store / "blobs" / "sha256-ab0")
    with pytest.raises(GenerationError, match=f"'{own}' has none; '{store}' has llama3.2:1b, "):
        places.expand("ollama:nobody")


def test_a_store_that_may_not_be_read_is_said(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(GenerationError, match=f"'{store}' cannot be read by this user"):
        places.expand("ollama:llama3.2:1b")
