"""Which engine computes a model, and models by the names of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.engine import gguf, places
from tandem.errors import GenerationError

Save = Callable[..., Path]


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
    monkeypatch.setattr(places, "find_spec", lambda package: package if package in installed else None)
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


@pytest.mark.parametrize("name", ["llama3.2", "nobody", "../../etc/passwd"])
def test_a_model_that_ollama_has_not_is_said_with_those_that_it_has(store: Path, name: str) -> None:
    with pytest.raises(GenerationError) as caught:
        places.expand(f"ollama:{name}")
    text = str(caught.value)
    assert text.startswith(
        f"Ollama's store '{store}' has no model {name!r} (it has llama3.2:1b, notes:latest, repo:Q4_0)"
    )
    assert f"run `ollama pull {name}`" in text
