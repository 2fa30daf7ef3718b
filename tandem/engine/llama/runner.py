"""Computes the rows of sessions with llama.cpp."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tandem.engine import gguf
from tandem.engine.kv import CacheForm
from tandem.engine.llama.library import describe_build, describe_version, load_model
from tandem.engine.llama.rows import ARITHMETIC, CACHE_TYPES, LlamaModel, Settings, StateForm, find_fault
from tandem.engine.places import adapter_file, base_of
from tandem.engine.port import LoadOptions
from tandem.engine.session import SessionRunner
from tandem.errors import GenerationError
from tandem.system.paths import cache_folder, write_whole


class LlamaRunner(SessionRunner):
    """A `Runner` of a GGUF file."""

    form: CacheForm = StateForm()

    def __init__(
        self,
        file: Path,
        *,
        num_threads: int | None = None,
        gpu_layers: int = 0,
        cache_type: str = "f16",
        adapter: Path | None = None,
        is_batched: bool = True,
    ) -> None:
        """num_threads: default: those that this process may use. gpu_layers: layers that a GPU computes; -1: all.
        cache_type: of keys and values. adapter: a LoRA in a GGUF file. is_batched: False computes one token of one row
        at a time. Raises GenerationError.
        """
        super().__init__()
        self.file, self.adapter = file, adapter
        self.model = load_model(file, gpu_layers, adapter)
        self.vocab_size = self.model.vocab_size
        self._settings = Settings(num_threads or len(os.sched_getaffinity(0)), cache_type)
        self._gpu_layers = gpu_layers
        self.row_model = batch = LlamaModel(self.model, self._settings)
        batch.is_single = not is_batched
        self.fault = self._try_batching(batch) if is_batched else "batching is off"

    def _try_batching(self, batch: LlamaModel) -> str | None:
        """What `find_fault` says, or said of the same computation on this machine before."""
        known = cache_folder() / "llama" / f"{self.computing_fingerprint}.json"
        try:
            found = json.loads(known.read_text("utf-8"))
            batch.multiple, batch.is_single = found["multiple"], found["is_single"]
            fault: str | None = found["fault"]
        except (OSError, ValueError, LookupError, TypeError):
            fault = find_fault(batch)
            about = {"multiple": batch.multiple, "is_single": batch.is_single, "fault": fault}
            with suppress(OSError):  # then it is tried again the next time
                known.parent.mkdir(parents=True, exist_ok=True)
                write_whole(known, json.dumps(about).encode())
        return fault

    @property
    def configurations(self) -> tuple[Any, Any]:
        """As of every runner."""
        return None, None

    @property
    def context_length(self) -> int | None:
        """As of every runner."""
        return self.model.context_length

    @cached_property
    def weights_fingerprint(self) -> str:
        """As of every runner: that of the file, and of its adapter."""
        files = [self.file, *([self.adapter] if self.adapter else [])]
        return sha256(" ".join(map(gguf.fingerprint, files)).encode()).hexdigest()[:32]

    @property
    def computing_fingerprint(self) -> str:
        """As of every runner: weights, library, kind of processor, threads, kind of cache. What passes are padded to
        follows from these."""
        how = f"{self._settings} {self._gpu_layers} {ARITHMETIC}"
        return sha256(f"{self.weights_fingerprint} {describe_build()} {how}".encode()).hexdigest()[:32]

    def check_tokenizer(self, tokenizer: Tokenizer, name: str) -> None:
        """As of every runner."""
        self.model.check_tokenizer(tokenizer, name)

    def describe(self) -> dict[str, Any]:
        """As of every runner."""
        return {
            "engine": describe_version(),
            "num_parameters": self.model.num_parameters,
            "num_bytes": self.model.num_bytes,
            "dtype": self.model.quantisation,
        }


def load(path: str, options: LoadOptions) -> LlamaRunner:
    """As of every engine: a GGUF file, a folder with one, or that of an adapter of one."""
    file = gguf.find_file(base_of(path))
    if file is None:
        raise GenerationError(
            f'llama.cpp reads GGUF files, and {path!r:.200} is none; name one, or set engine to "torch".'
        )
    if options.cache_type not in CACHE_TYPES:
        raise GenerationError(
            f"Unknown kind of cache {options.cache_type!r}; set cache_type to one of {', '.join(CACHE_TYPES)}."
        )
    gguf.check(file)
    return LlamaRunner(
        file,
        num_threads=options.num_threads,
        gpu_layers=options.gpu_layers,
        cache_type=options.cache_type,
        adapter=adapter_file(path),
        is_batched=options.is_batched,
    )
