"""Models that are a base and an adapter: a folder that peft wrote beside the base model that it names.

The adapter's weights are merged into the base's when it is loaded, so that nothing else knows of adapters: the engine,
its fingerprints and its caches see a model with other weights.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tandem.errors import GenerationError, install_line

CONFIG = "adapter_config.json"
WEIGHTS = (".safetensors", ".bin")


def is_adapter(model: str) -> bool:
    """Whether `model` is a folder with an adapter and no weights of a model; some tools write a config.json there."""
    if not os.path.isfile(os.path.join(model, CONFIG)):
        return False
    files = os.listdir(model)
    return not any(file.endswith(WEIGHTS) and not file.startswith("adapter_model") for file in files)


def base_of(model: str) -> str:
    """The base model of an adapter: a folder or hub id; of any other model itself. Raises GenerationError."""
    if not is_adapter(model):
        return model
    file = os.path.join(model, CONFIG)
    try:
        with open(file, encoding="utf-8") as text:
            base = json.load(text).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise GenerationError(f"{file!r} cannot be read: {error}; write the adapter again.") from None
    if not isinstance(base, str) or not base:
        raise GenerationError(
            f"{file!r} names no base model; set its base_model_name_or_path to a folder or hub id."
        )
    beside = os.path.join(model, base)
    if base.startswith(".") and os.path.isdir(beside):
        return beside
    if os.path.isabs(base) and not os.path.isdir(base):
        raise GenerationError(
            f"The base model {base!r} of the adapter {model!r} is not here; set base_model_name_or_path in its "
            f"{CONFIG}."
        )
    return base


def merge(base: Any, folder: str) -> Any:
    """`base`, a model of transformers, with the adapter in `folder` merged into its weights. Raises GenerationError."""
    try:
        import peft
    except ImportError:
        raise GenerationError(
            f"{folder!r} is an adapter, which is read with the package peft; run {install_line('train')}."
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
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
        raise _other_base(folder, reason) from None


def _other_base(folder: str, reason: str) -> GenerationError:
    return GenerationError(
        f"The adapter {folder!r:.200} does not fit the base model that it names: {reason:.200}; set "
        f"base_model_name_or_path in its {CONFIG} to the model that it was trained on."
    )
