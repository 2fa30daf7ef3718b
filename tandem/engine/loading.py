"""Loads a Hugging Face causal model and its fast tokenizer, by hub id or directory.

Everything that can be wrong with a model is found here, before the first question, and said in one sentence.
It knows nothing of documents, sessions or caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tandem.engine.directory import check_directory
from tandem.errors import GenerationError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(model: str, *, device: str, dtype: str) -> Any:
    """The model in evaluation mode on `device`, weights cast to `dtype`; GenerationError if that fails."""
    place, precision = _device(device), _dtype(dtype)
    check_directory(model)
    with _quiet():
        from transformers import AutoModelForCausalLM

        try:
            auto: Any = AutoModelForCausalLM
            loaded, report = auto.from_pretrained(
                model, dtype=precision, trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # anything may come out of a wrong or damaged model directory
            raise _not_loaded("language model", model, error) from None
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would make them up at random
        raise GenerationError(
            f"A checkpoint has all weights of its model, {model!r} lacks {len(missing)} ({missing[0]}, ...); "
            "save or download it again."
        )
    return loaded.eval().to(place)


def load_tokenizer(model: str) -> tuple[Tokenizer, Any]:
    """The fast tokenizer (of the `tokenizers` package) of `model`, and its wrapper that knows bos and eos."""
    check_directory(model)
    with _quiet():
        from transformers import AutoTokenizer

        try:
            wrapper = AutoTokenizer.from_pretrained(model, use_fast=True, trust_remote_code=False)
        except Exception as error:  # as above
            if Path(model).is_dir() and not any(Path(model).glob("tokenizer*")):
                raise _no_tokenizer(model, "no tokenizer.json") from None
            raise _not_loaded("tokenizer", model, error) from None
    backend = getattr(wrapper, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise GenerationError(
            f"Tandem needs a fast tokenizer (tokenizer.json), {model!r} has only {type(wrapper).__name__}; "
            "convert it with transformers and save it beside the model."
        )
    # Without files transformers invents an empty tokenizer for some families.
    if not backend.encode("a question", add_special_tokens=False).ids:
        raise _no_tokenizer(model, f"{backend.get_vocab_size()} tokens")
    backend.no_padding()
    backend.no_truncation()
    return backend, wrapper


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The model's decoder layers in order: the boundaries at which a forward pass may be abandoned."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise GenerationError(
        f"Tandem looks for a list of {count} decoder layers, {type(model).__name__} has none; "
        "use another model family."
    )


def check_cache(model: Any) -> None:
    """GenerationError if the model keeps state that a rollback cannot crop (state space, say)."""
    from transformers import DynamicCache

    kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers}
    other = kinds - {"DynamicLayer", "DynamicSlidingWindowLayer"}
    if other:
        raise GenerationError(
            f"A rollback must be able to crop the cache, {type(model).__name__}'s has {sorted(other)}; "
            "use a model with plain attention."
        )


def num_logits(model: Any) -> int:
    """Width of the model's output, which may exceed its tokenizer's vocabulary."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def context_length(model: Any) -> int | None:
    """Positions a row may have; None if the model's configuration names no limit.

    Models with LongRoPE (Phi-3-128k, Phi-4-mini, MiniCPM) switch to other frequencies once any row of a batch goes
    beyond `original_max_position_embeddings`: the other rows would change with it, and keys already cached would
    not. So they are used up to that length only.
    """
    config = model.config.get_text_config(decoder=True)
    limits = [getattr(config, "max_position_embeddings", None), *_longrope_limits(config)]
    return min((int(limit) for limit in limits if limit), default=None)


def _longrope_limits(config: Any) -> list[int | None]:
    """Where LongRoPE would switch frequencies. Some models have one set of parameters per kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [one.get("original_max_position_embeddings") for one in sets if one.get("rope_type") == "longrope"]


def _no_tokenizer(model: str, found: str) -> GenerationError:
    return GenerationError(
        f"A model needs its tokenizer beside it, {model!r} has none ({found}); "
        "save the tokenizer into the same directory."
    )


def _not_loaded(what: str, model: str, error: Exception) -> GenerationError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
    return GenerationError(
        f"The {what} of {model!r} cannot be loaded: {reason}; check the directory or hub id, and whether "
        "a hub model has been downloaded or can be."
    )


def _device(device: str) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise GenerationError(
            f"The models' device is cpu, or cuda where PyTorch finds one, {device!r} cannot be used here; "
            "set it to 'cpu'."
        ) from None
    return place


def _dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise GenerationError(f"A model computes in one of {sorted(DTYPES)}, not in {dtype!r}; set one.")
    return DTYPES[dtype]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers from drawing progress bars into the log of an actor."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    was_drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_drawn:
            logging.enable_progress_bar()
