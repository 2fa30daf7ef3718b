"""Questions asked of a small random model: what did not fit is said with the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.codecs import TopP
from tandem.config.schema import Config
from tandem.corpora import HOUSEHOLD
from tandem.engine.engine import Engine
from tandem.engine.template import PlainTemplate
from tandem.retrieval.retriever import open_retriever
from tandem.topology import PARTIES, Party
from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.methods import select_methods
from tandem_lab.quality.qa import evaluate_questions
from tandem_lab.quality.questions import read_household, with_documents
from tandem_lab.quality.setup import Parties
from tests.unit.retrieval.conftest import WordEmbedder


class Asked:
    """An engine that notes the documents of each session, and how many of them are to be kept."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.opened: list[tuple[str, list[str], int | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def open(self, session: str, query: str, documents: Sequence[str], *rest: Any, **options: Any) -> Any:
        self.opened.append((session, list(documents), options.get("num_stored")))
        return self._engine.open(session, query, documents, *rest, **options)


@pytest.fixture
def household(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, save_model: Callable[..., Path]) -> Parties:
    """The notes and pages before a random model: what it is asked can be seen, what it says is noise."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    template = PlainTemplate(query_text="{query}")  # it stands in its row as it is
    engine: Any = Asked(Engine.load(str(save_model("llama")), template=template, num_threads=1))
    embedder = WordEmbedder()
    config = with_documents(Config.load(None, []), "household")
    retrievers = {party: open_retriever(party, config, embedder) for party in PARTIES}
    return Parties(dict.fromkeys(PARTIES, engine), retrievers, TopP(0.8))


@pytest.mark.usefixtures("household")
def test_documents_that_are_given_are_cut_as_the_settings_say() -> None:
    config = with_documents(Config.load(None, ["retrieval.chunk_chars=100"]), "household")
    num_chunks = open_retriever("device", config, WordEmbedder()).num_documents or 0
    assert num_chunks > len([*(HOUSEHOLD / "device").rglob("*.md")])


def test_plain_rag_reads_the_passages_of_both_parties_in_one_prompt(household: Parties) -> None:
    question = next(each for each in read_household("tune") if each.needs == "both")
    methods = select_methods("none,rag,rag-each,rag-right,static,evidence,drcg")
    config = Config.load(None, ["sampling.max_new_tokens=2"])
    result = evaluate_questions(
        household, [question], methods, [Counts(2, 2), Counts(1, 1)], config, num_passages=4
    )
    engine: Any = household.engines[Party.DEVICE]
    alone = [asked for session, *asked in engine.opened if session == "alone"]
    prompts = [documents for documents, _ in alone]
    assert {num_stored for _, num_stored in alone} == {0}, "documents that are joined are not kept"
    hits = {party: household.retrievers[party].search(question.text, 4) for party in PARTIES}
    ranked = sorted((hit for each in hits.values() for hit in each), key=lambda hit: -hit.score)
    best = [hits[party][0] for party in PARTIES]
    texts = {source: (HOUSEHOLD / source).read_text("utf-8").strip() for source in question.sources}
    assert prompts[:3] == [
        [],
        ["\n\n".join(hit.document.page_content for hit in ranked[:4])],
        ["\n\n".join(hit.document.page_content for hit in sorted(best, key=lambda hit: -hit.score))],
    ]
    assert len(prompts) == 4 + 2, (
        "once each whatever the numbers of documents, but for DRCG, which joins so many"
    )
    assert sorted(prompts[3][0].split("\n\n# ")) == sorted(
        text if prompts[3][0].startswith(text) else text.removeprefix("# ") for text in texts.values()
    )
    rows = {(row.method, row.counts.device): row for row in result.rows}
    assert rows["rag", 1].seconds == rows["rag", 2].seconds
    for row in result.rows:
        assert row.by_needs["both"].count == row.by_language[question.language].count == 1
        assert row.num_tokens == 2
        assert row.seconds > 0
    assert result.notes, "the random model's context is short, and passages were cut"
    assert (
        result.predictions[0].items()
        >= {"id": question.id, "needs": "both", "right": False, "tokens": 2}.items()
    )
    assert result.what["rag_passages"] == 4
    assert len(result.comparisons) == 2 * 6


def test_rules_of_one_token_read_a_row_per_document_and_one_without(household: Parties) -> None:
    question = next(each for each in read_household("tune") if each.needs == "both")
    config = Config.load(None, ["sampling.max_new_tokens=2"])
    methods = select_methods("pced,nbce,delta")
    result = evaluate_questions(household, [question], methods, [Counts(2, 1)], config)
    engine: Any = household.engines[Party.DEVICE]
    opened = [(session, documents) for session, documents, _ in engine.opened if session != "read"]
    hits = [
        (each, household.retrievers[each].search(question.text, 2 - (each == "cloud"))) for each in PARTIES
    ]
    wanted = [(f"rule/{party}", [*(hit.document.page_content for hit in found), ""]) for party, found in hits]
    assert opened == wanted * 3
    rows = [(row.method, row.num_tokens, row.num_bytes) for row in result.rows]
    assert rows == [("pced", 2, 0), ("nbce", 2, 0), ("delta", 2, 0)]
    bare = evaluate_questions(household, [question], methods, [Counts(0, 0)], config)
    assert len({one["given"] for one in bare.predictions}) == 1, "without documents a model answers alone"


def test_notes_alone_are_asked_without_a_cloud(household: Parties) -> None:
    """No method reads its pages or lets its bare vote count; a source that names no party is the device's."""
    question = next(each for each in read_household("tune") if each.needs == "device")
    question = replace(question, sources=tuple(each.removeprefix("device/") for each in question.sources))
    config = Config.load(None, ["sampling.max_new_tokens=2"])
    methods = select_methods("rag,rag-each,rag-right,static,evidence")
    evaluate_questions(household, [question], methods, [Counts(2, 0)], config)
    engine: Any = household.engines[Party.DEVICE]
    texts = {
        hit.document.page_content for hit in household.retrievers[Party.DEVICE].search(question.text, 100)
    }
    for session, documents, _ in engine.opened:
        assert documents, f"{session}: only the device answers"
        assert all(part in "\n\n".join(texts) for each in documents for part in each.split("\n\n"))
