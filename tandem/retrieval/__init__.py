"""One party's documents: read, cut into chunks, embedded, indexed, searched and weighed.

Importing the package loads neither torch nor FAISS; they are imported where they are used.
"""

from tandem.retrieval.build import BuildReport, build_index, update_index
from tandem.retrieval.documents import Document, split
from tandem.retrieval.embedding import TextEmbedder, load_embedder
from tandem.retrieval.index import Index
from tandem.retrieval.loaders import load_path
from tandem.retrieval.retriever import Hit, Retriever
from tandem.retrieval.store import Manifest

__all__ = [
    "BuildReport",
    "Document",
    "Hit",
    "Index",
    "Manifest",
    "Retriever",
    "TextEmbedder",
    "build_index",
    "load_embedder",
    "load_path",
    "split",
    "update_index",
]
