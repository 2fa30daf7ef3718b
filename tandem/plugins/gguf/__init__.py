"""Models in GGUF files: a `ModelFormat`, and the files that Ollama has downloaded."""

from __future__ import annotations

from importlib.util import find_spec

from tandem.corpora import LLAMA_PACKAGE
from tandem.plugins.gguf import header, tokenizer


class Gguf:
    """The format of llama.cpp, Ollama and LM Studio."""

    suffix = header.SUFFIX
    find = staticmethod(header.find_file)
    list_models = staticmethod(header.list_models)
    check = staticmethod(header.check)
    fingerprint = staticmethod(header.fingerprint)
    load_tokenizer = staticmethod(tokenizer.load)
    split_texts = staticmethod(tokenizer.split_texts)

    @staticmethod
    def engine(device: str) -> str:
        """llama.cpp on the processor, unless only PyTorch is installed; else PyTorch."""
        has_llama = find_spec(LLAMA_PACKAGE) is not None or find_spec("torch") is None
        return "llama" if device == "cpu" and has_llama else "torch"
