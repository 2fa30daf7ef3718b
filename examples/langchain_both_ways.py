"""LangChain both ways: its vector stores inside Tandem, and Tandem's indexes inside LangChain.

Run it: python examples/langchain_both_ways.py
Neither direction needs a cluster to try.
"""

import tempfile
from functools import cache
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from tandem.plugins.clients.stores import StoreRetriever, TandemEmbeddings, TandemRetriever
from tandem.retrieval import Retriever, TextEmbedder, build_index, load_embedder

DOCUMENTS = [
    Document(page_content="The code of the garden shed is 2085.", metadata={"source": "shed.txt"}),
    Document(page_content="The boat lies at the small pier.", metadata={"source": "boat.txt"}),
]


@cache
def embedder() -> TextEmbedder:
    """One model for both directions."""
    return load_embedder("auto")


# --8<-- [start:into-langchain]
def tandem_in_langchain(folder: Path) -> BaseRetriever:
    """An index of Tandem's, built from LangChain documents, as a retriever for any chain."""
    build_index(DOCUMENTS, folder, embedder())
    return TandemRetriever(source=Retriever.open(folder, embedder()), k=1)


# --8<-- [end:into-langchain]


# --8<-- [start:into-tandem]
def notes_store() -> VectorStore:
    """A LangChain vector store. In the settings: device.index = "langchain:langchain_both_ways:notes_store"."""
    store = InMemoryVectorStore(TandemEmbeddings(embedder()))  # or any other LangChain embeddings
    store.add_documents(DOCUMENTS)
    return store


def langchain_in_tandem() -> StoreRetriever:
    """What Tandem makes of that store: the store finds, Tandem's embedder weighs."""
    return StoreRetriever(notes_store(), embedder(), id_key=b"a secret of this party")


# --8<-- [end:into-tandem]


def main() -> None:
    """The same question in both directions."""
    question = "What is the code of the shed?"
    with tempfile.TemporaryDirectory() as folder:
        for document in tandem_in_langchain(Path(folder)).invoke(question):
            print(f"LangChain asks Tandem: {document.page_content}")
    for hit in langchain_in_tandem().search(question, 1):
        print(f"Tandem asks LangChain: {hit.document.page_content} (score {hit.score:.2f})")


if __name__ == "__main__":
    main()
