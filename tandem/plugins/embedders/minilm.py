"""all-MiniLM-L6-v2, the embedder of the extra `offline`, in numpy: a process that embeds needs no PyTorch.

Texts are computed one by one, so that the bits of a text's vector depend on neither its neighbours nor the threads.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tokenizers import Tokenizer

Array = NDArray[np.float32]

_ROWS = 16
"""Tokens whose feed-forward values stay in a processor's cache while an activation is computed."""
_MAX_SQUARE = 31.36
_GELU = (
    7.978853e-01,
    3.6332141e-02,
    -3.2150566e-05,
    -5.5210292e-05,
    3.8605499e-06,
    -1.0757774e-07,
    -7.6727990e-10,
    1.1572926e-10,
    -1.9180297e-12,
)
"""Coefficients c of the fit atanh(erf(x / sqrt 2)) = x (c0 + c1 x^2 + c2 x^4 + ...) for x^2 up to _MAX_SQUARE, where
erf is 1 in single precision; it leaves an error of 5e-8 in erf."""


class MiniLM:
    """The pipeline of a folder as sentence-transformers saves it: BERT's encoder, mean of the tokens, unit length."""

    num_special_tokens = 2
    prompts = ("", "")
    stages = (("Transformer", ""), ("Pooling", "mean"), ("Normalize", ""))

    def __init__(self, folder: Path, num_threads: int | None = None) -> None:
        """num_threads: of numpy's BLAS none but the caller's from now on, in this whole process, and so many texts at a
        time; None leaves them. Raises whatever json, numpy and tokenizers raise for damaged files.
        """
        config = json.loads((folder / "config.json").read_text("utf-8"))
        settings = json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))
        self.dimension: int = config["hidden_size"]
        self.max_tokens: int | None = settings["max_seq_length"]
        self._num_layers: int = config["num_hidden_layers"]
        self._num_heads: int = config["num_attention_heads"]
        self._epsilon = np.float32(config["layer_norm_eps"])
        self._weights, self._file = _map_weights(folder / "model.safetensors")
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._begin, self._end = (self.vocabulary()[name] for name in ("[CLS]", "[SEP]"))
        self._pool: ThreadPoolExecutor | None = None
        if num_threads is not None:
            threadpool_limits(1, "blas")
            self._pool = ThreadPoolExecutor(num_threads, "minilm") if num_threads > 1 else None

    def vocabulary(self) -> dict[str, int]:
        """Token -> id."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    def count_tokens(self, text: str) -> int:
        """Without special tokens."""
        return len(self._ids(text))

    def weights(self) -> Iterator[Array]:
        """In the order of PyTorch's modules."""
        names = [f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")]
        modules = ["embeddings.LayerNorm"]
        for layer in range(self._num_layers):
            attention = [
                *(f"self.{name}" for name in ("query", "key", "value")),
                "output.dense",
                "output.LayerNorm",
            ]
            parts = [*(f"attention.{name}" for name in attention), "intermediate.dense", "output.dense"]
            modules += [f"encoder.layer.{layer}.{name}" for name in (*parts, "output.LayerNorm")]
        for module in (*modules, "pooler.dense"):
            names += [f"{module}.weight", f"{module}.bias"]
        yield from (self._weights[name] for name in names)
        self._file.madvise(mmap.MADV_DONTNEED)  # most of them name tokens that no text will have

    def encode(self, texts: Sequence[str], batch_size: int, *, is_query: bool) -> Array:
        """Unit vectors [len(texts), dimension]. batch_size is of no use here."""
        embed = partial(self._embed, is_query=is_query)
        return np.stack(list((map if self._pool is None else self._pool.map)(embed, texts)))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _embed(self, text: str, *, is_query: bool) -> Array:
        ids = self._ids(text)
        if (
            self.max_tokens is not None
            and (excess := len(ids) + self.num_special_tokens - self.max_tokens) > 0
        ):
            ids = ids[excess:] if is_query else ids[:-excess]
        hidden = self._encode([self._begin, *ids, self._end])
        mean: Array = hidden.mean(axis=0)  # [dimension]
        return mean / max(np.linalg.norm(mean), np.float32(1e-12))

    def _encode(self, ids: list[int]) -> Array:
        """The hidden states [tokens, dimension] after the last layer."""
        words, places, kinds = (
            self._weights[f"embeddings.{name}_embeddings.weight"]
            for name in ("word", "position", "token_type")
        )
        hidden = self._normalise(words[ids] + kinds[0] + places[: len(ids)], "embeddings")
        for layer in range(self._num_layers):
            name = f"encoder.layer.{layer}"
            hidden = self._normalise(
                hidden + self._attend(hidden, f"{name}.attention"), f"{name}.attention.output"
            )
            inner = gelu(self._apply(hidden, f"{name}.intermediate.dense"))  # [tokens, 4 dimension]
            hidden = self._normalise(hidden + self._apply(inner, f"{name}.output.dense"), f"{name}.output")
        return hidden

    def _attend(self, hidden: Array, name: str) -> Array:
        tokens, heads = len(hidden), self._num_heads
        query, key, value = (
            self._apply(hidden, f"{name}.self.{part}").reshape(tokens, heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )  # [heads, tokens, dimension / heads] each
        weights: Array = query @ key.swapaxes(1, 2)  # [heads, tokens, tokens]
        weights -= weights.max(axis=-1, keepdims=True)
        weights *= np.float32(query.shape[-1] ** -0.5)
        np.exp(weights, out=weights)
        context: Array = weights @ value
        context /= weights.sum(axis=-1, keepdims=True)
        return self._apply(context.swapaxes(0, 1).reshape(tokens, -1), f"{name}.output.dense")

    def _apply(self, values: Array, name: str) -> Array:
        """A linear layer: [tokens, in] -> [tokens, out]."""
        out: Array = values @ self._weights[f"{name}.weight"].T
        out += self._weights[f"{name}.bias"]
        return out

    def _normalise(self, values: Array, name: str) -> Array:
        """Mean 0 and variance 1 of each token [tokens, dimension], then the layer's own scale and shift."""
        values -= values.mean(axis=-1, keepdims=True)
        variance = np.square(values).mean(axis=-1, keepdims=True)
        values *= 1 / np.sqrt(variance + self._epsilon)
        values *= self._weights[f"{name}.LayerNorm.weight"]
        values += self._weights[f"{name}.LayerNorm.bias"]
        return values


def _map_weights(file: Path) -> tuple[dict[str, Array], mmap.mmap]:
    """The weights of a safetensors file by name, in the memory that all processes share which map it, and that."""
    with file.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:start])
    weights = {
        name: np.frombuffer(mapped, np.float32, (end - begin) // 4, start + begin).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__" and entry["dtype"] == "F32"
        for begin, end in [entry["data_offsets"]]
    }
    return weights, mapped


def gelu(values: Array) -> Array:
    """x (1 + erf(x / sqrt 2)) / 2 of each x [rows, columns], in its place."""
    for start in range(0, len(values), _ROWS):
        block = values[start : start + _ROWS]
        square = np.minimum(block * block, np.float32(_MAX_SQUARE))
        fitted = np.full_like(block, _GELU[-1])
        for coefficient in _GELU[-2::-1]:
            fitted *= square
            fitted += np.float32(coefficient)
        fitted *= block
        np.tanh(fitted, out=fitted)
        fitted += np.float32(1)
        block *= fitted
        block *= np.float32(0.5)
    return values
