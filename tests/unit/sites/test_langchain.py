"""A LangChain vector store in place of the device's index, in a process that `async with` leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandem import Config, Tandem
from tandem.events import Answer
from tandem.topology import Party

MODULE = """
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore


class Lengths(Embeddings):
    def embed_documents(self, texts):
        return [[float(len(text)), 1.0] for text in texts]

    def embed_query(self, text):
        return [float(len(text)), 1.0]


def store():
    store = InMemoryVectorStore(Lengths())
    store.add_documents([
        Document(id="diary", page_content="Mira enjoys puzzle games.", metadata={"source": "shelf/mira.txt"}),
        Document(page_content="Tom likes chess.", metadata={"source": "shelf/tom.txt"}),
    ])
    return store
"""


def test_a_vector_store_answers_for_its_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shelf.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config.load(None, ["device.index=langchain:shelf:store", "link.on_peer_loss=wait"])

    async def ask() -> Answer:
        async with Tandem.launch(config, runtime="inline") as rag:
            return await rag.aquery("Which game should Mira try?", seed=7)

    answer = asyncio.run(ask())
    assert answer.text
    device = {source.title: source for source in answer.sources if source.party is Party.DEVICE}
    assert set(device) == {"shelf/mira.txt", "shelf/tom.txt"}
    assert all(len(source.id) == 20 for source in device.values())
