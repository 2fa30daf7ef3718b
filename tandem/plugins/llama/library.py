"""llama.cpp as a library: finding it, loading a file, what it says of itself, and what went wrong in one sentence."""

from __future__ import annotations

import ctypes
import logging
import platform
import threading
from collections import deque
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

import psutil
from tokenizers import Tokenizer

from tandem.errors import GenerationError, first_line, install_line
from tandem.plugins.llama import abi

PACKAGE = "xllamacpp"
"""Whose shared object is llama.cpp, with nothing of it hidden. It is never imported."""
ENGINE = f"llama.cpp {abi.VERSION}"
"""The engine and its version, as people read it."""
SAMPLE = "The 12 goats' names:\n\n  Übermut, naïve (3.14 + 2); don't 你好 👍\tabc\n"
_log = logging.getLogger("tandem")
_ERROR_LEVEL = 4  # of ggml's log
_NEEDED_FLAGS = {"avx2", "bmi2", "f16c", "fma"}  # of the processor, for the package's build on x86-64
_messages: deque[str] = deque(maxlen=8)  # the last errors that the library logged
_log_callbacks: list[object] = []  # one that is collected crashes the process


@cache
def library(named: str) -> Any:
    """llama.cpp's functions, initialised, with a silent log. named: a shared library; empty: the package's.

    Raises GenerationError, one sentence with the remedy.
    """
    file = Path(named).expanduser() if named else _find_in_package()
    other = (
        f"install llama.cpp {abi.VERSION}, or leave engine_library empty and run `{install_line('llama')}`"
        if named
        else f'run `{install_line("llama")}`, name another build with engine_library, or set engine to "torch"'
    )
    try:
        lib = ctypes.CDLL(str(file))
        abi.declare(lib)
        difference = abi.check_layout(lib)
    except (OSError, AttributeError) as error:  # not there, for another system, or without a function
        raise GenerationError(
            f"llama.cpp cannot be loaded from {str(file)!r} ({first_line(error):.200}); {other}."
        ) from None
    if difference:
        raise GenerationError(
            f"{str(file)!r} is not the llama.cpp {abi.VERSION} that Tandem knows ({difference}); {other}."
        )
    _log_callbacks.append(abi.LogCallback(_note))
    lib.llama_log_set(_log_callbacks[-1], None)
    lib.llama_backend_init()
    return lib


def _find_in_package() -> Path:
    """The shared object of the package. Raises GenerationError where this machine cannot use it."""
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    library = next((file for folder in folders or () for file in Path(folder).glob(f"{PACKAGE}*.so")), None)
    if library is None:
        raise GenerationError(
            f"llama.cpp is not installed (the package {PACKAGE}); run `{install_line('llama')}`, name a build of your "
            'own with engine_library, or set engine to "torch".'
        )
    if platform.machine() in ("x86_64", "AMD64") and (lacking := _NEEDED_FLAGS - _processor_flags()):
        raise GenerationError(
            f"This processor lacks {', '.join(sorted(lacking))}, which the llama.cpp of the package {PACKAGE} needs; "
            'name another build with engine_library, or set engine to "torch".'
        )
    return library


def _processor_flags() -> set[str]:
    """The features of this processor, from Linux; everything that is needed where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return _NEEDED_FLAGS
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def _note(level: int, text: bytes, _data: object) -> None:
    if level == _ERROR_LEVEL:
        _messages.append(text.decode(errors="replace").strip())


def describe_failure() -> str:
    """The first failure that was logged since they were last forgotten, as part of a sentence."""
    first = next((text.splitlines()[0] for text in _messages if text), "it gave no reason").rstrip(".: ")
    return first.rpartition(": ")[2] if len(first) > 120 else first


def forget_failures() -> None:
    """Forget what was logged: what comes next has nothing to do with it."""
    _messages.clear()


class Model:
    """The weights of a file, which all contexts of this process share that use it."""

    def __init__(self, file: Path, gpu_layers: int, adapter: Path | None, named: str = "") -> None:
        """gpu_layers: that a GPU computes; -1: all. adapter: a LoRA in a GGUF file. named: a library, as `library` has
        it. Raises GenerationError.
        """
        self.lib = lib = library(named)
        self.build = describe_build(named)
        forget_failures()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        if gpu_layers and not lib.llama_supports_gpu_offload():
            raise GenerationError(
                f"gpu_layers is {gpu_layers}, but this llama.cpp was built without a GPU; set it to 0, or name a build "
                "for your GPU with engine_library."
            )
        size, memory = file.stat().st_size, psutil.virtual_memory().total
        if size > memory:  # each token would read all of it from the disk
            raise GenerationError(
                f"{str(file)!r} has {size / 1e9:.1f} GB, but this machine has {memory / 1e9:.1f} GB of memory; use a "
                "smaller model, or one with fewer bits per weight."
            )
        self.pointer = lib.llama_model_load_from_file(str(file).encode(), params)
        if not self.pointer:
            raise GenerationError(
                f"llama.cpp cannot load {str(file)!r}: {describe_failure()}; use another file, or set engine to "
                '"torch".'
            )
        finalize(self, lib.llama_model_free, self.pointer)
        self.has_window: bool = lib.llama_model_n_swa(self.pointer) > 0
        self.is_recurrent: bool = lib.llama_model_is_recurrent(self.pointer) or lib.llama_model_is_hybrid(
            self.pointer
        )
        if reason := self._why_not():
            raise GenerationError(f"{str(file)!r} {reason}; use another model.")
        self.adapter = self._load_adapter(adapter) if adapter else None
        self._vocab = lib.llama_model_get_vocab(self.pointer)
        self.vocab_size: int = lib.llama_vocab_n_tokens(self._vocab)
        self.context_length = self._find_context_length()
        self.num_bytes: int = lib.llama_model_size(self.pointer)
        self.num_parameters: int = lib.llama_model_n_params(self.pointer)

    def _why_not(self) -> str | None:
        """Why its rows cannot be computed, as the end of a sentence; None: they can."""
        lib, family = self.lib, self._read("general.architecture")
        if lib.llama_model_has_encoder(self.pointer) or not lib.llama_model_has_decoder(self.pointer):
            return "has an encoder, and is no causal language model"
        if lib.llama_model_is_diffusion(self.pointer):
            return "writes by diffusion, and not token by token"
        if self._read(f"{family}.attention.causal") == "false":
            return "reads texts in both directions, and does not continue them"
        if self._read(f"{family}.attention.indexer.head_count"):
            return f"has an index of tokens beside its cache (family {family}), which cannot be stored yet"
        if self.is_recurrent and self.has_window:
            return f"has both a recurrent state and a sliding window (family {family}), which cannot be stored yet"
        return None

    def _find_context_length(self) -> int:
        """Tokens of a row. Models with LongRoPE have other frequencies in a longer slot, so they are used up to their
        original length only.
        """
        length: int = self.lib.llama_model_n_ctx_train(self.pointer)
        scaling = f"{self._read('general.architecture')}.rope.scaling"
        original = self._read(f"{scaling}.original_context_length")
        if not original or self._read(f"{scaling}.type") == "yarn":
            return length
        return min(length, int(original))

    def _read(self, key: str) -> str:
        """A value of the file; "" if it has none."""
        text = ctypes.create_string_buffer(64)
        length = self.lib.llama_model_meta_val_str(self.pointer, key.encode(), text, len(text))
        return text.value.decode(errors="replace") if length >= 0 else ""

    @property
    def quantisation(self) -> str:
        """The kind of quantisation, as llama.cpp names it, such as Q4_1."""
        text = ctypes.create_string_buffer(128)
        self.lib.llama_model_desc(self.pointer, text, len(text))
        return text.value.decode().split(maxsplit=2)[-1].removeprefix("(guessed) ")

    def check_tokenizer(self, tokenizer: Tokenizer, name: str) -> None:
        """Compare the tokenizer that was read from the file with llama.cpp's own, on a text. GenerationError if an id
        means another token; a warning if texts are only split otherwise."""
        text = SAMPLE.encode()
        ids = (ctypes.c_int32 * len(text))()
        count = self.lib.llama_tokenize(self._vocab, text, len(text), ids, len(ids), False, False)
        theirs, ours = list(ids[:count]), tokenizer.encode(SAMPLE, add_special_tokens=False).ids
        if theirs == ours:
            return
        read, expected = (tokenizer.decode(each).strip() for each in (theirs, ours))
        if read != expected:
            raise GenerationError(
                f"The tokenizer of {name!r} is read in two ways: what is {expected[:40]!r}... to one is {read[:40]!r}"
                '... to llama.cpp; use another file, or set engine to "torch".'
            )
        _log.warning("%s: llama.cpp splits texts otherwise, and answers may be worse.", name)

    def _load_adapter(self, file: Path) -> Any:
        adapter = self.lib.llama_adapter_lora_init(self.pointer, str(file).encode())
        if not adapter:
            raise GenerationError(
                f"The adapter {str(file)!r} does not fit its base model: {describe_failure()}; use the model that it "
                "was trained on."
            )
        return adapter


_loaded: WeakValueDictionary[object, Model] = WeakValueDictionary()
_loading = threading.Lock()  # two parties may load one file at the same time


def load_model(file: Path, gpu_layers: int = 0, adapter: Path | None = None, named: str = "") -> Model:
    """The model of a file; the one that is loaded in this process already where it is the same."""
    status = file.stat()
    key = (str(file.resolve()), status.st_size, status.st_mtime_ns, gpu_layers, adapter, named)
    with _loading:
        model = _loaded.get(key)
        if model is None:
            model = _loaded[key] = Model(file, gpu_layers, adapter, named)
    return model


def describe_build(named: str) -> str:
    """Version and processor features of a library: part of what the bits of a result depend on."""
    built = library(named).llama_print_system_info().decode()
    if not named:
        return f"{ENGINE} {PACKAGE} {version(PACKAGE)} {built}"
    status = Path(named).expanduser().stat()
    return f"{ENGINE} {named} {status.st_size} {status.st_mtime_ns} {built}"
