"""Questions asked of a small random model: what did not fit is said with the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tandem.codecs import make_codec
from tandem.config import Config
from tandem.engine.engine import Engine
from tandem.engine.kv_cache import MemoryStore
from tandem.lab.quality.document_sets import Counts
from tandem.lab.quality.methods import select_methods
from tandem.lab.quality.qa import evaluate_questions, told_text
from tandem.lab.quality.questions import Question
from tandem.lab.quality.setup import Parties, load_engines
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import PARTIES, Party


class Shelf:
    """Always finds one document."""

    ranks_again = False

    def __init__(self, text: str) -> None:
        self._hit = Hit("only", Document(id="only", page_content=text), 1.0)

    def search(self, query: str, k: int, given_texts: Sequence[str] = (), *, filter: Any = None) -> list[Hit]:
        return [self._hit]

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        return [1.0] * len(ids)


def test_documents_are_computed_once_for_all_methods_and_joined_ones_are_not_kept(
    load_engine: Callable[..., Engine],
) -> None:
    engine, store = load_engine(), MemoryStore(1 << 30)
    engine.caches.store = store
    parties = Parties(
        dict.fromkeys(PARTIES, engine),
        dict.fromkeys(PARTIES, Shelf("Mira.")),
        make_codec("top_p", p=0.8),
        False,  # type: ignore[arg-type]
    )
    config = Config.load(None, ["sampling.max_new_tokens=2"])
    asked = [Question("Which game?", ("Vantelu",))]
    try:
        evaluate_questions(parties, asked, select_methods("drcg"), [Counts(1, 1)], config)
        assert len(store) == 0
        misses = engine.caches.num_misses
        evaluate_questions(parties, asked, select_methods("device,static"), [Counts(1, 1)], config)
        kept = {engine.document_tokens("Mira.")}
        assert {tokens for tokens in kept if store.get(tokens) is not None} == kept
        assert engine.caches.num_misses - misses == len(store) <= 2  # and that of a row without document
    finally:
        engine.caches.store = None


def test_loaded_engines_keep_caches_in_memory() -> None:
    engines = load_engines(Config())
    assert engines[Party.DEVICE] is engines[Party.CLOUD]
    assert isinstance(engines[Party.DEVICE].caches.store, MemoryStore)


def test_parties_with_different_templates_have_engines_of_their_own() -> None:
    engines = load_engines(Config.load(None, ["cloud.template=plain"]))
    described = [engines[party].template.describe() for party in PARTIES]
    assert described == ["plain text of template.json", "plain text"]


@pytest.mark.parametrize(("times", "notes"), [(1, 0), (100, 1)])
def test_documents_that_were_cut_are_noted(
    load_engine: Callable[..., Engine], times: int, notes: int
) -> None:
    retrievers = dict.fromkeys(PARTIES, Shelf("Mira likes puzzle games. " * times))
    parties = Parties(dict.fromkeys(PARTIES, load_engine()), retrievers, make_codec("top_p", p=0.8), False)  # type: ignore[arg-type]
    config = Config.load(None, ["sampling.max_new_tokens=2"])
    asked = [Question(f"Which game {number}?", ("Vantelu",)) for number in range(2)]
    result = evaluate_questions(parties, asked, select_methods("static"), [Counts(1, 1)], config)
    assert len(result.notes) == notes
    if notes:
        assert result.notes[0].startswith("4 rows were cut at the end of their documents")


def test_a_token_that_is_not_more_probable_than_all_others_is_not_told(
    load_engine: Callable[..., Engine],
) -> None:
    engine = load_engine()
    wanted = [7, 8, 9]
    text = engine.text([7, 9]).strip()
    assert told_text(engine, wanted, -np.log([0.51, 0.5, 0.9])) == text


def test_the_oracle_row_has_the_words_of_the_wanted_answer(load_engine: Callable[..., Engine]) -> None:
    """With random weights nothing is told, and the answer is not exact."""
    retrievers = dict.fromkeys(PARTIES, Shelf("Mira likes puzzle games."))
    parties = Parties(dict.fromkeys(PARTIES, load_engine()), retrievers, make_codec("top_p", p=0.8), False)  # type: ignore[arg-type]
    config = Config.load(None, ["sampling.max_new_tokens=2"])
    asked = [Question(f"Which game {number}?", ("Vantelu",)) for number in range(2)]
    result = evaluate_questions(parties, asked, select_methods("dynamic,oracle"), [Counts(1, 1)], config)
    dynamic, oracle = result.rows
    assert oracle.perplexity <= dynamic.perplexity
    assert oracle.exact is not None
    assert oracle.exact.value == 0
    assert [one["given"] for one in result.predictions if one["method"] == "oracle"] == ["", ""]
    assert any("only oracle 0" in sentence for sentence in result.comparisons)
