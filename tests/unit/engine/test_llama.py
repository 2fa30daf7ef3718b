"""What is llama.cpp's alone: adapters, settings, what fails at loading, and mutants that the contract must notice."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._random_batches import compute, count_differences
from tandem.engine import places
from tandem.engine.engine import Engine
from tandem.engine.kv import MemoryStore
from tandem.engine.port import LoadOptions, Row
from tandem.errors import GenerationError
from tandem.plugins.llama import abi, library, rows
from tandem.plugins.llama.runner import LlamaRunner
from tests.tiny_gguf import CONTEXT, GEMMA, MATRICES, write_gguf, write_lora

Load = Callable[..., Engine]


@pytest.fixture
def q8(load_tiny: Load) -> Any:
    """A runner of a test's own, to be changed."""
    return load_tiny("llama Q8_0").runner


@pytest.fixture
def f16(load_tiny: Load) -> Any:
    return load_tiny("llama F16").runner


# ---- mutants, each of which the random batches of the contract notice -------------------------------------------


def is_noticed(runner: Any) -> bool:
    try:
        return count_differences(runner, 12, seed=5, max_rows=16)[1] > 0
    except GenerationError:  # llama.cpp notices it itself
        return True


def test_mutant_crops_are_left_out(q8: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.Context, "crop", lambda *_: None)
    assert is_noticed(q8)


def test_mutant_pieces_of_any_shape(f16: Any) -> None:
    """F16 has other bits where several tokens of a row are computed in one pass."""
    assert count_differences(f16, 12, seed=5, max_rows=1) == (36, 0)
    f16.row_model.block, f16.row_model.max_tokens = None, 64
    assert count_differences(f16, 12, seed=5, max_rows=1)[1] > 0


# ---- how passes are put together --------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_keys_and_values_may_be_quantised(load_tiny: Load, q8: Any, cache_type: str) -> None:
    quantised = load_tiny("llama Q8_0", cache_type=cache_type).runner
    assert quantised.computing_fingerprint != q8.computing_fingerprint
    assert quantised.weights_fingerprint == q8.weights_fingerprint
    assert count_differences(quantised, 4, seed=5, max_rows=16) == (12, 0)
    found = [compute(each, [Row((), tuple(range(200)))], ((), 1))[0].ravel() for each in (quantised, q8)]
    assert 0.8 < np.corrcoef([bits.view(np.float32) for bits in found])[0, 1] < 1


def test_a_sliding_window_can_be_cropped_and_stored(base: Path) -> None:
    """But not moved from one turn to the next: what has left the window is not written."""
    runner = LlamaRunner(write_gguf(base / "gemma.gguf", architecture=GEMMA), LoadOptions(num_threads=1))
    runner.caches.store = MemoryStore(1 << 26)
    runner.turns.max_bytes = 1 << 26
    assert count_differences(runner, 6, seed=5, max_rows=16) == (18, 0)
    assert runner.caches.num_hits > 0
    assert runner.turns.num_bytes == 0


# ---- adapters -----------------------------------------------------------------------------------------------------

ADAPTED = ("blk.0.attn_q", "blk.1.ffn_down")


def make_adapter(folder: Path, base: Path | str) -> dict[str, Any]:
    """A folder of an adapter of random weights; what it adds to the base model's."""
    draw = np.random.default_rng(3)
    update = {
        name: tuple(0.3 * draw.standard_normal(shape).astype(np.float32) for shape in ((2, wide), (tall, 2)))
        for name in ADAPTED
        for tall, wide in [MATRICES[name]]
    }
    folder.mkdir()
    write_lora(folder / "lora.gguf", update)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}), "utf-8")
    return {name: up @ down for name, (down, up) in update.items()}


@pytest.fixture
def base(tmp_path: Path, load_tiny: Load, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model."""
    load_tiny("llama F32")  # or skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "base").mkdir()
    write_gguf(tmp_path / "base" / "model.gguf", kind="F32")
    return tmp_path / "base"


def load(path: Path, engine: str = "llama", **options: Any) -> Engine:
    return Engine.load(str(path), engine=engine, template="plain", num_threads=1, **options)


def test_an_adapter_is_its_base_with_the_update_merged(tmp_path: Path, base: Path) -> None:
    update = make_adapter(tmp_path / "adapter", base)
    merged = write_gguf(tmp_path / "merged.gguf", kind="F32", added=update)
    loaded = [load(tmp_path / "adapter"), load(merged), load(merged, "torch"), load(base)]
    prompt = [Row((5, 6), tuple(range(40)))]
    adapted, *others, plain = (
        compute(each.runner, prompt, ((7, 8), 3))[0].view(np.float32) for each in loaded
    )
    for other in others:
        np.testing.assert_allclose(adapted, other, atol=0.02 * float(other.std()))
    assert np.abs(adapted - plain).max() > plain.std()
    assert count_differences(loaded[0].runner, 4, seed=5, max_rows=16) == (12, 0)
    assert len({each.runner.weights_fingerprint for each in loaded}) == 4
    assert loaded[0].vocabulary_fingerprint == loaded[3].vocabulary_fingerprint


def sentence(path: Path, **options: Any) -> str:
    with pytest.raises(GenerationError) as raised:
        load(path, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# ---- what fails at loading ----------------------------------------------------------------------------------------


def test_an_unknown_architecture_is_one_sentence(tmp_path: Path, base: Path) -> None:
    file = write_gguf(tmp_path / "x.gguf", architecture="unheard-of")
    assert sentence(file) == (
        f"llama.cpp cannot load {str(file)!r}: llama_model_load: error loading model: unknown model architecture: "
        "'unheard-of'; use another file, or set engine to \"torch\"."
    )


@pytest.mark.parametrize(("scaling", "expected"), [("longrope", 512), ("yarn", CONTEXT)])
def test_rows_stay_below_the_length_at_which_frequencies_change(
    tmp_path: Path, scaling: str, expected: int
) -> None:
    file = write_gguf(tmp_path / "long.gguf", original_context=512, scaling=scaling)
    runner = LlamaRunner(file)
    assert runner.context_length == expected
    if expected <= 512:
        cache = runner.row_model.make_cache(1, expected)
        assert cache.reserve(0, expected)[0].capacity <= 512


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, library.PACKAGE, None)
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.mark.usefixtures("not_installed")
def test_without_the_package_the_sentence_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the package gguf (extra torch) is not installed")
    file = write_gguf(tmp_path / "x.gguf")
    assert places.name_engine("auto", str(file)) == "torch"
    assert sentence(file).startswith("llama.cpp is not installed (the package xllamacpp); run ")
    assert sentence(file).endswith('or set engine to "torch".')


# ---- the library ------------------------------------------------------------------------------------------------


@pytest.fixture
def forgotten(base: Path) -> Iterator[None]:
    """The library is looked for again, now and afterwards."""
    library.library.cache_clear()
    yield
    library.library.cache_clear()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot open shared object file"), (b"no library", "file too short"), (b"\x7fELF" * 99, "")],
)
def test_a_library_that_cannot_be_loaded_is_one_sentence(
    base: Path, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    named = tmp_path / "libllama.so"
    if content is not None:
        named.write_bytes(content)
    told = sentence(base, library=str(named))
    assert told.startswith(f"llama.cpp cannot be loaded from {str(named)!r} (")
    assert reason in told
    assert f"install llama.cpp {abi.VERSION}, or leave engine_library empty and run `" in told


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", ["n_rs_seq", "flash_attn_type", "use_extra_bufts", "load_mode"])
def test_a_layout_that_differs_is_noticed(base: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A field that another version has before these moves all that follow."""
    kind = abi.ContextParams if name in abi.CONTEXT_DEFAULTS else abi.ModelParams
    fields = [*vars(kind)["_fields_"]]
    place = [field for field, *_ in fields].index(name)

    class Moved(ctypes.Structure):
        _fields_ = (*fields[:place], ("new", ctypes.c_int32), *fields[place:])

    made = "llama_context_default_params" if kind is abi.ContextParams else "llama_model_default_params"
    monkeypatch.setitem(abi.FUNCTIONS, made, (Moved,))
    assert f"is not the llama.cpp {abi.VERSION} that Tandem knows (its default of " in sentence(base)


def test_a_file_larger_than_the_memory_is_one_sentence(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        total = 1000

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    assert "this machine has 0.0 GB of memory; use a smaller model" in sentence(base)
