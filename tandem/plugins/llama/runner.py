"""Computes the rows of sessions with llama.cpp."""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tandem import plugins
from tandem.engine.kv import CacheForm
from tandem.engine.places import base_of, is_adapter
from tandem.engine.port import LoadOptions, ModelFormat
from tandem.engine.session import Runner
from tandem.errors import GenerationError
from tandem.plugins.llama.library import ENGINE, load_model
from tandem.plugins.llama.probe import probe
from tandem.plugins.llama.rows import ARITHMETIC, CACHE_TYPES, FORM, LlamaModel, Settings
from tandem.system.processes import count_cores

_DEFAULTS = LoadOptions()
GGUF: ModelFormat = plugins.find("model_format", "gguf")


class LlamaRunner(Runner):
    """A `Runner` of a GGUF file."""

    form: CacheForm = FORM

    def __init__(self, file: Path, options: LoadOptions = _DEFAULTS, adapter: Path | None = None) -> None:
        """adapter: a LoRA in a GGUF file. Raises GenerationError."""
        super().__init__()
        self.file, self.adapter = file, adapter
        self.model = load_model(file, options.gpu_layers, adapter, options.library)
        self.vocab_size, self.context_length = self.model.vocab_size, self.model.context_length
        self._settings = Settings(options.num_threads or count_cores(), options.cache_type)
        self._gpu_layers = options.gpu_layers
        self.row_model = LlamaModel(self.model, self._settings)

    @cached_property
    def weights_fingerprint(self) -> str:
        """The fingerprint of the file, and of its adapter."""
        files = [self.file, *([self.adapter] if self.adapter else [])]
        return sha256(" ".join(map(GGUF.fingerprint, files)).encode()).hexdigest()[:32]

    @property
    def computing_fingerprint(self) -> str:
        """A fingerprint of weights, library, kind of processor, threads, kind of cache, shape of passes."""
        how = f"{self._settings} {self._gpu_layers} {ARITHMETIC}"
        return sha256(f"{self.weights_fingerprint} {self.model.build} {how}".encode()).hexdigest()[:32]

    def check_tokenizer(self, tokenizer: Tokenizer, name: str) -> None:
        """Compare the tokenizer with the file's own vocabulary."""
        self.model.check_tokenizer(tokenizer, name)

    def describe(self) -> dict[str, Any]:
        """The library's version and the file's size and quantisation."""
        return {
            "engine": ENGINE,
            "num_parameters": self.model.num_parameters,
            "num_bytes": self.model.num_bytes,
            "dtype": self.model.quantisation,
        }


def load(path: str, options: LoadOptions) -> LlamaRunner:
    """Load a GGUF file, a folder with one, or that of an adapter of one. Raises GenerationError."""
    file = GGUF.find(base_of(path))
    if file is None:
        raise GenerationError(
            f'llama.cpp reads GGUF files, and {path!r:.200} is none; name one, or set engine to "torch".'
        )
    if options.cache_type not in CACHE_TYPES:
        raise GenerationError(
            f"Unknown kind of cache {options.cache_type!r}; set cache_type to one of {', '.join(CACHE_TYPES)}."
        )
    GGUF.check(file)
    adapter = adapter_file(path)
    probe(file, adapter, options.library)
    return LlamaRunner(file, options, adapter)


def adapter_file(model: str) -> Path | None:
    """The GGUF file in the folder `model` of an adapter; None if that is none. GenerationError unless it is one."""
    if not is_adapter(model):
        return None
    files = sorted(Path(model).glob(f"*{GGUF.suffix}"))
    if len(files) != 1:
        raise GenerationError(
            f"The adapter {model!r:.200} of a GGUF file has {len(files)} GGUF files in its folder; put the one there "
            "that llama.cpp's convert_lora_to_gguf.py makes of it."
        )
    return files[0]
