"""An evaluation finds documents as the retriever actors do: by the same index or store, and the same scoring model."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.config.schema import Config
from tandem.engine.engine import Engine
from tandem.retrieval import factory
from tandem.retrieval import retriever as scoring
from tandem.topology import PARTIES, Party
from tandem_lab.quality import local, memoized, setup


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

    def opened(party: Party, config: Config, embedder: Any, scorer: Any) -> FakeRetriever:
        return FakeRetriever(party, config.party(party).index, embedder, scorer)

    monkeypatch.setattr(factory, "load_embedder", load)
    monkeypatch.setattr(scoring, "load_scorer", load)
    for module in (factory, setup):
        monkeypatch.setattr(module, "open_retriever", opened)
    monkeypatch.setattr(setup, "load_engines", lambda config, say: {})
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


def wanted(party: Party) -> tuple[Any, ...]:
    return party, CONFIG.party(party).index, "loaded langchain:my:embedder", "loaded my-scorer"


def test_predictions_of_latency() -> None:
    found: Any = memoized.local_pair(CONFIG)
    assert [found[party].search("Why?", 1) for party in PARTIES] == [wanted(party) for party in PARTIES]


def test_quality() -> None:
    found: Any = setup.load(CONFIG).retrievers
    assert [found[party].made_of for party in PARTIES] == [wanted(party) for party in PARTIES]
