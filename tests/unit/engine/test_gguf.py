"""GGUF files: found, checked by their header, converted once, and the same weights wherever the file is."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.engine.engine import Engine
from tandem.engine.places import load_tokenizer
from tandem.errors import GenerationError
from tandem.plugins.gguf import tokenizer as gguf_tokenizer
from tandem.plugins.torch import model
from tandem.plugins.torch.conversion import convert
from tests.tiny_gguf import write_gguf

pytest.importorskip("gguf", reason="the package gguf (extra torch) is not installed")
pytest.importorskip("accelerate", reason="the package accelerate (extra torch) is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tandem" / "models"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "g").mkdir()
    return write_gguf(tmp_path / "g" / "tiny.Q8_0.gguf")


def folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def test_a_file_is_converted_once_and_weighs_the_same_from_everywhere(
    file: Path, tmp_path: Path, cache: Path
) -> None:
    elsewhere = tmp_path / "another name.GGUF"
    shutil.copy(file, elsewhere)
    engines = [
        Engine.load(str(path), engine="torch", template="plain") for path in (file, file.parent, elsewhere)
    ]
    assert len({engine.runner.weights_fingerprint for engine in engines}) == 1
    assert len({engine.vocabulary_fingerprint for engine in engines}) == 1
    assert [path.name.split("-")[1] for path in folders(cache)] == ["float32"]
    other = Engine.load(str(write_gguf(tmp_path / "other.gguf", seed=1)), engine="torch", template="plain")
    assert other.runner.weights_fingerprint != engines[0].runner.weights_fingerprint
    assert len(folders(cache)) == 2


def test_the_weights_are_those_of_the_file_to_the_bit(file: Path) -> None:
    from transformers import AutoModelForCausalLM

    direct: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    ours = model.load_model(str(file), device="cpu", dtype="float32")
    expected = dict(direct.named_parameters())
    assert {
        name: bool((weight == expected[name]).all()) for name, weight in ours.named_parameters()
    } == dict.fromkeys(expected, True)


def test_processes_that_need_it_at_once_convert_it_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained
    written: list[object] = []

    def count(*values: Any, **options: Any) -> Any:
        written.append(options)
        return read(*values, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", count)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: convert(file, "float32"), range(8)))) == 1
    assert len(written) == 1


def test_a_disk_that_is_full_is_one_sentence(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(
        GenerationError, match=r"cannot be written to .* \(0.0 GB are free\); free 0.0 GB there, or set"
    ):
        convert(file, "float32")
    assert folders(cache) == []


TEXT = "It's 2024,  x\n\n1234 WE'LL Ünï-日本語 (a+b)\n"


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", "It|'s| 2024|,| | x|\n|\n|1234| WE|'|LL| Ünï|-|日本語| (|a|+|b|)|\n"),
        ("smollm", "It|'s| |2|0|2|4|,| | x|\n\n|1|2|3|4| WE|'|LL| Ünï|-|日本語| (|a|+|b|)|\n"),
        ("llama-bpe", "It|'s| |202|4|,| | x|\n\n|123|4| WE|'LL| Ünï|-日本語| (|a|+b|)\n"),
        ("qwen2", "It|'s| |2|0|2|4|,| | x|\n\n|1|2|3|4| WE|'LL| Ünï|-日本語| (|a|+b|)\n"),
        ("gpt-4o", "It's| |202|4|,| | x|\n\n|123|4| WE'LL| Ünï|-日本語| (|a|+b|)\n"),
        ("deepseek-v3", "It|'s| |202|4|,| | x|\n\n|123|4| WE|'LL| Ünï|-|日本語| (|a|+b|)\n"),
        ("deepseek-coder", "It|'|s| |2|0|2|4|,| | x|\n|\n|1|2|3|4| WE|'|LL| Ünï|-|日本語| (|a|+|b|)|\n"),
    ],
)
def test_texts_are_split_as_llama_cpp_splits_them(name: str, pieces: str) -> None:
    found = gguf_tokenizer.make_pre_tokenizer(name).pre_tokenize_str(TEXT)
    assert [TEXT[start:end] for _, (start, end) in found] == pieces.split("|")


@pytest.mark.parametrize(
    ("split", "tokens"),
    [
        ("gpt-2", ["a", "Ċ", "Ċ", "12"]),
        ("smollm", ["a", "ĊĊ", "1", "2"]),
        ("bloom", ["a", "Ċ", "Ċ", "12"]),
        ("", ["a", "Ċ", "Ċ", "12"]),
    ],
)
def test_a_file_says_how_its_texts_are_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, split: str, tokens: list[str]
) -> None:
    """Before it is converted and afterwards."""
    file = write_gguf(tmp_path / "x.gguf", split=split)
    before, _ = load_tokenizer(str(file))
    said = {
        "bloom": "names the pre-tokenizer 'bloom', which Tandem does not know",
        "": "names no pre-tokenizer",
    }
    assert caplog.messages == (
        [f"{file} {said[split]}: texts are split as GPT-2's are, and answers may be worse."]
        if split in said
        else []
    )
    convert(file, "float32")
    after, _ = load_tokenizer(str(file))
    for tokenizer in (before, after):
        assert tokenizer.encode("a\n\n12", add_special_tokens=False).tokens == tokens
