"""How relevant a document is to a text, read together: a cross-encoder as the scoring model R(d, x) of DRAGON 4.1.

The embedder compares two vectors that were made independently, which costs one short pass whatever the number of
documents; a cross-encoder reads text and document together, in one pass each. `sentence_transformers` is imported by
`CrossEncoderScorer.load` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from tandem.errors import RetrievalError
from tandem.retrieval.embedding import model_digest, reason_of, without_progress_bar

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

EMBEDDER = "embedder"
"""The name in the settings that stands for no scoring model of its own: the embedder's cosine."""


class Scorer(Protocol):
    """What a retriever asks of a scoring model."""

    @property
    def name(self) -> str:
        """How a person calls it."""

    @property
    def fingerprint(self) -> str:
        """Equal for two scoring models only if they give the same scores (up to rounding)."""

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        """R(d, text) of each document [len(documents)]; higher is more relevant, the unit is the model's own."""


class CrossEncoderScorer:
    """A sentence-transformers cross-encoder with one output. Calls from several threads are served one at a time."""

    def __init__(self, name: str, model: CrossEncoder) -> None:
        """Wraps a loaded model; `load` is the usual way."""
        import torch

        self.name = name
        self.fingerprint = _fingerprint(model)
        self._model: Any = model
        self._identity = torch.nn.Identity()
        self._lock = Lock()

    @classmethod
    def load(cls, name: str, *, device: str = "cpu", num_threads: int | None = None) -> CrossEncoderScorer:
        """Loads a model by hub name or local folder. Raises RetrievalError.

        num_threads: torch's threads for this whole process; None leaves them.
        """
        folder = Path(name).expanduser()
        if name.startswith(("/", ".", "~")) and not folder.is_dir():
            raise RetrievalError(
                f"A scoring model must be a folder or a hub name, but {name} does not exist; check the path."
            )
        where = str(folder) if folder.is_dir() else name
        import torch
        from sentence_transformers import CrossEncoder

        if num_threads is not None:
            torch.set_num_threads(num_threads)
        try:
            with without_progress_bar():
                model = CrossEncoder(where, device=device, local_files_only=folder.is_dir())
        except Exception as error:  # hub, network, file and model errors have no common type
            raise RetrievalError(
                f"The scoring model {name} could not be loaded ({reason_of(error)}); give the folder or hub name "
                'of a cross-encoder, or set weights.scorer to "embedder".'
            ) from error
        if model.num_labels != 1:
            raise RetrievalError(
                f"A scoring model has one output, but {name} has {model.num_labels}; "
                "use a re-ranker such as cross-encoder/ms-marco-MiniLM-L6-v2."
            )
        return cls(name, model.eval())

    def scores(self, text: str, documents: Sequence[str]) -> list[float]:
        """The model's logit for each pair of text and document, before any sigmoid.

        One pair a pass: a document's score is the same bits whichever others are asked with it. Of a text that takes
        more than half of the model's length the end counts (a growing answer must keep counting), of a document the
        beginning.
        """
        if not documents:
            return []
        with self._lock:
            pairs = [(self._end_of(text), document) for document in documents]
            values = self._model.predict(
                pairs, batch_size=1, activation_fn=self._identity, show_progress_bar=False
            )
        return [float(value) for value in values]

    def _end_of(self, text: str) -> str:
        """The last words of a text, in at most half of the tokens that the model reads."""
        length = self._model.max_seq_length
        if not length:
            return text
        encoded = self._model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )
        offsets = encoded["offset_mapping"]
        excess = len(offsets) - max(1, length // 2 - 2)  # two of the three special tokens are on this side
        return text if excess <= 0 else text[offsets[excess][0] :]


def load_scorer(name: str, *, num_threads: int | None = None) -> Scorer | None:
    """The scoring model that `weights.scorer` names; None for "embedder". Raises RetrievalError."""
    return None if name == EMBEDDER else CrossEncoderScorer.load(name, num_threads=num_threads)


def _fingerprint(model: Any) -> str:
    """Hash of weights, vocabulary and length limit."""
    digest = blake2b(digest_size=16)
    model_digest(digest, model, [sorted(model.tokenizer.get_vocab().items()), model.max_seq_length])
    return digest.hexdigest()
