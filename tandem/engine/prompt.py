"""From documents and a question to the token rows of one session, cut to the model's context.

A row is two parts, tokenised separately, so that the first (which depends on the document alone) can be cached.
Nothing is cut silently: `Prompt` says which documents were shortened and which found no room at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from tokenizers import Tokenizer

from tandem.errors import GenerationError

TEMPLATE_FILE = "template.json"


@dataclass(frozen=True, slots=True)
class Template:
    """The text of the two parts of a row. GenerationError if a part does not hold its placeholder exactly once."""

    document: str = "{document}\n\n"  # the cacheable part
    query: str = "Question: {query}\nAnswer:"  # what follows it; alone in a row without a document

    def __post_init__(self) -> None:
        for field in fields(self):
            part, placeholder = getattr(self, field.name), "{" + field.name + "}"
            if not isinstance(part, str) or part.count(placeholder) != 1:
                raise GenerationError(
                    f"The template's part {field.name!r} must be a text that holds {placeholder} once, "
                    f"but it is {part!r}; correct {TEMPLATE_FILE} in the model's directory."
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
            raise GenerationError(f"{path} is not readable JSON: {error}; correct or delete it.") from None
        known = {field.name for field in fields(cls)}
        if not isinstance(parts, dict) or not set(parts) <= known:
            seen = sorted(parts) if isinstance(parts, dict) else type(parts).__name__
            raise GenerationError(
                f"{path} must be an object with keys among {sorted(known)}, but it has {seen}; "
                "correct or delete it."
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


@dataclass(frozen=True, slots=True)
class Prompt:
    """The rows of one session; row = document_tokens[row] + query_tokens. Without documents there is one bare row."""

    document_tokens: tuple[tuple[int, ...], ...]  # [rows]: beginning-of-sequence and the document part
    query_tokens: tuple[int, ...]  # the same for all rows
    documents: tuple[int, ...]  # [rows]: which document a row holds; empty for a bare row
    truncated: tuple[int, ...]  # documents whose end was cut off
    dropped: tuple[int, ...]  # documents that found no room, and have no row


class PromptBuilder:
    """Tokenises with one tokenizer and template. bos: ids that open every row, none or one."""

    def __init__(
        self, tokenizer: Tokenizer, template: Template, bos: tuple[int, ...], context_length: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._bos = bos
        self._context_length = context_length
        # What looks like a special token in somebody's document is text, unless the template needs such.
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        parts = template.document + template.query
        tokenizer.encode_special_tokens = not any(token in parts for token in special)

    def build(self, query: str | Sequence[int], documents: Sequence[str], max_new_tokens: int) -> Prompt:
        """Rows for `documents` and `query` with room for `max_new_tokens`, else GenerationError.

        query: a question, which the template frames; or token ids, which are used as they are.
        """
        as_ids = self._encode(self._template.query_text(query)) if isinstance(query, str) else query
        query_tokens = tuple(as_ids)
        room = self._room_for_document(len(query_tokens), max_new_tokens)
        rows: list[tuple[int, ...]] = []
        numbers: list[int] = []
        truncated: list[int] = []
        for number, document in enumerate(documents):
            ids, is_whole = self._fit(document, room)
            if ids is not None:
                rows.append(self._bos + tuple(ids))
                numbers.append(number)
                truncated += [] if is_whole else [number]
        return Prompt(
            document_tokens=tuple(rows) or (self._bos,),
            query_tokens=query_tokens,
            documents=tuple(numbers),
            truncated=tuple(truncated),
            dropped=tuple(sorted(set(range(len(documents))) - set(numbers))),
        )

    def document_tokens(self, document: str) -> tuple[int, ...]:
        """The tokens with which a row of the whole `document` begins.

        GenerationError if they fill the context, or there are none.
        """
        tokens = self._bos + tuple(self._encode(self._template.document_text(document)))
        if not 0 < len(tokens) < (self._context_length or len(tokens) + 1):
            raise GenerationError(
                f"A document of {len(tokens)} tokens is empty or leaves no room in the context of "
                f"{self._context_length} tokens; cut documents into other chunks."
            )
        return tokens

    def _room_for_document(self, num_query_tokens: int, max_new_tokens: int) -> int | None:
        if not self._bos and not num_query_tokens:
            raise GenerationError("The question has no tokens; write a question.")
        if max_new_tokens < 1:
            raise GenerationError(f"max_new_tokens is {max_new_tokens}; set it to at least 1.")
        if self._context_length is None:
            return None
        room = self._context_length - len(self._bos) - num_query_tokens - max_new_tokens
        if room < 0:
            raise GenerationError(
                f"The question of {len(self._bos) + num_query_tokens} tokens and an answer of up to "
                f"{max_new_tokens} tokens do not fit the model's context of {self._context_length}; "
                "shorten the question, lower max_new_tokens or use a model with a longer context."
            )
        return room

    def _fit(self, document: str, room: int | None) -> tuple[list[int] | None, bool]:
        """Ids of the document part in at most `room` tokens (None: no room), and whether it is whole."""
        encoding = self._tokenizer.encode(self._template.document_text(document), add_special_tokens=False)
        if room is None or len(encoding.ids) <= room:
            return list(encoding.ids), True
        start = self._template.document_start
        # Cut the text and not the ids, so that what the template puts after the document stays.
        ends = [end - start for _, end in encoding.offsets]
        num_tokens = min(room, len(ends))
        while num_tokens > 0 and ends[num_tokens - 1] > 0:
            shorter = document[: ends[num_tokens - 1]]
            ids = self._encode(self._template.document_text(shorter))
            if len(ids) <= room and len(shorter) < len(document):
                return ids, False
            num_tokens -= max(1, len(ids) - room)
        return None, False

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
