"""Reads a model's tokenizer and configuration: those of a folder with transformers, which is imported when they are
read, the tokenizer of a GGUF file without it.

Everything that can be wrong with them is found here, before the first question, and reported in one sentence.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from tandem.engine import gguf, gguf_tokenizer
from tandem.engine.places import base_of, check_directory
from tandem.engine.port import Runner
from tandem.engine.tokenizer import TokenizerInfo
from tandem.errors import GenerationError, explain_missing, first_line
from tandem.system.progress_bars import hide_progress_bars

if TYPE_CHECKING:
    import torch


def load_tokenizer(model: str, *, is_local: bool = False) -> tuple[Tokenizer, TokenizerInfo]:
    """The fast tokenizer (of the `tokenizers` package) of `model`, and what comes with it.

    is_local: nothing is downloaded. An adapter has its base's, unless one was saved with it: it may have further
    tokens, or another chat template. Raises GenerationError.
    """
    check_directory(model)
    if not os.path.isfile(os.path.join(model, "tokenizer.json")):
        model = base_of(model)
    if (file := gguf.find_file(model)) is not None:
        return gguf_tokenizer.load(file)
    wrapper = load_wrapper(model, is_local=is_local)
    backend: Tokenizer = wrapper.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    return backend, info_of(wrapper)


def info_of(wrapper: Any) -> TokenizerInfo:
    """What transformers knows of a fast tokenizer of its own."""
    template = wrapper.chat_template
    return TokenizerInfo.of(
        wrapper.backend_tokenizer,
        wrapper.special_tokens_map,
        family=re.sub(r"Tokenizer|sBackend|Fast$|^PreTrained", "", type(wrapper).__name__),
        eos_token_id=wrapper.eos_token_id,
        chat_template=template.get("default") if isinstance(template, dict) else template,
    )


def load_wrapper(model: str, *, is_local: bool = False) -> Any:
    """The fast tokenizer of `model` as transformers has it, to be saved with another model. Raises GenerationError."""
    where, more = _source(model)
    with explain_missing(f"The tokenizer of {model!r}", GenerationError), hide_progress_bars():
        from transformers import AutoTokenizer

        try:
            wrapper = AutoTokenizer.from_pretrained(
                where, use_fast=True, trust_remote_code=False, local_files_only=is_local, **more
            )
        except Exception as error:  # anything may come out of a damaged directory
            if Path(model).is_dir() and not any(Path(model).glob("tokenizer*")):
                raise _no_tokenizer(model, "no tokenizer.json") from None
            raise loading_error("tokenizer", model, error) from None
    backend = getattr(wrapper, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise GenerationError(
            f"{model!r} has no fast tokenizer (tokenizer.json), only {type(wrapper).__name__}; "
            "convert it with transformers and save it with the model."
        )
    if more:
        gguf.split_texts(Path(where) / more["gguf_file"], backend)
    # Without files transformers invents an empty tokenizer for some families.
    if not backend.encode("a question", add_special_tokens=False).ids:
        raise _no_tokenizer(model, f"{backend.get_vocab_size()} tokens")
    return wrapper


def load_config(model: str, *, is_local: bool = False) -> Any:
    """The configuration of `model`, of transformers. is_local: nothing is downloaded. Raises GenerationError."""
    check_directory(model)
    with explain_missing(f"The configuration of {model!r}", GenerationError):
        from transformers import AutoConfig
    try:
        where, more = _source(base_of(model))
        return AutoConfig.from_pretrained(where, trust_remote_code=False, local_files_only=is_local, **more)
    except Exception as error:  # anything may come out of a damaged directory
        raise loading_error("configuration", model, error) from None


def _source(model: str) -> tuple[str, dict[str, str]]:
    """Folder or hub id as transformers takes it, and further arguments."""
    file = gguf.find_file(model)
    return (model, {}) if file is None else gguf.source(file)


def _no_tokenizer(model: str, reason: str) -> GenerationError:
    return GenerationError(
        f"{model!r} has no tokenizer ({reason}); save the tokenizer into the model's directory."
    )


def loading_error(what: str, model: str, error: Exception) -> GenerationError:
    """What transformers raised, as one sentence."""
    return GenerationError(
        f"The {what} of {model!r} cannot be loaded: {first_line(error)}; check the directory or hub id, and whether "
        "a hub model has been downloaded or can be."
    )


# ---- facts of a model of transformers ------------------------------------------------------------------------


def context_length(config: Any) -> int | None:
    """Positions a row may have; None if the model's configuration, of transformers, names no limit.

    Models with LongRoPE (Phi-3-128k, Phi-4-mini, MiniCPM) switch to other frequencies once any row of a batch goes
    beyond `original_max_position_embeddings`: the other rows would change with it, and keys already cached would
    not. So they are used up to that length only.
    """
    config = config.get_text_config(decoder=True)
    limits = [getattr(config, "max_position_embeddings", None), *_longrope_limits(config)]
    return min((int(limit) for limit in limits if limit), default=None)


def _longrope_limits(config: Any) -> list[int | None]:
    """The lengths at which LongRoPE would switch frequencies. Some models have one set of parameters per kind of
    layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    sets = [parameters, *(value for value in parameters.values() if isinstance(value, dict))]
    return [
        rope.get("original_max_position_embeddings") for rope in sets if rope.get("rope_type") == "longrope"
    ]


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The model's decoder layers in order: the boundaries at which a forward pass may be abandoned."""
    import torch

    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise GenerationError(
        f"{type(model).__name__} has no list of {count} decoder layers; use another model family."
    )


def model_of(runner: Runner) -> Any:
    """The model of transformers behind a runner; not to be changed. GenerationError if it is another engine's."""
    model = getattr(runner, "model", None)
    if not hasattr(model, "get_output_embeddings"):
        raise GenerationError(
            "This needs a model of Hugging Face on PyTorch; set device.model to its folder or name."
        )
    return model
