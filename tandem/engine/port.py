"""The port through which a party uses whatever computes its language model: rows of tokens in, logits out.

Above it stand prompts, templates, tokenizers and drafting, once for every engine (`tandem.engine.engine`). Below it a
`Runner` (`tandem.engine.session`) keeps what it has computed, as long as the bits stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from tandem.engine.tokenizer import TokenizerInfo

DTYPES = ("bfloat16", "float16", "float32")
"""Number formats in which PyTorch may compute a model."""
Logits = Any
"""Float32 numbers in an array of numpy or a tensor of PyTorch, as the engine computes them."""
IsStale = Callable[[], bool]
"""Asked now and then during a pass; once it says True, the pass raises Preempted."""


class Preempted(Exception):
    """A forward pass was abandoned because its result is no longer wanted. The cache is consistent again."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a session, as tokens: what depends on a document alone, and what follows it."""

    document: tuple[int, ...]  # empty: a bare row
    rest: tuple[int, ...]  # at least one token
    is_stored: bool = True  # whether the document's cache is worth keeping: whole, and likely to come again

    @property
    def tokens(self) -> tuple[int, ...]:
        """All of them."""
        return self.document + self.rest


class ModelFile(Protocol):
    """What the beginning of a model's file says of it."""

    num_parameters: int
    num_bytes: int  # of the whole file, at least

    @property
    def context_length(self) -> int | None:
        """Positions that a row may have, where the file says so."""

    def memory_bytes(self, dtype: str) -> int:
        """The memory of its weights in a precision, such as "float32"."""


class ModelFormat(Protocol):
    """One format of files that hold a whole model, tokenizer included."""

    suffix: str  # of names, in small letters

    def find(self, model: str) -> Path | None:
        """The file of this format that a path stands for: itself, or the only one in a folder; None: it is of another
        form. Raises GenerationError where a folder holds several."""

    def list_models(self, folder: str = "") -> Mapping[str, ModelFile]:
        """Chat models of this format in a folder, or ("") where programs keep theirs, by their names in settings."""

    def check(self, file: Path) -> ModelFile:
        """What a file says. Raises GenerationError, one sentence with the remedy, for one that is damaged."""

    def engine(self, device: str) -> str:
        """The name of the engine that computes it on a device by default."""

    def fingerprint(self, file: Path) -> str:
        """Equal for two files only if their contents are."""

    def load_tokenizer(self, file: Path) -> tuple[Tokenizer, TokenizerInfo]:
        """The tokenizer of a file, and what the file says of it. Raises GenerationError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a party wants its model computed; an engine heeds what concerns it."""

    device: str = "cpu"  # of PyTorch: "cpu", "cuda" or "cuda:<n>"
    dtype: str = "float32"  # of PyTorch: "float32", "bfloat16" or "float16"
    num_threads: int | None = None
    """Threads of the processor; None: as the library has it. For PyTorch in this whole process."""
    gpu_layers: int = 0  # layers that llama.cpp lets a GPU compute; -1: all
    cache_type: str = "f16"  # llama.cpp's number format of keys and values
    library: str = ""  # a build of llama.cpp, as a shared library, to use instead of the package's
    is_batched: bool = True
    """False computes one token of one session at a time, as models do that fail the self-check."""
    shares_weights: bool = False
    """With other engines of this process that do, where the model and these options are equal; none of them may change
    a weight."""
