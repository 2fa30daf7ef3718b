"""The data that comes with Tandem: two small corpora with questions, and a small Llama that reads them.

Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

BUNDLED = Path(__file__).parent / "bundled"
"""Folder of the bundled corpora: `device/` and `cloud/`, one Markdown file per document, and `questions.jsonl`."""
WEIGHTS = Path(__file__).parent / "reader"
"""Folder of the bundled language model, as AutoModelForCausalLM and AutoTokenizer load it."""

DOCUMENT_TEMPLATE = "{document}\n"
QUERY_TEMPLATE = "Question: {query}\nAnswer:"


def model_path(model: str) -> str:
    """Folder or hub id of the model that the settings name; "bundled" is the one in WEIGHTS."""
    return str(WEIGHTS) if model == "bundled" else model
