"""Small models with random weights in GGUF files: a Llama, which PyTorch and llama.cpp read alike, a Gemma 2, and
families with a recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

WIDTH, LAYERS, CONTEXT = 64, 2, 1024
HEADS, KEY_HEADS, INNER = 2, 1, 128
MERGES = ["a b", "Ġ a", "Ċ Ċ", "1 2"]
NORMAL, CONTROL, USER, BYTE = 1, 3, 4, 6
"""Types of tokens."""
VOCABULARY = [
    "<|endoftext|>",
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
]
MATRICES = {
    "token_embd": (len(VOCABULARY), WIDTH),
    "output": (len(VOCABULARY), WIDTH),
    **{
        f"blk.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, shape in {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH // HEADS * KEY_HEADS, WIDTH),
            "attn_v": (WIDTH // HEADS * KEY_HEADS, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }.items()
    },
}
"""Names -> [out, in]."""
NORMS = ("attn_norm", "ffn_norm")
"""Of each layer."""
GEMMA, WINDOW = "gemma2", 40
"""An architecture whose first layer sees so many tokens."""

# ---- families with a recurrent state: shapes of each layer's tensors, as llama.cpp wants them -------------------

Shapes = dict[str, tuple[int, ...]]
CONV, STATE, SSM_HEADS, RANK = 4, 16, 4, 32
MIXED = INNER + 2 * STATE
KEY_WIDTH = WIDTH // HEADS * KEY_HEADS
ATTENTION: Shapes = {
    "attn_q.weight": (WIDTH, WIDTH),
    "attn_k.weight": (KEY_WIDTH, WIDTH),
    "attn_v.weight": (KEY_WIDTH, WIDTH),
    "attn_output.weight": (WIDTH, WIDTH),
}
HEAD_NORMS: Shapes = {"attn_q_norm.weight": (WIDTH // HEADS,), "attn_k_norm.weight": (WIDTH // HEADS,)}
NORM: Shapes = {"attn_norm.weight": (WIDTH,)}
DENSE: Shapes = {"ffn_up.weight": (INNER, WIDTH), "ffn_down.weight": (WIDTH, INNER)}
GATED: Shapes = {"ffn_gate.weight": (INNER, WIDTH), **DENSE}
NORMED: Shapes = {**GATED, "ffn_norm.weight": (WIDTH,)}
MAMBA: Shapes = {
    "ssm_in.weight": (2 * INNER, WIDTH),
    "ssm_conv1d.weight": (INNER, CONV),
    "ssm_conv1d.bias": (INNER,),
    "ssm_x.weight": (SSM_HEADS + 2 * STATE, INNER),
    "ssm_dt.weight": (INNER, SSM_HEADS),
    "ssm_dt.bias": (INNER,),
    "ssm_a": (INNER, STATE),
    "ssm_d": (INNER,),
    "ssm_out.weight": (WIDTH, INNER),
}
JAMBA: Shapes = {
    **MAMBA,
    "ssm_dt_norm.weight": (SSM_HEADS,),
    "ssm_b_norm.weight": (STATE,),
    "ssm_c_norm.weight": (STATE,),
}
MAMBA2: Shapes = {
    "ssm_in.weight": (INNER + MIXED + SSM_HEADS, WIDTH),
    "ssm_conv1d.weight": (MIXED, CONV),
    "ssm_conv1d.bias": (MIXED,),
    "ssm_dt.bias": (SSM_HEADS,),
    "ssm_a": (SSM_HEADS, 1),
    "ssm_d": (SSM_HEADS, 1),
    "ssm_norm.weight": (1, INNER),
    "ssm_out.weight": (WIDTH, INNER),
}
SHORT_CONV: Shapes = {
    "shortconv.conv.weight": (WIDTH, 3),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}
DELTA_NET: Shapes = {
    "attn_qkv.weight": (2 * WIDTH, WIDTH),
    "attn_gate.weight": (WIDTH, WIDTH),
    "ssm_conv1d.weight": (2 * WIDTH, CONV),
    "ssm_dt.bias": (SSM_HEADS,),
    "ssm_a": (SSM_HEADS,),
    "ssm_beta.weight": (SSM_HEADS, WIDTH),
    "ssm_alpha.weight": (SSM_HEADS, WIDTH),
    "ssm_norm.weight": (STATE,),
    "ssm_out.weight": (WIDTH, WIDTH),
}
POST_NORM: Shapes = {"post_attention_norm.weight": (WIDTH,)}
GATED_ATTENTION: Shapes = {**ATTENTION, "attn_q.weight": (2 * WIDTH, WIDTH), **HEAD_NORMS}
FALCON: Shapes = {**NORM, **MAMBA2, **ATTENTION, **GATED, "ffn_norm": (WIDTH,)}
RWKV: Shapes = {
    **{f"attn_norm{which}": (WIDTH,) for which in (".weight", ".bias", "_2.weight", "_2.bias")},
    **{f"time_mix_{name}.weight": (WIDTH,) for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")},
    **{f"time_mix_{name}1.weight": (RANK, WIDTH) for name in "wavg"},
    **{f"time_mix_{name}2.weight": (WIDTH, RANK) for name in "wavg"},
    **{f"time_mix_{name}.weight": (WIDTH, WIDTH) for name in ("key", "value", "receptance", "output")},
    "time_mix_ln.bias": (WIDTH,),
    "time_mix_lerp_fused.weight": (6, 1, 1, WIDTH),
    "channel_mix_lerp_k.weight": (1, 1, WIDTH),
    "channel_mix_key.weight": (INNER, WIDTH),
    "channel_mix_value.weight": (WIDTH, INNER),
}
SSM = {
    "ssm.conv_kernel": CONV,
    "ssm.inner_size": INNER,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": SSM_HEADS,
}
SSM2 = {**SSM, "ssm.group_count": 1}
RANKS = {f"attention.{of}_lora_rank": RANK for of in ("decay", "iclr", "value_residual_mix", "gate")}
NO_HEADS = {"attention.head_count": 0, "attention.head_count_kv": 0, "feed_forward_length": 0}
SECOND_ATTENDS = {"attention.head_count_kv": [0, KEY_HEADS]}
RECURRENT: dict[str, tuple[dict[str, Any], list[Shapes]]] = {
    "mamba": ({**NO_HEADS, **SSM}, [{**NORM, **MAMBA}] * 2),
    "mamba2": ({**NO_HEADS, **SSM2}, [{**NORM, **MAMBA2}] * 2),
    "rwkv7": (
        {**RANKS, "wkv.head_size": RANK, "token_shift_count": 2, "attention.head_count": 0},
        [RWKV] * 2,
    ),
    "jamba": ({**SECOND_ATTENDS, **SSM}, [{**NORM, **NORMED, **mixer} for mixer in (JAMBA, ATTENTION)]),
    "granitehybrid": (
        {**SECOND_ATTENDS, **SSM2},
        [{**NORM, **NORMED, **mixer} for mixer in (MAMBA2, ATTENTION)],
    ),
    "falcon-h1": (SSM2, [FALCON] * 2),
    "nemotron_h": (
        {**SSM2, "attention.head_count_kv": [0, KEY_HEADS, 0], "feed_forward_length": [0, 0, INNER]},
        [{**NORM, **mixer} for mixer in (MAMBA2, ATTENTION, DENSE)],
    ),
    "lfm2": (
        {**SECOND_ATTENDS, "shortconv.l_cache": 3},
        [{**NORM, **NORMED, **mixer} for mixer in (SHORT_CONV, {**ATTENTION, **HEAD_NORMS})],
    ),
    "qwen35": (
        {
            **SSM,
            "ssm.inner_size": WIDTH,
            "ssm.group_count": 2,
            "full_attention_interval": 2,
            "rope.dimension_sections": [8, 4, 4, 0],
        },
        [{**NORM, **POST_NORM, **GATED, **mixer} for mixer in (DELTA_NET, GATED_ATTENTION)],
    ),
}
"""Architectures -> further values of their headers, and the tensors of each layer."""


def write_gguf(
    path: Path,
    *,
    seed: int = 0,
    kind: str = "Q8_0",
    architecture: str = "llama",
    split: str = "gpt-2",
    added: Mapping[str, NDArray[np.float32]] | None = None,
    original_context: int = 0,
    scaling: str = "longrope",
    context: int = CONTEXT,
    chat_template: str = "",
    header: Mapping[str, Any] | None = None,
) -> Path:
    """A Llama with grouped heads, or one of RECURRENT, and a byte-level tokenizer. kind: of its matrices, as the
    package gguf names it. added: to some of a Llama's matrices, before they are quantised. header: further values of
    the architecture's."""
    from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, quantize

    values, layers = RECURRENT.get(architecture, ({}, [{}] * LAYERS))
    values = values | dict(header or {})
    numbers = {
        "block_count": len(layers),
        "context_length": context,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_HEADS,
        "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": len(VOCABULARY),
        **values,
    }
    writer: Any = GGUFWriter(path, architecture)
    adders = {list: writer.add_array, bool: writer.add_bool, int: writer.add_uint32}
    for key, value in numbers.items():
        adders[type(value)](f"{architecture}.{key}", value)
    if original_context:
        writer.add_rope_scaling_type(RopeScalingType(scaling))
        writer.add_rope_scaling_orig_ctx_len(original_context)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    if split:
        writer.add_tokenizer_pre(split)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, *[1] * (len(VOCABULARY) - 1)])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    if chat_template:
        writer.add_chat_template(chat_template)
    random, quantisation = np.random.default_rng(seed), GGMLQuantizationType[kind]
    if architecture in RECURRENT:
        _add_tensors(writer, random, quantisation, _tensors_of(architecture, layers))
        return write_out(writer, path)
    for name, shape in MATRICES.items():
        if name == "output" and architecture == GEMMA:
            continue  # it is the embedding
        values = 0.2 * random.standard_normal(shape).astype(np.float32) + (added or {}).get(name, 0)
        writer.add_tensor(f"{name}.weight", quantize(values, quantisation), raw_dtype=quantisation)
    norms = NORMS
    if architecture == GEMMA:
        writer.add_sliding_window(WINDOW)
        writer.add_key_length(WIDTH // HEADS)
        writer.add_value_length(WIDTH // HEADS)
        norms = (*NORMS, "post_attention_norm", "post_ffw_norm")
    for name in ("output_norm", *(f"blk.{layer}.{norm}" for layer in range(LAYERS) for norm in norms)):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    return write_out(writer, path)


def _tensors_of(architecture: str, layers: list[Shapes]) -> Shapes:
    """All of a file."""
    tensors: Shapes = {f"{name}.weight": (len(VOCABULARY), WIDTH) for name in ("token_embd", "output")}
    if architecture in ("lfm2", "rwkv7"):
        tensors["token_embd_norm.weight"] = (WIDTH,)
    if architecture != "lfm2":
        tensors["output_norm.weight"] = (WIDTH,)
    if architecture == "rwkv7":
        tensors |= {"token_embd_norm.bias": (WIDTH,), "output_norm.bias": (WIDTH,)}
    return tensors | {
        f"blk.{number}.{name}": shape for number, layer in enumerate(layers) for name, shape in layer.items()
    }


def _add_tensors(writer: Any, random: np.random.Generator, quantisation: Any, tensors: Shapes) -> None:
    """Matrices are quantised."""
    from gguf import quantize

    for name, shape in tensors.items():
        values = 0.2 * random.standard_normal(shape).astype(np.float32)
        if "norm" in name and not name.endswith("bias"):
            values = np.ones(shape, np.float32)
        if name.endswith("ssm_a"):
            values = -np.exp(values)
        if name.endswith(("ssm_dt.bias", "time_mix_w0.weight")):
            values -= 4  # states remember a hundred tokens
        if len(shape) == 2 and shape[-1] >= 32 and "norm" not in name:
            writer.add_tensor(name, quantize(values, quantisation), raw_dtype=quantisation)
        else:
            writer.add_tensor(name, values)


def write_tokenizer(
    path: Path, kind: str, tokens: Mapping[str, int], *, architecture: str = "llama", **more: Any
) -> Path:
    """A file with a tokenizer, and no model to speak of. more: values of the tokenizer by their names."""
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


def write_lora(path: Path, update: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]) -> Path:
    """An adapter in a GGUF file, with alpha equal to its rank. update: of matrices, A [rank, in] and B [out, rank]."""
    from gguf import GGUFWriter

    writer: Any = GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(len(next(iter(update.values()))[0])))
    for name, (down, up) in update.items():
        writer.add_tensor(f"{name}.weight.lora_a", down)
        writer.add_tensor(f"{name}.weight.lora_b", up)
    return write_out(writer, path)


def write_out(writer: Any, path: Path) -> Path:
    """Let a GGUFWriter of `path` write what it was given."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
