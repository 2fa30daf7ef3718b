"""Prompts, from documents and a question to the token rows of one session, cut to the model's context.

A row is two parts, tokenised separately, so that the first (which depends on the document alone) can be cached. The
white space between them goes to the part with which the tokenizer takes most texts apart as it takes them together;
where it never does, the row is a little unlike the whole text, and just as good.
Nothing is cut silently: `Prompt` says which documents were shortened and which found no room at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import product, takewhile

from tokenizers import Tokenizer

from tandem.conversation import Frame, Message
from tandem.engine.port import Row
from tandem.engine.template import (
    DOCUMENT,
    SAMPLE,
    Place,
    Template,
    TemplateTokenizer,
    TextTokenizer,
    turn_mark,
)
from tandem.errors import Code, GenerationError

_ENDS = ("Mira likes puzzle games.", "Mira likes puzzle games", "Mira likes (puzzle) games (2)", "日本語")
_BEGINNINGS = ("Which game should Mira try?", "3 games?", '"Which" game?', "日本語")
"""How documents end and questions begin: the border between the two is where a tokenizer cuts most of these pairs."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The rows of one session; row = document_tokens[row] + query_tokens. Without documents there is one bare row."""

    document_tokens: tuple[tuple[int, ...], ...]  # [rows]: beginning-of-sequence and the document part
    query_tokens: tuple[int, ...]  # the same for all these rows
    documents: tuple[int, ...]  # [rows]: which document a row holds; empty for a bare row
    truncated: tuple[int, ...]  # documents whose end was cut off to fit the context
    dropped: tuple[int, ...]  # documents that found no room, and have no row
    num_question: int = 0  # of the query's tokens, those of the last question and what follows it

    @property
    def num_rows(self) -> int:
        """At least 1."""
        return len(self.document_tokens)

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about documents of which not everything is read."""
        what = (
            (self.truncated, "documents were cut at their end to fit the model's context."),
            (self.dropped, "documents were left out: they do not fit the model's context."),
        )
        return [f"{len(which)} {happened}" for which, happened in what if which]

    def rows(self, num_stored: int | None = None) -> list[Row]:
        """The rows as a runner takes them. num_stored: those whose document's cache is worth keeping, the first ones of
        those that are whole; None: all that are."""
        whole = [document not in self.truncated for document in self.documents] or [True]
        stored = [is_whole and (num_stored is None or row < num_stored) for row, is_whole in enumerate(whole)]
        end, rest = (None, self.query_tokens) if self.query_tokens else (-1, ())
        return [
            Row(tokens[:end], rest or tokens[-1:], is_kept)
            for tokens, is_kept in zip(self.document_tokens, stored, strict=True)
        ]


SAMPLE_CHARS = 16
"""Characters of a long text for each token of the context that are tokenised to see whether the rest matters."""
BORDER_CHARS = 400
"""Before the border of a row's parts: what is tokenised to see how the tokenizer cuts there."""
MAX_FRAMES = 16
"""Frames of queries whose prompts' fixed parts are kept."""
MIN_ANSWER = 64
"""Tokens of an answer that come before documents where the context is short."""


class PromptBuilder:
    """Tokenises with one tokenizer and template."""

    def __init__(
        self, tokenizer: Tokenizer, template: Template, bos: tuple[int, ...], context_length: int | None
    ) -> None:
        """bos: special tokens that may open a row; one of a template that is not complete begins with those of them
        that the tokenizer itself puts before a text."""
        self._context_length = context_length
        begin = takewhile(lambda token: token in bos, tokenizer.encode("x").ids)
        self._bos = () if template.is_complete else tuple(begin)
        written = template.document + template.bare + template.question(SAMPLE)[0]
        self._encoder = TemplateTokenizer(tokenizer, written)
        self._framed = lru_cache(MAX_FRAMES)(self._with_frame)
        self._set_template(template)

    def _set_template(self, template: Template) -> None:
        self._template = template
        self._bare = self._bos + tuple(self._encoder.encode(template.bare, template.texts))
        text = template.document
        ends = range(len(text), len(text.rstrip()) - 1, -1)
        places: tuple[Place, ...] = ("text", "marker") if template.is_complete else ("start",)
        borders = product([(text[:end], text[end:]) for end in ends], places)
        # The first of equals: the latest border.
        (document, lead), place = max(
            borders, key=lambda each: self._count_agreements(each[0][0], each[0][1], each[1])
        )
        self._gap = self._encoder.gap(document, DOCUMENT, template.texts)
        self._lead, self._place = lead, place
        self._bare_place = max(
            places, key=lambda place: self._count_agreements(template.bare, "", place, ends=("",))
        )

    def within(self, frame: Frame) -> PromptBuilder:
        """The prompts of queries with this frame; those of the last few frames are kept."""
        return self._framed(frame)

    def _with_frame(self, frame: Frame) -> PromptBuilder:
        template = self._template.within(frame)
        if template is self._template:
            return self
        builder = copy(self)
        builder._set_template(template)
        return builder

    @property
    def text_tokenizer(self) -> TextTokenizer:
        """For what others write into an answer."""
        return self._encoder.within_text

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Markers with which the template ends an answer, or begins the next turn."""
        return tuple(sorted(set(self._encoder.markers(self._template.after_answer))))

    def build(
        self,
        query: str | Sequence[int],
        documents: Sequence[str],
        max_new_tokens: int,
        history: Sequence[Message] = (),
    ) -> Prompt:
        """Rows for `documents` and `query` with room for `max_new_tokens`, else GenerationError.

        query: a question, which the template frames; or token ids, which are used as they are. documents: an empty one
        has a bare row. history: turns before the question.
        """
        if self._is_hopeless(query, history):
            what, remedy = ("conversation", "begin a new one") if history else ("question", "shorten it")
            raise _too_long(
                f"The {what} has more than twice the {self._context_length} tokens of the model's context; {remedy}, "
                "or use a model with a longer context."
            )
        bare_query_tokens = self.question_tokens(query, history) if isinstance(query, str) else tuple(query)
        query_tokens = bare_query_tokens
        if isinstance(query, str) and documents and (self._lead or self._place != self._bare_place):
            query_tokens = self.question_tokens(query, history, follows_document=True)
        num_query_tokens = max(len(query_tokens), len(bare_query_tokens))
        room = self._room_for_document(num_query_tokens, max_new_tokens, bool(history))
        rows: list[tuple[int, ...]] = []
        numbers: list[int] = []
        truncated: list[int] = []
        for number, document in enumerate(documents):
            ids, is_whole = self._fit(document, room) if document else (self._bare[len(self._bos) :], True)
            if ids is not None:
                rows.append(self._bos + tuple(ids))
                numbers.append(number)
                truncated += [] if is_whole else [number]
        query_tokens = query_tokens if rows else bare_query_tokens
        return Prompt(
            document_tokens=tuple(rows) or (self._bare,),
            query_tokens=query_tokens,
            documents=tuple(numbers),
            truncated=tuple(truncated),
            dropped=tuple(sorted(set(range(len(documents))) - set(numbers))),
            num_question=len(query_tokens) - self._count_before_question(history),
        )

    def answer_room(self, query: str | Sequence[int], context: int, history: Sequence[Message] = ()) -> int:
        """Tokens that an answer may have in so much context: half of what the question leaves, or MIN_ANSWER where that
        is less; at least 1. The rest is for documents."""
        if self._is_hopeless(query, history):
            return 1
        if isinstance(query, str):
            rows = [self.question_tokens(query, history, follows_document=place) for place in (False, True)]
        else:
            rows = [tuple(query)]
        left = context - len(self._bare) - max(map(len, rows))
        return max(left // 2, min(left, MIN_ANSWER), 1)

    def _is_hopeless(self, query: str | Sequence[int], history: Sequence[Message]) -> bool:
        """Whether the beginning of one text fills the context twice, so that the rest need not be tokenised."""
        if self._context_length is None or not isinstance(query, str):
            return False
        num_chars = SAMPLE_CHARS * self._context_length
        mark = turn_mark(0)
        return any(
            len(self._encoder.encode(mark, {mark: text[:num_chars]})) > 2 * self._context_length
            for text in (query, *(message.content for message in history))
            if len(text) > num_chars
        )

    def question_tokens(
        self, question: str, history: Sequence[Message] = (), *, follows_document: bool = False
    ) -> tuple[int, ...]:
        """The end of a row: the turns before the question, the question, and what makes the model answer.

        follows_document: as in a row with a document; a bare row's begins elsewhere.
        """
        text, fill = self._template.question([*history, Message("user", question)])
        if follows_document:
            return tuple(self._encoder.encode(self._lead + text, fill, self._place))
        return tuple(self._encoder.encode(text, fill, self._bare_place))

    def _count_before_question(self, history: Sequence[Message]) -> int:
        """Count, roughly, the tokens of a query that belong to earlier turns."""
        if not history:
            return 0
        text, fill = self._template.question([*history, Message("user", "")])
        before, _, _ = text.partition(turn_mark(len(history)))
        return len(self._encoder.encode(before, fill, self._bare_place))

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

    def _count_agreements(self, before: str, lead: str, place: Place, ends: tuple[str, ...] = _ENDS) -> int:
        """Count the pairs of a document and a question whose parts have the tokens of the whole text."""
        question, texts = self._template.question([Message("user", "")])
        question = lead + question
        far, mark, near = before.partition(DOCUMENT)
        before = far[-BORDER_CHARS:] + mark + near
        count = 0
        for end, beginning in product(ends, _BEGINNINGS):
            fill = {**texts, DOCUMENT: end, turn_mark(0): beginning}
            parts = self._encoder.encode(before, fill) + self._encoder.encode(question, fill, place)
            count += parts == self._encoder.encode_whole(before + question, fill)
        return count

    def _room_for_document(self, num_query_tokens: int, max_new_tokens: int, has_history: bool) -> int | None:
        """The most tokens of a document's part after beginning-of-sequence; None: no limit."""
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
            if max_new_tokens == 1:
                raise _too_long(
                    f"The {what} of {num_bare} tokens does not fit the model's context of {self._context_length} with "
                    f"an answer; {remedy}, or use a model with a longer context."
                )
            raise _too_long(
                f"The {what} of {num_bare} tokens and an answer of up to {max_new_tokens} tokens do not fit the "
                f"model's context of {self._context_length}; {remedy}, lower max_new_tokens or use a model with a "
                "longer context."
            )
        return self._context_length - len(self._bos) - num_query_tokens - max_new_tokens

    def _fit(self, document: str, room: int | None) -> tuple[Sequence[int] | None, bool]:
        """Ids of the document part in at most `room` tokens (None: no room), and whether it is whole."""
        encoding = self._gap.encode(document)
        whole = [*self._gap.lead, *encoding.ids, *self._gap.trail]
        if room is None or len(whole) <= room:
            return whole, True
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


def _too_long(sentence: str) -> GenerationError:
    return GenerationError(sentence, code=Code.TOO_LONG, option="question")
