"""Caches as bytes: the borrower's answer is the lender's, and what does not fit is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tandem.engine.engine import Engine
from tandem.engine.kv import MemoryStore
from tandem.engine.template import PlainTemplate
from tandem.errors import GenerationError
from tandem_lab.baselines.documents import LentFirst
from tandem_lab.baselines.kv_transfer import pack, unpack

DOCUMENTS = ["Mira likes puzzle games.", "Vantelu", "The best rated puzzle game is Vantelu Cor."]

Save = Callable[..., Path]


def load(save_model: Save, family: str = "qwen2", **options: object) -> Engine:
    return Engine.load(str(save_model(family)), num_threads=1, **options)  # type: ignore[arg-type]


def logits(engine: Engine) -> torch.Tensor:
    engine.open("s", "Which game?", DOCUMENTS, 8)
    try:
        return engine.next_logits("s", [9])
    finally:
        engine.close("s")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lent_caches_give_the_same_bits_and_nothing_is_computed(save_model: Save, dtype: str) -> None:
    lender, borrower = load(save_model, dtype=dtype), load(save_model, dtype=dtype)
    expected = logits(lender)
    borrower.caches.store = store = LentFirst(None, 1 << 20)
    unpack(borrower, DOCUMENTS, pack(lender, DOCUMENTS), store.lent)
    assert torch.equal(logits(borrower), expected)
    assert (borrower.caches.num_hits, borrower.caches.num_misses) == (3, 0)


def test_what_does_not_fit_is_one_sentence_and_nothing_is_kept(save_model: Save) -> None:
    lender, kept = load(save_model), MemoryStore(1 << 20)
    data = pack(lender, DOCUMENTS)
    template = PlainTemplate(document_text="Note: {document}\n")
    cases = [
        (load(save_model, "llama"), DOCUMENTS, data, "only between engines of the same weights"),
        (load(save_model, dtype="bfloat16"), DOCUMENTS, data, "Set the same model and dtype on both sides"),
        (
            load(save_model, template=template),
            DOCUMENTS,
            data,
            "Not all of these 3 lent caches",
        ),
        (lender, DOCUMENTS[:2], data, "Not all of these 2 lent caches"),
        (lender, DOCUMENTS, data[:-1], "cannot be read"),
        (lender, DOCUMENTS, b"", "cannot be read"),
    ]
    for engine, documents, given, part in cases:
        with pytest.raises(GenerationError, match=part) as raised:
            unpack(engine, documents, given, kept)
        assert "\n" not in str(raised.value)
        assert str(raised.value).endswith(".")
    assert len(kept) == 0
