"""The usual pipeline of an embedder, run by transformers alone: an encoder, pooling and perhaps normalisation.

sentence-transformers runs every pipeline, but brings its trainers with it, scikit-learn, SciPy and peft: 110 MB and
a second of a processor in every process that embeds. A folder that it has written with the usual pipeline is read
here instead. Vectors and fingerprint are the library's to the bit, so indexes stay valid; wherever a folder says
something unusual, `read_recipe` leaves it to the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel, AutoTokenizer

FAMILIES = ("bert", "distilbert", "mpnet", "roberta", "xlm-roberta")
"""Encoders (`model_type`) whose vectors are tested against the library's."""
USUAL: dict[str, dict[str, Any]] = {
    "pipeline": {"model_type": "SentenceTransformer", "default_prompt_name": None, "truncate_dim": None},
    "Transformer": {
        "do_lower_case": False,
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    },
    "Pooling": {"include_prompt": True},
    "Normalize": {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"},
}
"""The settings that a pipeline and its modules may have; another name or value makes the pipeline unusual."""
WITHOUT_EFFECT = ("__version__", "prompts", "similarity_fn_name")
"""Settings of a pipeline that do not touch vectors; a prompt does only where a text names it, or by default."""
MODE_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""How versions before 6 write the mode of pooling: one key for each."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A usual pipeline, as its folder describes it."""

    folder: Path
    stages: tuple[tuple[str, str], ...]  # name of each module and, for pooling, its mode
    dimension: int  # of a vector
    max_tokens: int | None  # of a text, special tokens included; None leaves it to tokenizer and model


class PlainPipeline:
    """The pipeline of a recipe, loaded. Not safe for several threads at once."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        """Raises whatever transformers raises for damaged files."""
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        config = AutoConfig.from_pretrained(recipe.folder, **local)
        model: Any = AutoModel.from_pretrained(recipe.folder, config=config, **local)
        limit = {} if recipe.max_tokens is None else {"model_max_length": recipe.max_tokens}
        self.tokenizer: Any = AutoTokenizer.from_pretrained(recipe.folder, **limit, **local)
        if not limit:
            longest = min(self.tokenizer.model_max_length, config.max_position_embeddings)
            self.tokenizer.model_max_length = longest
        self.stages = list(recipe.stages)
        self.dimension = recipe.dimension
        self._model = model.eval().to(device)
        self._pool = POOLING[recipe.stages[1][1]]
        self._is_normalized = len(recipe.stages) > 2

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a text that count."""
        limit: int | None = self.tokenizer.model_max_length
        return limit

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The weights, in the model's order."""
        parameters: Iterator[torch.nn.Parameter] = self._model.parameters()
        return parameters

    def encode(self, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Unit vectors [len(texts), dimension]. The longest texts come first, in the library's batches: a text's last
        bits may depend on its neighbours.
        """
        vectors = np.empty((len(texts), self.dimension), np.float32)
        order = np.argsort([-len(text) for text in texts])
        for start in range(0, len(texts), batch_size):
            rows = order[start : start + batch_size]
            vectors[rows] = self._encode_batch([texts[row] for row in rows])
        return vectors

    @torch.inference_mode()
    def _encode_batch(self, texts: list[str]) -> NDArray[np.float32]:
        tokens = self.tokenizer(texts, padding=True, truncation="longest_first", return_tensors="pt")
        tokens = tokens.to(self._model.device)
        hidden = self._model(**tokens).last_hidden_state  # [n, tokens, dimension]
        pooled = self._pool(hidden, tokens["attention_mask"])  # [n, dimension]
        if self._is_normalized:
            pooled = normalize(pooled, p=2, dim=-1)
        vectors: NDArray[np.float32] = normalize(pooled, p=2, dim=1).float().cpu().numpy()
        return vectors


# ---- pooling: hidden [n, tokens, dimension] and mask [n, tokens] to [n, dimension] ---------------------------


def _first(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of the first token that is no padding, which may be on the left."""
    return hidden[torch.arange(len(hidden)), mask.to(torch.int).argmax(dim=1)]


def _largest(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)


def _mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Added up in float32 at least."""
    sums = torch.promote_types(hidden.dtype, torch.float32)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    total = (hidden * weights).sum(dim=1, dtype=sums)
    return (total / weights.sum(dim=1, dtype=sums).clamp(min=1e-9)).to(hidden.dtype)


POOLING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": _first,
    "max": _largest,
    "mean": _mean,
}
"""By the library's names of modes."""


# ---- what a folder says --------------------------------------------------------------------------------------


def read_recipe(folder: Path) -> Recipe | None:
    """The pipeline of a folder; None if it is unusual, or damaged, of which the library says more."""
    try:
        return _read_recipe(folder)
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return None


def _read_recipe(folder: Path) -> Recipe | None:
    modules = _read(folder / "modules.json")
    names = [_class_name(module) for module in modules]
    if (
        names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
        or modules[0]["path"]
    ):
        return None
    pipeline = _read(folder / "config_sentence_transformers.json", is_optional=True)
    transformer = _read(folder / "sentence_bert_config.json")
    if not transformer:  # the library goes on to files of other names
        return None
    pooling = _read(folder / modules[1]["path"] / "config.json")
    rest = [_read(folder / module["path"] / "config.json", is_optional=True) for module in modules[2:]]
    for key in WITHOUT_EFFECT:
        pipeline.pop(key, None)
    max_tokens = transformer.pop("max_seq_length", None)
    mode = _take_mode(pooling)
    dimension = pooling.pop("word_embedding_dimension", None) or pooling.pop("embedding_dimension")
    settings = dict(zip(("pipeline", *names), (pipeline, transformer, pooling, *rest), strict=True))
    is_usual = all(values.items() <= USUAL[kind].items() for kind, values in settings.items())
    if not is_usual or mode not in POOLING or not _is_known_model(folder):
        return None
    stages = tuple((name, mode if name == "Pooling" else "") for name in names)
    return Recipe(folder, stages, dimension, max_tokens)


def _read(path: Path, *, is_optional: bool = False) -> Any:
    return {} if is_optional and not path.exists() else json.loads(path.read_text("utf-8"))


def _class_name(module: dict[str, Any]) -> str:
    """Of a module of the library, which has moved its classes around but kept their names; "" for any other."""
    package, _, name = module["type"].rpartition(".")
    is_plain = package.startswith("sentence_transformers.") and module.keys() <= {
        "idx",
        "name",
        "path",
        "type",
    }
    return name if is_plain else ""


def _take_mode(pooling: dict[str, Any]) -> str:
    """The mode, whose keys are removed; several at once have no name here."""
    flags = [mode for key, mode in MODE_KEYS.items() if pooling.pop(key, False)]
    mode = pooling.pop("pooling_mode", flags or "mean")
    return mode if isinstance(mode, str) else "+".join(mode)


def _is_known_model(folder: Path) -> bool:
    """Whether the encoder is one of FAMILIES, without code, adapter or processor of its own."""
    config = _read(folder / "config.json")
    has_more = any(folder.glob("*processor_config.json")) or (folder / "adapter_config.json").exists()
    return config["model_type"] in FAMILIES and "auto_map" not in config and not has_more
