"""A Hugging Face causal model: loading it, and what identifies it.

Everything that can be wrong with a model is found here, before the first question, and reported in one sentence.
"""

from __future__ import annotations

import copy
import json
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import transformers

from tandem.engine.places import ADAPTER, base_of, check_directory, file_of, is_adapter, loading_error
from tandem.engine.port import DTYPES
from tandem.errors import GenerationError, first_line, install_line
from tandem.plugins.torch import conversion
from tandem.system.processes import hide_progress_bars

_ORIGIN = ("_name_or_path", "transformers_version")  # keys of a configuration that say where it came from


# ---- loading -------------------------------------------------------------------------------------------------


def load_model(model: str, *, device: str, dtype: str) -> Any:
    """The model in evaluation mode on `device`, weights cast to `dtype`; GenerationError if that fails.

    A folder of an adapter stands for its base with the adapter merged into it.
    """
    target = _find_device(device)
    base = convert(model, dtype)
    auto: Any = transformers.AutoModelForCausalLM
    with hide_progress_bars():
        try:
            loaded, report = auto.from_pretrained(
                base, dtype=getattr(torch, dtype), trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # anything may come out of a wrong or damaged model directory
            raise loading_error("language model", base, error) from None
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise GenerationError(
            f"The checkpoint of {base!r} lacks {len(missing)} of its model's weights ({missing[0]}, ...); "
            "save or download it again."
        )
    loaded = loaded.eval().to(target)
    return _merge_adapter(loaded, model) if is_adapter(model) else loaded


_LOADED: WeakValueDictionary[object, Any] = WeakValueDictionary()


def load_shared(model: str, *, device: str, dtype: str) -> Any:
    """Load like `load_model`, or take a model that is in this process and still used, where all of it is equal.

    Several models use its tensors (`share_tensors`), so none may change one. Nobody computes with it, so that no hook
    is in its modules.
    """
    files = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for folder in (model, convert(model, dtype))
        for path in sorted(Path(folder).glob("*"))
    ]
    key = (model, device, dtype, *files)
    loaded = _LOADED.get(key)
    if loaded is None:
        loaded = _LOADED[key] = load_model(model, device=device, dtype=dtype)
    return loaded


def share_tensors(model: Any) -> Any:
    """A model of its own with the very tensors of another one."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def convert(model: str, dtype: str) -> str:
    """Folder or hub id from which the weights of `model` are loaded: of an adapter its base, of a GGUF file the folder
    that it is converted to at its first use. Raises GenerationError.
    """
    if dtype not in DTYPES:
        raise GenerationError(f"Unknown precision {dtype!r}; set the dtype to one of {', '.join(DTYPES)}.")
    check_directory(model)
    base = base_of(model)
    if (found := file_of(base)) is None:
        return base
    with hide_progress_bars():
        try:
            return str(conversion.convert(found[1], dtype))
        except GenerationError:
            raise
        except Exception as error:  # as in load_model
            raise GenerationError(
                f"The GGUF file of {base!r} cannot be loaded with PyTorch: {first_line(error)}; set engine to "
                '"llama", or use another file.'
            ) from None


def _merge_adapter(base: Any, folder: str) -> Any:
    """`base`, a model of transformers, with the adapter in `folder` merged into its weights. Raises GenerationError."""
    try:
        import peft
    except ImportError:
        raise GenerationError(
            f"{folder!r} is an adapter, which is read with the package peft; run `{install_line('train')}`."
        ) from None
    try:
        config = peft.PeftConfig.from_pretrained(folder)
        if config.is_prompt_learning:
            raise GenerationError(
                f"The adapter {folder!r} ({config.peft_type.value}) cannot be merged into weights; use one of LoRA's "
                "kind."
            )
        adapted = peft.PeftModel(base, config)
        weights = peft.load_peft_weights(folder, device=str(base.device))
        result: Any = peft.set_peft_model_state_dict(adapted, weights)
        own = {name for name in result.missing_keys if adapted.base_model.prefix in name}
        if stray := sorted({*result.unexpected_keys, *own}):
            raise _other_base(folder, f"{len(stray)} of its weights do not fit ({stray[0]}, ...)")
        return adapted.merge_and_unload(safe_merge=True).eval()
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise _other_base(folder, first_line(error)) from None


def _other_base(folder: str, reason: str) -> GenerationError:
    return GenerationError(
        f"The adapter {folder!r:.200} does not fit the base model that it names: {reason:.200}; set "
        f"base_model_name_or_path in its {ADAPTER} to the model that it was trained on."
    )


def _find_device(device: str) -> torch.device:
    try:
        target = torch.device(device)
        torch.empty(0, device=target)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise GenerationError(
            f"The device {device!r} cannot be used here; set it to 'cpu', or to 'cuda' where PyTorch finds a GPU."
        ) from None
    return target


# ---- what a model is like ------------------------------------------------------------------------------------


def check_cache(model: Any) -> None:
    """GenerationError if the model keeps state that a rollback cannot crop (state space, say), or that is not kept.

    Layers at the end without a cache of their own, which read that of an earlier one (Gemma 3n), are as good as any.
    """
    layers = list(transformers.DynamicCache(config=model.config).layers)
    fixed = {type(layer).__name__ for layer in layers if not layer.is_croppable}
    if fixed:
        raise GenerationError(
            f"The cache of {type(model).__name__} cannot be rolled back, since it has {sorted(fixed)}; use it as a "
            'GGUF file with engine "llama", or a model with plain attention.'
        )
    while layers and not hasattr(layers[-1], "lazy_initialization"):
        layers.pop()
    other = {
        type(layer).__name__
        for layer in layers
        if hasattr(layer, "update_indexer") or not hasattr(layer, "lazy_initialization")
    }
    if other:
        raise GenerationError(
            f"The cache of {type(model).__name__} is not made of keys and values alone, since it has {sorted(other)}; "
            "use a model with plain attention."
        )


# ---- which model computed a cache, and how -------------------------------------------------------------------


def fingerprint_weights(model: Any) -> str:
    """32 hexadecimal digits of a model's configuration and of all its weights, in the precision they have.

    Equal for two loads of the same weights, wherever their files are. Reads every weight once, at about the speed
    of memory (4 GB/s on one core): sizes and times of files would not tell a fine-tuned copy from its original. Of
    each tensor a CRC-32 is taken, which misses one changed tensor in 2^32. Guards against mix-ups, not forgery.
    """
    values = json.loads(model.config.to_json_string(use_diff=False))
    configuration = {key: value for key, value in values.items() if key not in _ORIGIN}
    # with the kind of attention that is really used
    described = [configuration, model.config._attn_implementation, type(model).__name__]
    digest = sha256(json.dumps(described, sort_keys=True).encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)} {zlib.crc32(flat.numpy())}".encode())
    return digest.hexdigest()[:32]


def fingerprint_computation(model: Any, weights: str) -> str:
    """32 hexadecimal digits of all that the bits of a result depend on: the fingerprint `weights`, the versions of
    PyTorch and transformers, the kind of processor and the number of threads."""
    device: torch.device = model.device
    if device.type == "cuda":
        processor = str(torch.cuda.get_device_name(device))
    else:
        processor = f"{device.type} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
    versions = f"{torch.__version__} {transformers.__version__}"
    return sha256(f"{weights} {versions} {processor}".encode()).hexdigest()[:32]
