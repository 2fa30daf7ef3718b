"""How a document and a question become the text of one batch row.

A row is two parts, tokenised separately, so that the first (which depends on the document alone) can be
cached. This module makes strings only; it knows nothing of tokens, models or context lengths.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from tandem.errors import GenerationError

TEMPLATE_FILE = "template.json"


@dataclass(frozen=True, slots=True)
class Template:
    """The two parts of a row. GenerationError if a part does not hold its placeholder exactly once."""

    document: str = "{document}\n\n"  # the cacheable part
    query: str = "Question: {query}\nAnswer:"  # what follows it; alone in a row without a document

    def __post_init__(self) -> None:
        for field in fields(self):
            part, placeholder = getattr(self, field.name), "{" + field.name + "}"
            if not isinstance(part, str) or part.count(placeholder) != 1:
                raise GenerationError(
                    f"The template's part {field.name!r} must be a text that holds {placeholder} once, "
                    f"it is {part!r}; correct {TEMPLATE_FILE} in the model's directory."
                )

    @classmethod
    def load(cls, model: str) -> Template:
        """The template in the directory `model`, or the default where there is none (also for a hub id)."""
        path = Path(model) / TEMPLATE_FILE
        if not path.is_file():
            return cls()
        try:
            parts = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise GenerationError(f"{path} must be readable JSON: {error}; correct or delete it.") from None
        known = {field.name for field in fields(cls)}
        if not isinstance(parts, dict) or not set(parts) <= known:
            seen = sorted(parts) if isinstance(parts, dict) else type(parts).__name__
            raise GenerationError(
                f"{path} is an object with keys among {sorted(known)}, it has {seen}; correct or delete it."
            )
        return cls(**parts)

    def document_text(self, document: str) -> str:
        """The cacheable part for one document. Braces in the document are left as they are."""
        return self.document.replace("{document}", document)

    def query_text(self, query: str) -> str:
        """The part after the document."""
        return self.query.replace("{query}", query)

    @property
    def document_start(self) -> int:
        """Number of characters before the document in its part."""
        return self.document.index("{document}")
