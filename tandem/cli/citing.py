"""`tandem ask --cite`: marks behind what documents said, and a line for each of these documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tandem.citations import SENTENCE_END, Span, find_spans
from tandem.cli.output import PlainText, describe_place, emit
from tandem.events import Event, Source, TokenEvent, cited_tokens


def number_documents(spans: Iterable[Span]) -> dict[int, int]:
    """Numbers from 1 on, in the order in which documents are cited."""
    return {
        document: number for number, document in enumerate(dict.fromkeys(span.document for span in spans), 1)
    }


def mark(text: str, spans: Sequence[Span], start: int = 0, end: int | None = None) -> str:
    """A part of an answer's text with a mark behind each span that ends in it."""
    numbers, pieces, end = number_documents(spans), list[str](), len(text) if end is None else end
    for span in spans:
        if start < span.end <= end:
            pieces += [text[start : span.end], f" [{numbers[span.document]}]"]
            start = span.end
    return "".join([*pieces, text[start:end]])


def cited_lines(spans: Sequence[Span], own: Sequence[Source]) -> list[str]:
    """A line for each document that is cited. own: the documents of the home party."""
    numbers = number_documents(spans)
    if not numbers:
        return ["  nothing: no document of yours has more than half of a word"]
    return [f"  [{number}] {_describe(own, document)}" for document, number in numbers.items()]


def _describe(own: Sequence[Source], document: int) -> str:
    if document >= len(own):
        return "a document whose name is not known"
    source = own[document]
    metadata: Mapping[str, object] = source.metadata or {}
    line = metadata.get("line")
    return describe_place(source.title, source.page, line if isinstance(line, int) else None)


class CitedText(PlainText):
    """Writes an answer with its marks, each sentence once the next one has begun: then it is known who said it."""

    def __init__(self, events: Sequence[Event]) -> None:
        """events: of the answer, to which others are added."""
        super().__init__()
        self._events = events
        self._num_shown = 0  # characters of the answer

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`."""
        whole = "".join(event.text for event in self._events if isinstance(event, TokenEvent)).lstrip()
        ends = [match.end() for match in SENTENCE_END.finditer(whole, self._num_shown)]
        if complete := [end for end in ends if end < len(whole)]:
            self._show(whole, complete[-1])

    def end(self) -> None:
        """Nothing more comes."""
        whole = "".join(event.text for event in self._events if isinstance(event, TokenEvent)).strip()
        self._show(whole, len(whole))
        super().end()

    def _show(self, whole: str, end: int) -> None:
        """Write up to this character."""
        if end > self._num_shown:
            self.has_begun = True
            emit(mark(whole, find_spans(cited_tokens(self._events)), self._num_shown, end), end="")
            self._num_shown = end
