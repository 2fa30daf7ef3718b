"""The data that comes with Tandem: two small corpora with questions, a small Llama that reads them, a smaller one that
drafts for it.

Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

BUNDLED = Path(__file__).parent / "bundled"
"""Folder of the bundled corpora: `device/` and `cloud/`, one Markdown file per document, and `questions.jsonl`."""
WEIGHTS = Path(__file__).parent / "reader"
"""Folder of the bundled language model, as AutoModelForCausalLM and AutoTokenizer load it."""
DRAFTER = Path(__file__).parent / "drafter"
"""Folder of the bundled drafter, likewise. Its tokenizer and template are links to those in WEIGHTS."""

DOCUMENT_TEMPLATE = "{document}\n"
QUERY_TEMPLATE = "Question: {query}\nAnswer:"

BUNDLED_MODELS = ("bundled", "bundled-drafter")
"""What the settings call the models that come with Tandem."""


def model_path(model: str) -> str:
    """Folder or hub id of the model that the settings name; a name of `BUNDLED_MODELS` is that of a folder here."""
    return str({"bundled": WEIGHTS, "bundled-drafter": DRAFTER}.get(model, model))
