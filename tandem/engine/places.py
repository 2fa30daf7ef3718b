"""Places of models: whether one is there and whole, checked in milliseconds, and its tokenizer and configuration.

Whatever is wrong with a name is one sentence with the remedy, the same for a question as for `tandem doctor`. The
tokenizer of a GGUF file is read without transformers, that of a folder with it, imported when it is needed.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from tandem import plugins
from tandem.corpora import NAMED_MODELS
from tandem.engine.port import ModelFile, ModelFormat
from tandem.engine.tokenizer import TokenizerInfo
from tandem.errors import GenerationError, explain_missing, find_close, first_line
from tandem.system.paths import suggest_path
from tandem.system.processes import hide_progress_bars

if TYPE_CHECKING:
    import torch


ADAPTER = "adapter_config.json"
"""The file of an adapter: a folder that peft wrote next to the base model that it names."""
AUTO = "auto"
"""The engine that suits the model."""
_POINTER = b"version https://git-lfs"  # how a Git LFS pointer begins
_POINTER_BYTES = 1024  # the most it has
_NAMES = '"smollm2" or "bundled"'
_SERVICES = ("gpt-", "chatgpt", "o1", "o3", "o4", "claude", "gemini", "text-davinci", "command-r")
_OLLAMA = {
    "llama3": "meta-llama/Llama-3.2-1B-Instruct",
    "llama": "meta-llama/Llama-3.2-1B-Instruct",
    "qwen": "Qwen/Qwen2.5-0.5B-Instruct",
    "mistral": "mistralai/Mistral-7B-Instruct-v0.3",
    "gemma": "google/gemma-2-2b-it",
    "phi": "microsoft/Phi-3.5-mini-instruct",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "smollm": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "deepseek": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
}
"""Beginnings of names in Ollama's library -> a model of that family on the hub."""


def expand(model: str) -> str:
    """`model` with a leading ~ replaced by the home directory, and a name in a program's store ("ollama:NAME") by its
    file. Raises GenerationError where that has none."""
    if plugin := plugins.split("model_store", model):
        return str(plugins.find("model_store", plugin[0])(plugin[1]))
    return os.path.expanduser(model) if model.startswith("~") else model


def check_directory(model: str) -> None:
    """GenerationError unless `model` is a whole model here, or the id of one that the hub may have.

    Asks no server, and through `os.path`, which answers no instead of raising for a name that cannot be a path.
    """
    if os.path.isdir(model):
        _check_folder(model)
    elif os.path.exists(model):
        _check_file(model)
    elif os.path.isabs(model) or model.startswith((".", "~")) or model.count("/") > 1 or "/" not in model:
        if not is_cached(model, "config.json"):
            raise _no_model(model)
    elif is_offline() and not is_cached(model, "config.json"):
        near = suggest_path(Path(model).absolute()) if os.path.isdir(model.partition("/")[0]) else ""
        raise GenerationError(
            f"The model {model!r:.200} is not in the hub's cache, and HF_HUB_OFFLINE keeps it from being downloaded; "
            f"{near or 'correct the name, download the model, or name a folder.'}"
        )


def is_cached(repository: str, file: str) -> bool:
    """Whether the hub's cache holds a file of a repository; asks no server."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(repository, file), str)
    except HFValidationError:
        return False


def is_offline() -> bool:
    """Whether huggingface_hub asks no server, as HF_HUB_OFFLINE says."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def is_adapter(model: str) -> bool:
    """Whether `model` is a folder with an adapter and no weights of a model; some tools write a config.json there."""
    if not os.path.isfile(os.path.join(model, ADAPTER)):
        return False
    files = os.listdir(model)
    return not any(
        file.endswith((".safetensors", ".bin")) and not file.startswith("adapter_model") for file in files
    )


def base_of(model: str) -> str:
    """The base model of an adapter, as a place or hub id; of any other model itself. Raises GenerationError."""
    if not is_adapter(model):
        return model
    file = os.path.join(model, ADAPTER)
    try:
        base = json.loads(Path(file).read_text("utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise GenerationError(f"{file!r} cannot be read: {error}; write the adapter again.") from None
    if not isinstance(base, str) or not base:
        raise GenerationError(
            f"{file!r} names no base model; set its base_model_name_or_path to a folder, GGUF file or hub id."
        )
    beside = os.path.join(model, base)
    if base.startswith(".") and os.path.exists(beside):
        return beside
    if os.path.isabs(base) and not os.path.exists(base):
        raise GenerationError(
            f"The base model {base!r} of the adapter {model!r} is not here; set base_model_name_or_path in its "
            f"{ADAPTER}."
        )
    return base


def name_engine(setting: str, model: str, device: str = "cpu") -> str:
    """The engine that a setting stands for: "auto" is that of a file's format (llama.cpp for GGUF on the processor),
    else PyTorch."""
    if setting != AUTO:
        return setting
    found = file_of(base_of(model))
    return "torch" if found is None else found[0].engine(device)


def file_of(model: str) -> tuple[ModelFormat, Path] | None:
    """The format and the file of a model that is one file; None for any other. Raises GenerationError."""
    for name in plugins.names("model_format"):
        model_format: ModelFormat = plugins.find("model_format", name)
        if (file := model_format.find(model)) is not None:
            return model_format, file
    return None


def check_file(model: str) -> ModelFile | None:
    """What the file of a model that is one says; None for any other model. Raises GenerationError."""
    found = file_of(model)
    return None if found is None else found[0].check(found[1])


def describe_conversion(engine: str, model: str, dtype: str) -> str:
    """One sentence where an engine has to convert a model before it loads it; "" where not. Raises GenerationError."""
    if not plugins.has("conversion", engine):
        return ""
    return str(plugins.find("conversion", engine)(base_of(model), dtype))


# ---- what is here --------------------------------------------------------------------------------------------


def _check_file(model: str) -> None:
    file = Path(model)
    _check_pointer(file)
    if check_file(model) is not None:
        return
    remedy = "name the folder that it is in" if (file.parent / "config.json").is_file() else "name a folder"
    raise GenerationError(f"{model!r:.200} is a file, and no GGUF file; {remedy}, or correct the path.")


def _check_folder(model: str) -> None:
    """Every file that loading will read is there, and whole as far as its size tells."""
    folder = Path(model)
    for file in sorted((*folder.glob("*.json"), *folder.glob("*.safetensors"), *folder.glob("*.bin"))):
        _check_pointer(file)
    if (inside := file_of(model)) is not None:
        _check_file(str(inside[1]))
        return
    if is_adapter(model):
        base = base_of(model)
        if Path(base).is_dir() and is_adapter(base):
            raise GenerationError(
                f"The base model {base!r} of the adapter {model!r} is an adapter; merge it first."
            )
        check_directory(base)
        return
    if not (folder / "config.json").is_file():
        near = sorted(str(path.parent) for path in folder.glob("*/config.json"))
        remedy = f"the nearest is {near[0]}." if near else "point to a directory that save_pretrained wrote."
        raise GenerationError(f"The model directory {model!r} has no config.json; {remedy}")
    for index in sorted(folder.glob("*.index.json")):
        lacking = sorted(name for name in _shards(index) if not (folder / name).is_file())
        if lacking:
            raise GenerationError(
                f"The model directory {str(folder)!r} lacks {len(lacking)} of the files that {index.name} names "
                f"({lacking[0]}); download the model again, or copy what is missing."
            )
    files = sorted(folder.glob("*.safetensors"))
    if not files and not any(folder.glob("*.bin")):
        raise GenerationError(
            f"The model directory {str(folder)!r} has a config.json but no weights (*.safetensors); download the model "
            "again, or save it there with save_pretrained."
        )
    for file in files:
        _check_safetensors(file)


def _shards(index: Path) -> set[str]:
    try:
        return {str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise GenerationError(f"{str(index)!r} is damaged; download the model again.") from None


def _check_safetensors(file: Path) -> None:
    """GenerationError if a file has not the length that its header tells."""
    size = file.stat().st_size
    try:
        length, tensors = _read_header(file)
        expected = 8 + length + max((entry["data_offsets"][1] for entry in tensors), default=0)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise GenerationError(
            f"{str(file)!r} is no whole safetensors file; download the model again."
        ) from None
    if size < expected:
        raise GenerationError(
            f"{str(file)!r} is no whole safetensors file: it has {size:,} of {expected:,} bytes; download the model "
            "again."
        )


def _read_header(file: Path) -> tuple[int, list[dict[str, Any]]]:
    """The header's bytes, and its entry of each tensor. Raises struct.error or one of a wrong type or value."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(min(length, file.stat().st_size)))
    return length, [entry for name, entry in header.items() if name != "__metadata__"]


def count_bytes(model: str, dtype: str = "") -> int | None:
    """Memory of a model's weights in a precision; "": as a GGUF file has them. None where they are not here, or of
    another form."""
    base = base_of(model)
    if (found := file_of(base)) is not None:
        model_format, file = found
        return model_format.check(file).memory_bytes(dtype) if dtype else file.stat().st_size
    folder = Path(base)
    if not folder.is_dir() and is_cached(base, "config.json"):
        from huggingface_hub import try_to_load_from_cache

        folder = Path(str(try_to_load_from_cache(base, "config.json"))).parent
    shapes = (entry["shape"] for file in folder.glob("*.safetensors") for entry in _read_header(file)[1])
    return sum(map(math.prod, shapes)) * (4 if dtype == "float32" else 2) or None


def _check_pointer(file: Path) -> None:
    if file.stat().st_size < _POINTER_BYTES and file.read_bytes().startswith(_POINTER):
        raise GenerationError(
            f"{str(file)!r} is a Git LFS pointer and not the file itself; run `git lfs pull` in its folder, or "
            "download the model with `hf download`."
        )


# ---- what is not ---------------------------------------------------------------------------------------------


def _no_model(model: str) -> GenerationError:
    """The error for a name that is no path, no name of Tandem's, and nothing that the hub could know."""
    if model.startswith(("http://", "https://")):
        return GenerationError(
            f"{model!r:.200} is an address on the web, and Tandem loads models of this machine; download its file, "
            "such as with `hf download`, and name that."
        )
    looks_local = os.path.isabs(model) or model.startswith((".", "~")) or model.count("/") > 1
    suffixes = tuple(plugins.find("model_format", name).suffix for name in plugins.names("model_format"))
    if looks_local or model.lower().endswith(suffixes):
        what = "file" if model.lower().endswith(suffixes) else "directory"
        return GenerationError(
            f"{model!r:.200} is neither a model directory nor a hub id: there is no such {what}; "
            f"{suggest_path(Path(model).absolute())}"
        )
    folders = [f"./{entry.name}" for entry in Path().iterdir() if entry.is_dir()]
    if near := find_close(model, (*NAMED_MODELS, *folders)):
        return GenerationError(f"There is no model {model!r:.200}; did you mean {near!r}?")
    if model.lower().startswith(_SERVICES):
        return GenerationError(
            f"{model!r:.200} is a model of a service, and Tandem runs models itself; name a folder, a GGUF file, a hub "
            f'id such as "{_OLLAMA["qwen"]}", or {_NAMES}.'
        )
    if family := next((begin for begin in _OLLAMA if model.lower().startswith(begin)), None):
        return GenerationError(
            f'There is no model {model!r:.200}; if Ollama has downloaded it, name it "ollama:{model:.200}", '
            f'else a GGUF file, a folder, a hub id such as "{_OLLAMA[family]}", or {_NAMES}.'
        )
    return GenerationError(
        f'There is no model {model!r:.200}; name a folder, a GGUF file, a hub id such as "{_OLLAMA["qwen"]}", or '
        f"{_NAMES}."
    )


# ---- the file next to a drafter's weights that names its target ----------------------------------------------


CARD = "drafter.json"


def describe_card(folder: str | Path) -> dict[str, Any]:
    """The description of a drafter for the other party: its target, and the fingerprints of that in each precision.

    Empty for a hub id, and without a card, or with a damaged one.
    """
    try:
        card = json.loads((Path(folder) / CARD).read_text("utf-8"))
        fingerprints = {str(key): str(value) for key, value in card["fingerprints"].items()}
        return {"target": str(card["target"]), "fingerprints": fingerprints}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def find_mismatch(device: Mapping[str, Any], cloud: Mapping[str, Any]) -> str | None:
    """A sentence if the device's model was made to draft for another one than the cloud's; None if not, or unknown.

    device, cloud: as their decoders describe them.
    """
    made_for = device.get("drafter_for") or {}
    recorded, weights = made_for.get("fingerprints", {}).values(), cloud.get("weights_fingerprint")
    if not recorded or not weights or weights in recorded:
        return None
    return (
        f"The drafter {device.get('model')!r} was made for {made_for.get('target')!r}, whose weights differ from those "
        f"of the cloud's {cloud.get('model')!r}; answers are exact, but fewer drafts stand. Train one for it with "
        "`tandem model draft`."
    )


def load_tokenizer(model: str, *, is_local: bool = False) -> tuple[Tokenizer, TokenizerInfo]:
    """The fast tokenizer of `model`, and what comes with it; of an adapter its base's, unless one was saved with it.

    is_local: nothing is downloaded. Raises GenerationError.
    """
    check_directory(model)
    if not os.path.isfile(os.path.join(model, "tokenizer.json")):
        model = base_of(model)
    if (found := file_of(model)) is not None:
        return found[0].load_tokenizer(found[1])
    wrapper = load_wrapper(model, is_local=is_local)
    backend: Tokenizer = wrapper.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    return backend, info_of(wrapper)


def info_of(wrapper: Any) -> TokenizerInfo:
    """The information of a fast tokenizer of transformers."""
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
    with explain_missing(f"The tokenizer of {model!r}", GenerationError), hide_progress_bars():
        from transformers import AutoTokenizer

        try:
            wrapper = AutoTokenizer.from_pretrained(
                model, use_fast=True, trust_remote_code=False, local_files_only=is_local
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
        return AutoConfig.from_pretrained(base_of(model), trust_remote_code=False, local_files_only=is_local)
    except Exception as error:  # anything may come out of a damaged directory
        raise loading_error("configuration", model, error) from None


def _no_tokenizer(model: str, reason: str) -> GenerationError:
    return GenerationError(
        f"{model!r} has no tokenizer ({reason}); save the tokenizer into the model's directory."
    )


def loading_error(what: str, model: str, error: Exception) -> GenerationError:
    """An error of transformers, as one sentence."""
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
    limits = [getattr(config, "max_position_embeddings", None)]
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *parameters.values()):  # some models have one set for each kind of layer
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings"))
    return min((int(limit) for limit in limits if limit), default=None)


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The decoder layers of a model of transformers in order, at whose borders a pass may be abandoned."""
    import torch

    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise GenerationError(
        f"{type(model).__name__} has no list of {count} decoder layers; use another model family."
    )
