"""The one loader: what the settings of a party name becomes an engine with its store."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from tandem.actors.loading import check_model, load_embedder, load_engine, open_engine
from tandem.codecs import codec_of
from tandem.config.schema import Config, PartyConfig
from tandem.engine.kv import DiskStore, MemoryStore
from tandem.errors import GenerationError, RetrievalError
from tandem.retrieval import factory

TEXT = "Mira likes puzzle games."


def device(*settings: str) -> PartyConfig:
    return Config.load(None, settings).device


def test_bundled_is_a_model_and_threads_are_the_settings_unless_given() -> None:
    before = torch.get_num_threads()
    try:
        assert load_engine(device("device.num_threads=2")).caches.store is None
        assert torch.get_num_threads() == 2
        load_engine(device("device.num_threads=2"), num_threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


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


def test_a_model_is_checked_without_loading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_model(device())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    check_model(device("device.model=some/hub-id"))
    with pytest.raises(GenerationError, match=r"there is no such directory; correct the path\.$"):
        check_model(device(f"device.model={tmp_path / 'nowhere'}"))
    with pytest.raises(GenerationError, match="there is no such directory"):
        check_model(device("device.model=~/no/such/model"))


def test_the_codec_of_the_settings() -> None:
    assert codec_of(Config().codec).fingerprint() == "top_p/2(p=0.8, max_tokens=4096)"
    wider = Config.load(None, ["codec.parameters={p = 0.9}"])
    assert codec_of(wider.codec).fingerprint() == "top_p/2(p=0.9, max_tokens=4096)"


def test_a_damaged_template_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / "template.json").write_text("{")
    with pytest.raises(
        GenerationError, match=r"template\.json is not readable JSON: .*; correct or delete it\.$"
    ):
        check_model(device(f"device.model={tmp_path}"))
    check_model(device(f"device.model={tmp_path}", "device.template=plain"))
    with pytest.raises(GenerationError, match=r"^There is no template .*/own\.jinja; correct the path\.$"):
        check_model(device(f"device.template={tmp_path}/own.jinja"))


def test_the_garbage_collector_rests_while_something_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def load(name: str, *, num_threads: int | None = None) -> str:
        seen.append(gc.isenabled())
        if name == "none":
            raise RetrievalError("there is none")
        return name

    monkeypatch.setattr(factory, "load_embedder", load)
    assert load_embedder(Config.load(None, ["retrieval.embedder=some"])) == "some"
    assert gc.isenabled()
    with pytest.raises(RetrievalError):
        load_embedder(Config.load(None, ["retrieval.embedder=none"]))
    assert gc.isenabled()
    gc.disable()
    try:
        load_embedder(Config.load(None, ["retrieval.embedder=some"]))
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [False, False, False]


def test_parties_with_equal_models_share_their_weights() -> None:
    first, second = load_engine(device()), load_engine(device("device.template=plain"))
    own, other = (dict(engine.runner.model.named_parameters()) for engine in (first, second))
    assert all(own[name] is other[name] for name in own)
    assert first.runner.model is not second.runner.model
    tokens = first.open("x", "Which game should Mira try?", [TEXT], 4), second.open("x", "Why?", ["Else."], 4)
    assert tokens
    apart = load_engine(device("device.dtype=bfloat16"))
    assert not set(map(id, apart.runner.model.parameters())) & set(map(id, own.values()))
    for one, another in zip(
        [engine.next_logits("x", ()) for engine in (first, second)],
        [engine.next_logits("x", ()) for engine in (first, second)],
        strict=True,
    ):
        assert torch.equal(one, another)


def test_weights_that_nobody_uses_any_more_are_freed() -> None:
    engine = load_engine(device("device.dtype=float16"))
    weights = weakref.ref(engine.runner.weights)
    assert weights() is not None
    del engine
    gc.collect()
    assert weights() is None
