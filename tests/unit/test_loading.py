"""The one loader: what the settings of a party name becomes an engine with its store."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from tandem.actors.loading import load_engine, open_engine
from tandem.config.schema import Config, PartyConfig
from tandem.engine.kv import DiskStore, MemoryStore

TEXT = "Mira likes puzzle games."


def device(*settings: str) -> PartyConfig:
    return Config.load(None, settings).device


@pytest.mark.parametrize(
    ("kind", "store"), [("disk", DiskStore), ("memory", MemoryStore), ("off", type(None))]
)
def test_the_store_is_that_of_the_settings(tmp_path: Path, kind: str, store: type) -> None:
    warnings: list[str] = []
    engine = open_engine(device(f"device.kv_store={kind}"), tmp_path / "kv", warnings.append)
    assert type(engine.caches.store) is store
    engine.document_cache(TEXT)
    assert (tmp_path / "kv").exists() == (kind == "disk")
    assert warnings == []


def test_parties_with_equal_models_share_their_weights() -> None:
    first, second = load_engine(device()), load_engine(device("device.template=plain"))
    own, other = (dict(engine.runner.model.named_parameters()) for engine in (first, second))
    assert all(own[name] is other[name] for name in own)
    assert first.runner.model is not second.runner.model
    first.open("x", "Which game should Mira try?", [TEXT], 4)
    second.open("x", "Why?", ["Else."], 4)
    apart = load_engine(device("device.dtype=bfloat16"))
    assert not set(map(id, apart.runner.model.parameters())) & set(map(id, own.values()))
    before, after = ([engine.next_logits("x", ()) for engine in (first, second)] for _ in range(2))
    assert all(map(torch.equal, before, after))


def test_weights_that_nobody_uses_any_more_are_freed() -> None:
    engine = load_engine(device("device.dtype=float16"))
    weights = weakref.ref(engine.runner.shared)
    assert weights() is not None
    del engine
    gc.collect()
    assert weights() is None
