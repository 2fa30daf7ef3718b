"""GGUF files that hold a tokenizer, and no model to speak of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny_gguf import MERGES, write_out

NORMAL, CONTROL, USER, BYTE = 1, 3, 4, 6


def write(
    path: Path, kind: str, tokens: Mapping[str, int], *, architecture: str = "llama", **more: Any
) -> Path:
    """A file with a tokenizer, and one small tensor. more: values of the tokenizer by their names."""
    from gguf import GGUFWriter

    writer: Any = GGUFWriter(path, architecture)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_head_count_kv):
        add(1)
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
        add(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(kind)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(tokens.values()))
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    if kind == "gpt2":
        writer.add_token_merges(MERGES)
    for name, value in more.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    return write_out(writer, path)
