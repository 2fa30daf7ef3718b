"""A row's bits do not depend on its batch. `benchmarks/batch_invariance.py` runs a thousand batches, here a few."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.batch_invariance import growing_differs, random_model
from tandem.engine.engine import Engine
from tandem.plugins.torch.batch import BatchModel
from tandem.plugins.torch.runner import TorchRunner

QUERY = "Which game should Mira try?"
DOCUMENTS = ["Mira likes puzzle games.", "The best rated puzzle game is Vantelu Cor, and it has 40 levels."]
TOKENS = [17, 250, 33, 8, 99]

Save = Callable[..., Path]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", ["llama", "qwen2", "opt"])
def test_control_a_growing_cache_differs(family: str) -> None:
    assert growing_differs(random_model(family, "float32"), random.Random(0))


def test_mutant_padding_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without padding, functions like exp see incomplete vectors: the self-check finds it."""

    class Unpadded(BatchModel):
        @property
        def multiple(self) -> int:
            return 1

        @multiple.setter
        def multiple(self, value: int) -> None: ...

    monkeypatch.setattr("tandem.plugins.torch.runner.BatchModel", Unpadded)
    assert TorchRunner(random_model("llama", "float32")).fault == (
        "the last bits of a row depend on what else is in the batch"
    )


@pytest.fixture(scope="module")
def llama(save_model: Save) -> Engine:
    return Engine.load(str(save_model("llama")), num_threads=1)


@pytest.fixture(scope="module")
def growing(save_model: Save) -> Engine:
    """An engine that fell back."""
    return Engine.load(str(save_model("llama")), num_threads=1, is_batched=False)


def open_all(engine: Engine, names: str) -> None:
    for name, documents in zip(names, ([DOCUMENTS[0]], DOCUMENTS, [], DOCUMENTS[::-1]), strict=False):
        engine.open(name, QUERY, documents, 20)


def close_all(engine: Engine, names: str) -> None:
    for name in names:
        engine.close(name)


def test_the_fallback_gives_the_logits_of_every_prefix(growing: Engine) -> None:
    open_all(growing, "ab")
    (block,) = growing.forward({"b": TOKENS}, {"b": len(TOKENS) + 1})
    close_all(growing, "ab")
    open_all(growing, "ab")
    singles = [growing.next_logits("b", TOKENS[:count]) for count in range(len(TOKENS) + 1)]
    close_all(growing, "ab")
    assert torch.equal(block, torch.stack(singles, dim=1))


def test_a_model_that_fails_the_check_falls_back(
    save_model: Save, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tandem.plugins.torch.runner.find_fault", lambda *arguments: "it was told to")
    engine = Engine.load(str(save_model("llama")), num_threads=1)
    assert [record.message for record in caplog.records] == [engine.fallback]
    assert "because it was told to (on this machine" in engine.fallback
    assert all(parameter.is_contiguous() for parameter in engine.runner.model.parameters())
    open_all(engine, "a")
    assert engine.next_logits("a", TOKENS).shape[0] == 1
    close_all(engine, "a")


def test_a_library_that_splits_long_sums_elsewhere_is_noticed(
    save_model: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As oneMKL does on some processors above 192 columns: in the middle, wherever that is."""

    def split(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        half = weights.shape[-1] // 2
        return weights[..., :half] @ values[:, :, :half] + weights[..., half:] @ values[:, :, half:]

    assert not Engine.load(str(save_model("llama")), num_threads=1).fallback
    monkeypatch.setattr("tandem.plugins.torch.batch.weigh", split)
    fallback = Engine.load(str(save_model("llama")), num_threads=1).fallback
    assert "because the last bits of attention depend on the width of the cache" in fallback
