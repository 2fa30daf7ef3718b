"""From documents and a question to the token rows of one session, cut to the model's context.

A row is two parts, tokenised separately, so that the first (which depends on the document alone) can be cached.
Nothing is cut silently: `Prompt` says which documents were shortened and which found no room at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from tandem.conversation import Message
from tandem.engine.template import DOCUMENT, Template, turn_mark
from tandem.engine.template_tokens import TemplateTokenizer
from tandem.errors import GenerationError


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
        self._template = template
        self._encoder = TemplateTokenizer(tokenizer)
        self._bos = () if template.is_complete else bos
        self._bare = self._bos + tuple(self._encoder.encode(template.bare, {}))
        self._gap = self._encoder.gap(template.document, DOCUMENT)
        self._context_length = context_length
        if template.is_complete:
            self._check_parts()

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Special tokens with which the template ends an answer."""
        end = self._encoder.first_special(self._template.after_answer)
        return () if end is None else (end,)

    def build(
        self,
        query: str | Sequence[int],
        documents: Sequence[str],
        max_new_tokens: int,
        history: Sequence[Message] = (),
    ) -> Prompt:
        """Rows for `documents` and `query` with room for `max_new_tokens`, else GenerationError.

        query: a question, which the template frames; or token ids, which are used as they are. history: turns before
        the question.
        """
        query_tokens = self.question_tokens(query, history) if isinstance(query, str) else tuple(query)
        room = self._room_for_document(len(query_tokens), max_new_tokens, bool(history))
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
            document_tokens=tuple(rows) or (self._bare,),
            query_tokens=query_tokens,
            documents=tuple(numbers),
            truncated=tuple(truncated),
            dropped=tuple(sorted(set(range(len(documents))) - set(numbers))),
        )

    def question_tokens(self, question: str, history: Sequence[Message] = ()) -> tuple[int, ...]:
        """The end of every row: the turns before the question, the question, and what makes the model answer."""
        contents = [*(message.content for message in history), question]
        fill = {turn_mark(number): content for number, content in enumerate(contents)}
        text = self._template.question(len(history))
        return tuple(self._encoder.encode(text, fill, is_within_text=self._template.is_complete))

    def document_tokens(self, document: str) -> tuple[int, ...]:
        """The tokens with which a row of the whole `document` begins.

        GenerationError if they fill the context, or there are none.
        """
        tokens = self._bos + tuple(self._gap.tokens(document))
        if not 0 < len(tokens) < (self._context_length or len(tokens) + 1):
            raise GenerationError(
                f"A document of {len(tokens)} tokens is empty or leaves no room in the context of "
                f"{self._context_length} tokens; cut documents into other chunks."
            )
        return tokens

    def _check_parts(self) -> None:
        """The parts of a row, tokenised separately, must be the tokens of the template's whole text."""
        document, question = "Mira likes puzzle games.", "Which game should Mira try?"
        text = self._template.document + self._template.question(0)
        whole = text.replace(DOCUMENT, document).replace(turn_mark(0), question)
        parts = [*self._gap.tokens(document), *self.question_tokens(question)]
        if parts != self._encoder.encode_whole(whole):
            raise GenerationError(
                "The chat template cannot be used: the tokenizer takes document and question apart differently from "
                'both together; set template to "plain", or to a file with a template of your own.'
            )

    def _room_for_document(self, num_query_tokens: int, max_new_tokens: int, has_history: bool) -> int | None:
        """Tokens of a document's part after beginning-of-sequence, at most; None: no limit."""
        if not self._bare and not num_query_tokens:
            raise GenerationError("The question has no tokens; write a question.")
        if max_new_tokens < 1:
            raise GenerationError(f"max_new_tokens is {max_new_tokens}; set it to at least 1.")
        if self._context_length is None:
            return None
        num_bare = len(self._bare) + num_query_tokens
        if num_bare + max_new_tokens > self._context_length:
            what, remedy = "question", "shorten the question"
            if has_history:
                what, remedy = "conversation", "begin a new one"
            raise GenerationError(
                f"The {what} of {num_bare} tokens and an answer of up to "
                f"{max_new_tokens} tokens do not fit the model's context of {self._context_length}; "
                f"{remedy}, lower max_new_tokens or use a model with a longer context."
            )
        return self._context_length - len(self._bos) - num_query_tokens - max_new_tokens

    def _fit(self, document: str, room: int | None) -> tuple[list[int] | None, bool]:
        """Ids of the document part in at most `room` tokens (None: no room), and whether it is whole."""
        encoding = self._gap.encode(document)
        if room is None or len(encoding.ids) + self._gap.num_fixed <= room:
            return [*self._gap.lead, *encoding.ids, *self._gap.trail], True
        start = len(self._gap.head)
        # Cut the text and not the ids, so that what the template puts after the document stays.
        ends = [end - start for _, end in encoding.offsets]
        num_tokens = min(room, len(ends))
        while num_tokens > 0 and ends[num_tokens - 1] > 0:
            shorter = document[: ends[num_tokens - 1]]
            ids = self._gap.tokens(shorter)
            if len(ids) <= room and len(shorter) < len(document):
                return ids, False
            num_tokens -= max(1, len(ids) - room)
        return None, False
