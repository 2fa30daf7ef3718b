"""Pipelines without sentence-transformers: equal to the library's to the bit, or left to the library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.retrieval import plain_pipeline
from tandem.retrieval.embedding import Embedder, LibraryPipeline
from tandem.retrieval.plain_pipeline import FAMILIES, MODE_KEYS, PlainPipeline, read_recipe
from tests.unit.retrieval.pipelines import TEXTS, by_library, differences, edit_json, make_folder

BERT = "sentence_bert_config.json"
PIPELINE = "config_sentence_transformers.json"
POOLING = "1_Pooling/config.json"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline of every module, to be copied."""
    folder = make_folder(tmp_path_factory.mktemp("usual"))
    assert read_recipe(folder) is not None
    return folder


@pytest.fixture
def folder(usual: Path, tmp_path: Path) -> Path:
    """A pipeline of every module, to be changed."""
    return shutil.copytree(usual, tmp_path / "pipeline")


def check_equal(folder: Path) -> None:
    """The folder is read without the library, and gives what the library gives."""
    plain, library = Embedder.load(str(folder)), by_library(folder)
    assert isinstance(plain.pipeline, PlainPipeline)
    assert (plain.fingerprint, plain.dimension) == (library.fingerprint, library.dimension)
    assert differences(plain, library) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["cls", "max", "mean"])
def test_every_family_and_mode(tmp_path: Path, family: str, mode: str) -> None:
    check_equal(make_folder(tmp_path, family=family, mode=mode, is_normalized=family != "bert"))


@pytest.mark.parametrize("mode", ["cls", "max", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_padding_on_the_left_and_half_precision(tmp_path: Path, mode: str, dtype: torch.dtype) -> None:
    check_equal(make_folder(tmp_path, mode=mode, dtype=dtype, padding_side="left"))


@pytest.mark.parametrize("max_tokens", [None, 16, 80])
def test_the_length_of_texts(tmp_path: Path, max_tokens: int | None) -> None:
    check_equal(make_folder(tmp_path, max_tokens=max_tokens))


@pytest.mark.parametrize("mode", ["cls", "max", "mean"])
def test_a_folder_of_an_older_version(folder: Path, mode: str) -> None:
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2", "Normalize")])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / BERT).write_text('{"max_seq_length": 40, "do_lower_case": false}')
    flags = {key: name == mode for key, name in MODE_KEYS.items()}
    (folder / POOLING).write_text(json.dumps({"word_embedding_dimension": 32, **flags}))
    (folder / PIPELINE).unlink()
    check_equal(folder)


def test_prompts_count_only_where_one_is_put_before_every_text(folder: Path) -> None:
    edit_json(folder / PIPELINE, prompts={"query": "query: ", "passage": "passage: "})
    check_equal(folder)
    edit_json(folder / PIPELINE, default_prompt_name="query")
    left = Embedder.load(str(folder))
    assert isinstance(left.pipeline, LibraryPipeline)
    assert differences(left, by_library(folder)) == []


UNUSUAL: dict[str, Callable[[Path], Any]] = {
    "no_modules": lambda folder: (folder / "modules.json").unlink(),
    "modules_that_are_no_list": lambda folder: (folder / "modules.json").write_text("{}"),
    "a_damaged_file": lambda folder: (folder / POOLING).write_text("{"),
    "no_settings_of_the_encoder": lambda folder: (folder / BERT).write_text("{}"),
    "an_adapter": lambda folder: (folder / "adapter_config.json").write_text("{}"),
    "a_processor": lambda folder: (folder / "preprocessor_config.json").write_text("{}"),
    "another_family": lambda folder: edit_json(folder / "config.json", model_type="modernbert"),
    "code_of_its_own": lambda folder: edit_json(folder / "config.json", auto_map={"AutoModel": "code.Model"}),
    "lower_case": lambda folder: edit_json(folder / BERT, do_lower_case=True),
    "another_task": lambda folder: edit_json(folder / BERT, transformer_task="fill-mask"),
    "another_output": lambda folder: edit_json(folder / BERT, module_output_name="sentence_embedding"),
    "options_of_the_model": lambda folder: edit_json(
        folder / BERT, model_args={"attn_implementation": "eager"}
    ),
    "another_length_for_questions": lambda folder: edit_json(folder / BERT, query_length=8),
    "another_mode": lambda folder: edit_json(folder / POOLING, pooling_mode="lasttoken"),
    "two_modes": lambda folder: edit_json(folder / POOLING, pooling_mode=["cls", "mean"]),
    "pooling_without_prompt": lambda folder: edit_json(folder / POOLING, include_prompt=False),
    "a_prompt": lambda folder: edit_json(folder / PIPELINE, default_prompt_name="query"),
    "fewer_numbers": lambda folder: edit_json(folder / PIPELINE, truncate_dim=8),
    "another_kind_of_model": lambda folder: edit_json(folder / PIPELINE, model_type="SparseEncoder"),
    "requirements": lambda folder: edit_json(folder / PIPELINE, requirements=["einops"]),
    "normalised_tokens": lambda folder: edit_json(
        folder / "2_Normalize/config.json", module_input_name="token_embeddings"
    ),
    "a_fourth_module": lambda folder: _edit_modules(folder, 3, type="sentence_transformers.models.Dense"),
    "a_foreign_module": lambda folder: _edit_modules(folder, 1, type="their_code.Pooling"),
    "options_of_a_module": lambda folder: _edit_modules(folder, 0, kwargs=["task"]),
    "an_encoder_elsewhere": lambda folder: _edit_modules(folder, 0, path="0_Transformer"),
}


def _edit_modules(folder: Path, number: int, **values: Any) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules += [{"idx": number, "name": str(number), "path": f"{number}"}] if number == len(modules) else []
    modules[number].update(values)
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_the_library(folder: Path, name: str) -> None:
    UNUSUAL[name](folder)
    assert read_recipe(folder) is None


@pytest.mark.parametrize("mode", ["lasttoken", ("cls", "mean")])
def test_the_library_runs_what_is_left_to_it(tmp_path: Path, mode: str | tuple[str, ...]) -> None:
    folder = make_folder(tmp_path, mode=mode)
    embedder = Embedder.load(str(folder))
    assert isinstance(embedder.pipeline, LibraryPipeline)
    assert differences(embedder, by_library(folder)) == []


def _mean_with_padding(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden.mean(dim=1)


def _largest_with_padding(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden.amax(dim=1)


def _first_column(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden[:, 0]


@pytest.mark.parametrize(
    ("mode", "mutant"),
    [("mean", _mean_with_padding), ("max", _largest_with_padding), ("cls", _first_column)],
)
def test_a_pooling_that_counts_padding_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, mutant: Callable[..., torch.Tensor]
) -> None:
    folder = make_folder(tmp_path, mode=mode, padding_side="left")
    monkeypatch.setitem(plain_pipeline.POOLING, mode, mutant)
    assert "together, beginning" in differences(Embedder.load(str(folder)), by_library(folder))


def test_other_batches_are_noticed(folder: Path) -> None:
    embedder = Embedder.load(str(folder), batch_size=len(TEXTS))
    assert differences(embedder, by_library(folder)) == ["together, beginning", "together, end"]
