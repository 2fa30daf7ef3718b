"""The bundled language model: a small Llama that reads one document and a question, and how it was trained.

Importing this package imports neither torch nor transformers.
"""

from pathlib import Path

DOCUMENT_TEMPLATE = "{document}\n"
QUERY_TEMPLATE = "Question: {query}\nAnswer:"

WEIGHTS = Path(__file__).parent / "weights"  # what AutoModelForCausalLM and AutoTokenizer load


def model_path(model: str) -> str:
    """Directory or hub id of the model that the settings name; "bundled" is this one."""
    return str(WEIGHTS) if model == "bundled" else model
