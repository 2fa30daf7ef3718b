"""From documents and a question to the token rows of one session, cut to the model's context.

Rows are lists of ids; batching, padding and the cache come later. Nothing is cut silently: `Prompt` says
which documents were shortened and which found no room at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from tandem.engine.template import Template
from tandem.errors import GenerationError


@dataclass(frozen=True, slots=True)
class Prompt:
    """The rows of one session; row = prefixes[row] + query. Without documents there is one bare row."""

    prefixes: tuple[tuple[int, ...], ...]  # [rows]: beginning-of-sequence and the document part
    query: tuple[int, ...]  # the same for all rows
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

        query: a question, which the template frames; or token ids, which stand as they are.
        """
        as_ids = self._encode(self._template.query_text(query)) if isinstance(query, str) else query
        query_ids = tuple(as_ids)
        room = self._room_for_document(len(query_ids), max_new_tokens)
        kept: list[tuple[int, tuple[int, ...]]] = []
        truncated: list[int] = []
        for index, document in enumerate(documents):
            ids, is_whole = self._fit(document, room)
            if ids is not None:
                kept.append((index, self._bos + tuple(ids)))
                truncated += [] if is_whole else [index]
        rows = tuple(index for index, _ in kept)
        has_row = set(rows)
        return Prompt(
            prefixes=tuple(prefix for _, prefix in kept) or (self._bos,),
            query=query_ids,
            documents=rows,
            truncated=tuple(truncated),
            dropped=tuple(index for index in range(len(documents)) if index not in has_row),
        )

    def prefix(self, document: str) -> tuple[int, ...]:
        """The tokens with which a row of the whole `document` begins; GenerationError beyond the context."""
        tokens = self._bos + tuple(self._encode(self._template.document_text(document)))
        if not 0 < len(tokens) < (self._context_length or len(tokens) + 1):
            raise GenerationError(
                f"A document's prefix has at least 1 token and leaves room in the context of "
                f"{self._context_length} tokens, this one has {len(tokens)}; cut documents into other chunks."
            )
        return tokens

    def _room_for_document(self, num_query_tokens: int, max_new_tokens: int) -> int | None:
        if not self._bos and not num_query_tokens:
            raise GenerationError("A question has at least one token, this one has none; write a question.")
        if max_new_tokens < 1:
            raise GenerationError(f"max_new_tokens is at least 1, it is {max_new_tokens}; set it higher.")
        if self._context_length is None:
            return None
        room = self._context_length - len(self._bos) - num_query_tokens - max_new_tokens
        if room < 0:
            raise GenerationError(
                f"A question and its answer must fit the model's context of {self._context_length} tokens, "
                f"the question has {len(self._bos) + num_query_tokens}, max_new_tokens is {max_new_tokens}; "
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
