"""What is used of llama.cpp's C interface, declared for one version of it, and a shared library that has it.

Structs are passed by value, so a library with another layout would read and write the wrong bytes. Whether it has this
one is seen before anything depends on it: every default is read back (`check_layout`), and every context tells what it
understood (`Context`). The results are declared longer than they are, so that a longer struct of another version
overwrites nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

VERSION = "0.4.1"
"""The version that these declarations were written for, as `llama_version` tells it up to a dash."""

_bool, _int, _uint, _float, _size = (
    ctypes.c_bool,
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_float,
    ctypes.c_size_t,
)
_pointer, _text = ctypes.c_void_p, ctypes.c_char_p
_bytes = ctypes.POINTER(ctypes.c_uint8)
_SPARE = ("_spare", ctypes.c_uint8 * 256)

_MODEL_FIELDS: tuple[tuple[Any, ...], ...] = (
    ("devices", _pointer),
    ("tensor_buft_overrides", _pointer),
    ("n_gpu_layers", _int, -1),
    ("split_mode", _int, 1),
    ("load_mode", _int, -1),
    ("lazy_mode", _int, 1),
    ("main_gpu", _int, 0),
    ("tensor_split", _pointer),
    ("progress_callback", _pointer),
    ("progress_callback_user_data", _pointer),
    ("kv_overrides", _pointer),
    ("vocab_only", _bool),
    ("check_tensors", _bool),
    ("use_extra_bufts", _bool, True),
    ("no_host", _bool),
    ("no_alloc", _bool),
    ("load_mtp", _bool, False),
)
"""Name and type of each field, and what the library has where nothing is set, unless that depends on the machine. A
field that is read from another field's bytes has another value."""
MODEL_DEFAULTS = {name: value for name, _, *values in _MODEL_FIELDS for value in values}


class ModelParams(ctypes.Structure):
    """How a file is loaded (`llama_model_params`)."""

    _fields_ = (*((name, kind) for name, kind, *_ in _MODEL_FIELDS), _SPARE)


_CONTEXT_FIELDS: tuple[tuple[Any, ...], ...] = (
    ("n_ctx", _uint, 512),
    ("n_batch", _uint, 2048),
    ("n_ubatch", _uint, 512),
    ("n_seq_max", _uint, 1),
    ("n_rs_seq", _uint, 0),
    ("n_outputs_max", _uint, 0),
    ("n_outputs_max_per_seq", _uint, 1),
    ("n_threads", _int),
    ("n_threads_batch", _int),
    ("ctx_type", _int),
    ("rope_scaling_type", _int, -1),
    ("pooling_type", _int, -1),
    ("attention_type", _int, -1),
    ("flash_attn_type", _int, -1),
    ("rope_freq_base", _float),
    ("rope_freq_scale", _float),
    ("yarn_ext_factor", _float, -1.0),
    ("yarn_attn_factor", _float, -1.0),
    ("yarn_beta_fast", _float),
    ("yarn_beta_slow", _float),
    ("yarn_orig_ctx", _uint, 0),
    ("defrag_thold", _float, -1.0),
    ("cb_eval", _pointer),
    ("cb_eval_user_data", _pointer),
    ("type_k", _int, 1),
    ("type_v", _int, 1),
    ("abort_callback", _pointer),
    ("abort_callback_data", _pointer),
    ("embeddings", _bool, False),
    ("offload_kqv", _bool, True),
    ("no_perf", _bool, True),
    ("op_offload", _bool, True),
    ("swa_full", _bool, True),
    ("kv_unified", _bool, False),
    ("samplers", _pointer),
    ("n_samplers", _size, 0),
    ("ctx_other", _pointer),
)
CONTEXT_DEFAULTS = {name: value for name, _, *values in _CONTEXT_FIELDS for value in values}


class ContextParams(ctypes.Structure):
    """How rows are computed (`llama_context_params`)."""

    _fields_ = (*((name, kind) for name, kind, *_ in _CONTEXT_FIELDS), _SPARE)


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
        for name, value in defaults.items():
            if getattr(params, name) != value:
                return f"its default of {name} reads as {getattr(params, name)}"
    return None
