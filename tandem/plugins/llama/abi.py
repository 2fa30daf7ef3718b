"""What is used of llama.cpp's C interface, declared for one version of it, and a shared library that has it.

Structs are passed by value, so a library with another layout would read and write the wrong bytes. Whether it has this
one is seen before anything depends on it: every default is read back (`check_layout`), and every context tells what it
understood (`Context`). The results are declared longer than they are, so that a longer struct of another version
overwrites nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

VERSION = "0.4.1"
"""Of llama.cpp, as `llama_version` tells it up to a dash: what these declarations were written for."""

_bool, _int, _uint, _float, _size = (
    ctypes.c_bool,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_float,
    ctypes.c_size_t,
)
_pointer, _text = ctypes.c_void_p, ctypes.c_char_p
_bytes = ctypes.POINTER(ctypes.c_uint8)
_SPARE_BYTES = 256


class ModelParams(ctypes.Structure):
    """How a file is loaded (`llama_model_params`)."""

    _fields_ = (
        ("devices", _pointer),
        ("tensor_buft_overrides", _pointer),
        ("n_gpu_layers", _int),
        ("split_mode", _int),
        ("load_mode", _int),
        ("lazy_mode", _int),
        ("main_gpu", _int),
        ("tensor_split", _pointer),
        ("progress_callback", _pointer),
        ("progress_callback_user_data", _pointer),
        ("kv_overrides", _pointer),
        ("vocab_only", _bool),
        ("check_tensors", _bool),
        ("use_extra_bufts", _bool),
        ("no_host", _bool),
        ("no_alloc", _bool),
        ("load_mtp", _bool),
        ("_spare", ctypes.c_uint8 * _SPARE_BYTES),
    )


class ContextParams(ctypes.Structure):
    """How rows are computed (`llama_context_params`)."""

    _fields_ = (
        ("n_ctx", _uint),
        ("n_batch", _uint),
        ("n_ubatch", _uint),
        ("n_seq_max", _uint),
        ("n_rs_seq", _uint),
        ("n_outputs_max", _uint),
        ("n_outputs_max_per_seq", _uint),
        ("n_threads", _int),
        ("n_threads_batch", _int),
        ("ctx_type", _int),
        ("rope_scaling_type", _int),
        ("pooling_type", _int),
        ("attention_type", _int),
        ("flash_attn_type", _int),
        ("rope_freq_base", _float),
        ("rope_freq_scale", _float),
        ("yarn_ext_factor", _float),
        ("yarn_attn_factor", _float),
        ("yarn_beta_fast", _float),
        ("yarn_beta_slow", _float),
        ("yarn_orig_ctx", _uint),
        ("defrag_thold", _float),
        ("cb_eval", _pointer),
        ("cb_eval_user_data", _pointer),
        ("type_k", _int),
        ("type_v", _int),
        ("abort_callback", _pointer),
        ("abort_callback_data", _pointer),
        ("embeddings", _bool),
        ("offload_kqv", _bool),
        ("no_perf", _bool),
        ("op_offload", _bool),
        ("swa_full", _bool),
        ("kv_unified", _bool),
        ("samplers", _pointer),
        ("n_samplers", _size),
        ("ctx_other", _pointer),
        ("_spare", ctypes.c_uint8 * _SPARE_BYTES),
    )


class Batch(ctypes.Structure):
    """The tokens of a pass (`llama_batch`)."""

    _fields_ = (
        ("n_tokens", _int),
        ("token", ctypes.POINTER(_int)),
        ("embd", ctypes.POINTER(_float)),
        ("pos", ctypes.POINTER(_int)),
        ("n_seq_id", ctypes.POINTER(_int)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_int))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


LogCallback = ctypes.CFUNCTYPE(None, _int, _text, _pointer)
"""level, text, nothing."""

FUNCTIONS: dict[str, tuple[Any, ...]] = {  # name -> result, arguments
    "llama_adapter_lora_init": (_pointer, _pointer, _text),
    "llama_backend_init": (None,),
    "llama_batch_free": (None, Batch),
    "llama_batch_init": (Batch, _int, _int, _int),
    "llama_context_default_params": (ContextParams,),
    "llama_decode": (_int, _pointer, Batch),
    "llama_free": (None, _pointer),
    "llama_get_logits_ith": (ctypes.POINTER(_float), _pointer, _int),
    "llama_get_memory": (_pointer, _pointer),
    "llama_init_from_model": (_pointer, _pointer, ContextParams),
    "llama_log_set": (None, LogCallback, _pointer),
    "llama_memory_seq_rm": (_bool, _pointer, _int, _int, _int),
    "llama_model_default_params": (ModelParams,),
    "llama_model_desc": (_int, _pointer, _text, _size),
    "llama_model_free": (None, _pointer),
    "llama_model_get_vocab": (_pointer, _pointer),
    "llama_model_has_decoder": (_bool, _pointer),
    "llama_model_has_encoder": (_bool, _pointer),
    "llama_model_is_diffusion": (_bool, _pointer),
    "llama_model_is_hybrid": (_bool, _pointer),
    "llama_model_is_recurrent": (_bool, _pointer),
    "llama_model_load_from_file": (_pointer, _text, ModelParams),
    "llama_model_meta_val_str": (_int, _pointer, _text, _text, _size),
    "llama_model_n_ctx_train": (_int, _pointer),
    "llama_model_n_params": (ctypes.c_uint64, _pointer),
    "llama_model_n_swa": (_int, _pointer),
    "llama_model_size": (ctypes.c_uint64, _pointer),
    "llama_n_batch": (_uint, _pointer),
    "llama_n_ctx": (_uint, _pointer),
    "llama_n_seq_max": (_uint, _pointer),
    "llama_n_threads": (_int, _pointer),
    "llama_print_system_info": (_text,),
    "llama_set_abort_callback": (None, _pointer, _pointer, _pointer),
    "llama_set_adapters_lora": (_int, _pointer, ctypes.POINTER(_pointer), _size, ctypes.POINTER(_float)),
    "llama_state_seq_get_data_ext": (_size, _pointer, _bytes, _size, _int, _uint),
    "llama_state_seq_get_size_ext": (_size, _pointer, _int, _uint),
    "llama_state_seq_set_data_ext": (_size, _pointer, _bytes, _size, _int, _uint),
    "llama_supports_gpu_offload": (_bool,),
    "llama_tokenize": (_int, _pointer, _text, _int, ctypes.POINTER(_int), _int, _bool, _bool),
    "llama_version": (_text,),
    "llama_vocab_n_tokens": (_int, _pointer),
}

MODEL_DEFAULTS: dict[str, Any] = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "use_extra_bufts": True,
    "load_mtp": False,
}
CONTEXT_DEFAULTS: dict[str, Any] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}
"""What the library has where nothing is set. A field that is read from another field's bytes has another value."""


def declare(library: ctypes.CDLL) -> None:
    """Give its functions their types. AttributeError if one is missing."""
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def check_layout(library: Any) -> str | None:
    """How a declared library differs from these declarations, as part of a sentence; None: it does not."""
    version = library.llama_version().decode(errors="replace").partition("-")[0]
    if version != VERSION:
        return f"its version is {version:.40}"
    for params, defaults in (
        (library.llama_model_default_params(), MODEL_DEFAULTS),
        (library.llama_context_default_params(), CONTEXT_DEFAULTS),
    ):
        if name := _differing(params, defaults):
            return f"its default of {name} reads as {getattr(params, name)}"
    return None


def _differing(params: ctypes.Structure, defaults: Mapping[str, Any]) -> str | None:
    """The first field that is not as it should be."""
    return next((name for name, value in defaults.items() if getattr(params, name) != value), None)
