"""An evaluation finds documents as the retriever actors do: by the same index or store, and the same scoring model."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.config import Config
from tandem.corpora import indexes
from tandem.evaluation import local, sides
from tandem.evaluation.latency import remembered
from tandem.generation.engine import Engine
from tandem.retrieval import embedding, scoring
from tandem.side import SIDES, Side


class FakeRetriever:
    """Says what it was made of."""

    def __init__(self, *made_of: Any) -> None:
        self.made_of = made_of

    def search(self, query: str, k: int) -> tuple[Any, ...]:
        return self.made_of

    def relevance(self, ids: Any, text: str) -> list[float]:
        return []


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would load models and indexes."""

    def load(name: str, *, num_threads: int | None = None) -> str:
        return f"loaded {name}"

    def opened(side: Side, config: Config, embedder: Any, scorer: Any) -> FakeRetriever:
        return FakeRetriever(side, config.side(side).index, embedder, scorer)

    for module in (embedding, sides):
        monkeypatch.setattr(module, "load_embedder", load)
    for module in (scoring, sides):
        monkeypatch.setattr(module, "load_scorer", load)
    for module in (indexes, sides):
        monkeypatch.setattr(module, "open_retriever", opened)
    monkeypatch.setattr(sides, "load_engines", lambda config, say: {})
    monkeypatch.setattr(Engine, "load", lambda *_, **__: None)
    monkeypatch.setattr(local, "LocalPair", lambda engines, retrievers, codec: retrievers)


CONFIG = Config.load(
    None,
    [
        "retrieval.embedder=langchain:my:embedder",
        "weights.scorer=my-scorer",
        "cloud.index=langchain:my:store",
    ],
)


def wanted(side: Side) -> tuple[Any, ...]:
    return side, CONFIG.side(side).index, "loaded langchain:my:embedder", "loaded my-scorer"


def test_predictions_of_latency() -> None:
    found: Any = remembered.local_pair(CONFIG)
    assert [found[side].search("Why?", 1) for side in SIDES] == [wanted(side) for side in SIDES]


def test_quality() -> None:
    found: Any = sides.load(CONFIG).retrievers
    assert [found[side].made_of for side in SIDES] == [wanted(side) for side in SIDES]
