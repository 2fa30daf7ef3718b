"""One answer at the terminal: its events as they come, a summary of them, and the documents that said its words."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tandem.citations import SENTENCE_END, Span
from tandem.cli.output import (
    PlainText,
    StageLog,
    describe_place,
    describe_score,
    emit,
    is_scored,
    open_console,
    plural,
    printable,
    text_lines,
)
from tandem.client.answers import describe_citations
from tandem.client.ask import find_support
from tandem.events import (
    Answer,
    DoneEvent,
    EstimateEvent,
    Event,
    PeerEvent,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    StepEvent,
    TokenEvent,
    WaitEvent,
    assemble,
    cited_tokens,
)
from tandem.support import UNSUPPORTED, supported_spans
from tandem.topology import PARTIES, SERVER, Party

if TYPE_CHECKING:
    from tandem.config.schema import DecodingConfig


def mark(text: str, spans: Sequence[Span], start: int = 0, end: int | None = None) -> str:
    """A part of an answer's text with a mark behind each span that ends in it."""
    numbers, pieces, end = _numbers(spans), list[str](), len(text) if end is None else end
    for span in spans:
        if start < span.end <= end:
            pieces += [text[start : span.end], f" [{numbers[span.document]}]"]
            start = span.end
    return "".join([*pieces, text[start:end]])


def cited_lines(answer: Answer) -> list[str]:
    """A line for each document that is cited; where nothing supports the answer, for each whose number a sentence may
    have had before that was known."""
    support, spans, lines, about = answer.support, answer.citations, list[str](), ""
    if support and support.is_supported is False:
        spans = supported_spans(answer.tokens, replace(support, is_supported=None))
        lines, about = ["  nothing: none of your documents says this"], "was read: "
    elif not spans:
        return ["  nothing: no document of yours has more than half of a word"]
    names = dict(enumerate(map(_describe, answer.own_sources)))
    return lines + [
        f"  [{number}] {about}{names.get(document, 'a document whose name is not known')}"
        for document, number in _numbers(spans).items()
    ]


def _numbers(spans: Sequence[Span]) -> dict[int, int]:
    documents = dict.fromkeys(span.document for span in spans)
    return {document: number for number, document in enumerate(documents, 1)}


def _describe(source: Source) -> str:
    return describe_place(source.title, source.page, (source.metadata or {}).get("line"))


class CitedText(PlainText):
    """Writes an answer with its marks, each sentence once the next one has begun: then it is known who said it."""

    def __init__(self, events: Sequence[Event], question: str) -> None:
        """events: of the answer, to which others are added."""
        super().__init__()
        self._events, self._question = events, question
        self._num_shown = 0  # characters of the answer

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`."""
        whole = self._text().lstrip()
        ends = [match.end() for match in SENTENCE_END.finditer(whole, self._num_shown)]
        if complete := [end for end in ends if end < len(whole)]:
            self._show(whole, complete[-1])

    def end(self) -> None:
        """Nothing more comes."""
        whole = self._text().strip()
        self._show(whole, len(whole))
        super().end()

    def _text(self) -> str:
        return "".join(event.text for event in self._events if isinstance(event, TokenEvent))

    def _show(self, whole: str, end: int) -> None:
        if end > self._num_shown:
            self.has_begun = True
            spans = supported_spans(cited_tokens(self._events), find_support(self._question, self._events))
            emit(mark(whole, spans, self._num_shown, end), end="")
            self._num_shown = end


DEGRADED, CUT = 3, 4  # exit codes of answers that are there, and not as they should be


def exit_code(answer: Answer) -> int:
    """0 for a whole answer of all parties; 1 for one that was cancelled."""
    return {"cancelled": 1, "length": CUT}.get(answer.reason, DEGRADED * answer.is_degraded)


SHOWN_IDS = 3
"""Opaque ids shown to a person; --json holds all."""


class Transcript:
    """The events of one answer, for people and as JSON."""

    def __init__(
        self, question: str, seed: int, only: str | None, decoding: DecodingConfig, events: Sequence[Event]
    ) -> None:
        """only: the party that was to answer alone. events: all of them."""
        from tandem.config.schema import DecodingConfig, placement_of

        done = events[-1]
        assert isinstance(done, DoneEvent)  # a stream ends with it
        self.question, self.events, self.done = question, events, done
        self.answer = assemble(events, done, seed)
        # of the last of its queries, as the answer of several voters tells how much each one weighs
        if self.answer.steps and not any(token.log_weights for token in self.answer.tokens):
            decoding = DecodingConfig(mode="speculative")
        self._decoding = decoding
        self._placement = placement_of(decoding)
        self._alone, self._is_asked_alone = only, only is not None
        if (
            only is None
            and self.answer.tokens
            and not (self.answer.is_degraded or done.statistics.sent_bytes)
        ):
            self._alone = self.answer.tokens[0].aggregator  # its peer had nothing to add

    def as_dict(self) -> dict[str, Any]:
        """The transcript as --json prints it."""
        answer = self.answer
        return {
            "question": self.question,
            "answer": answer.text,
            "reason": answer.reason,
            "error": self.done.error,
            "seed": answer.seed,
            "placement": self._placement,
            "alone": self._alone,
            "sources": answer.sources,
            "notes": answer.notes,
            "citations": describe_citations(answer.citations, answer.sources),
            "support": answer.support,
            "steps": answer.steps,
            "shares": answer.shares,
            "statistics": answer.statistics,
            "tokens": answer.tokens,
            "placements": answer.placements,
            "estimates": [_compact(event) for event in answer.estimates],
            "provisional": list(self._provisional()),
        }

    def _provisional(self) -> Iterator[dict[str, Any]]:
        """The drafts shown, and those withdrawn, each with the number of tokens committed by then."""
        num_committed = 0
        for event in self.events:
            num_committed += isinstance(event, TokenEvent)
            if isinstance(event, ProvisionalEvent | RetractEvent):
                kind = "provisional" if isinstance(event, ProvisionalEvent) else "retract"
                yield {"event": kind, "committed": num_committed, **asdict(event)}

    def source_lines(self, *, with_passages: bool = False) -> list[str]:
        """One line for each document with a title, best first; one per party for those whose titles stay there.

        with_passages: below each line the text that the model read.
        """
        sources = self.answer.sources
        if not sources:
            return ["  none: the models answered from the question alone"]
        parties = dict.fromkeys([*PARTIES, *(source.party for source in sources)])
        return [line for party in parties for line in self._lines_of(party, with_passages)]

    def _lines_of(self, party: str, with_passages: bool) -> Iterator[str]:
        own = sorted(
            (source for source in self.answer.sources if source.party == party),
            key=lambda source: -source.score if is_scored(source.score) else math.inf,
        )
        for source in own:
            if source.title is not None:
                columns = f"{party:<6}", describe_score(source.score), _describe(source)
                yield "  " + "  ".join(filter(None, columns))
                if with_passages and source.text is not None:
                    yield from text_lines(source.text)
        ids = [source.id for source in own if source.title is None]
        if ids:
            more = f", and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
            stay = "stays" if len(ids) == 1 else "stay"
            yield f"  {party:<6}  {plural(len(ids), 'document')} that {stay} there: {', '.join(ids[:SHOWN_IDS])}{more}"

    def statistics_lines(self) -> list[str]:
        """The compact table below an answer."""
        return [f"  {name:<9}  {value}" for name, value in self._rows()]

    def _rows(self) -> Iterator[tuple[str, str]]:
        tokens, statistics = self.answer.tokens, self.answer.statistics
        count, reason = len(tokens), self.answer.reason
        ended = f", ended by {_ENDS[reason]}" if reason in _ENDS else ""
        yield "tokens", f"{count} in {_seconds(statistics.total_s)}{ended}"
        yield "time", f"first token after {_seconds(statistics.first_token_s)}, then {_per_token(tokens)}"
        if self._alone is not None:
            if self._is_asked_alone:
                yield "alone", f"the {self._alone} answered by itself, nothing crossed the link"
            yield "seed", str(self.answer.seed)
            return
        yield "accepted", self._accepted(statistics, count)
        if shares := self.answer.shares:
            weights = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
            yield "votes", f"weigh {weights}"
        sent, received = _per(statistics.sent_bytes, count), _per(statistics.received_bytes, count)
        rtt = "unknown" if math.isnan(statistics.rtt_s) else f"{1000 * statistics.rtt_s:.1f} ms"
        yield "link", f"{sent} bytes out and {received} in per token, RTT {rtt}"
        num_handovers = sum(switch.step < count for switch in self.answer.placements)
        handovers = f", {plural(num_handovers, 'handover')}" if num_handovers else ""
        yield "placement", f"{self._placement}{handovers}"
        yield "verdicts", self._verdicts()
        if statistics.degraded_from is not None:
            yield "degraded", self._degraded(statistics.degraded_from)
        if statistics.num_late_votes:
            share = f"{statistics.num_late_votes} of {count} tokens"
            yield "patience", f"{share} without the cloud's vote, later than {self._decoding.patience_s:g} s"
        yield "seed", str(self.answer.seed)

    def _degraded(self, step: int) -> str:
        if self._placement != SERVER:
            who, missing = "the device", "the cloud"
        elif (alone := self.answer.tokens[step].aggregator) == SERVER:
            who, missing = "the others", "a worker"
        else:
            who, missing = alone, "the server"
        return f"from token {step} on {who} answered without {missing}"

    def _accepted(self, statistics: SessionStatistics, count: int) -> str:
        """A line on whose drafts the tokens are. In mode speculative the cloud verifies and drafts nothing."""
        device = _share(statistics.num_device_accepted, count)
        if self._placement == SERVER:
            return f"{device} of the server's drafts"
        if self._decoding.mode == "speculative":
            return f"{device} of the tokens as the device proposed them, the others are the cloud's"
        return f"device {device}, cloud {_share(statistics.num_cloud_accepted, count)}"

    def _verdicts(self) -> str:
        tokens = self.answer.tokens
        if self._placement == "mirror":
            num_solo = sum(event.is_alone for event in tokens)
            solo = f", except {num_solo} by the device alone" if num_solo else ""
            return f"each party decided all {len(tokens)} itself{solo}"
        deciders = Counter(event.aggregator for event in tokens)
        return ", ".join(f"{party} {number}" for party, number in deciders.items())


_ENDS = {
    "length": "its limit",
    "stop": "a stop text",
    "loop": "the rule against loops, since it repeats itself",
    "cancelled": "cancellation",
    "failed": "a failure",
}


def _compact(event: EstimateEvent) -> dict[str, Any]:
    """The fields of an estimate that are known, to the microsecond."""
    values: dict[str, Any] = {}
    for key, value in asdict(event).items():
        if isinstance(value, float):
            if math.isfinite(value):
                values[key] = round(value, 6)
        elif value != ():
            values[key] = value
    return values


def _seconds(duration_s: float) -> str:
    return "?" if math.isnan(duration_s) else f"{duration_s:.2f} s"


def _per_token(tokens: Sequence[TokenEvent]) -> str:
    """Time from commit to commit; undefined for fewer than two tokens."""
    if len(tokens) < 2:
        return "no other"
    return f"{1000 * (tokens[-1].committed_s - tokens[0].committed_s) / (len(tokens) - 1):.0f} ms each"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _per(total: int, count: int) -> str:
    return f"{total / count:.0f}" if count else "-"


def follow(
    stream: Iterable[Event],
    log: StageLog,
    *,
    provisional: bool = False,
    is_silent: bool = False,
    cite: str = "",
) -> list[Event]:
    """All events of an answer, once each was printed as it came. Raises TandemError.

    provisional: show drafts too, on a terminal. is_silent: print no text. cite: the question, where its answer
    is to have marks.
    """
    events = list[Event]()
    can_redraw = sys.stdout.isatty() and not open_console().is_dumb_terminal
    live = LiveText() if provisional and not is_silent and can_redraw else None
    text = live or (CitedText(events, cite) if cite and not is_silent else PlainText(is_silent=is_silent))
    late_notes: list[str] = []  # those that come amid the text are printed after it
    try:
        for event in stream:
            events.append(event)
            match event:
                case TokenEvent():
                    text.commit(event.step, event.text)
                case ProvisionalEvent() if live:
                    live.propose(event.step, event.text)
                case RetractEvent() if live:
                    live.retract(event.step)
                case SourcesEvent() if text.has_begun:
                    late_notes += _notes(event)
                case DoneEvent() if event.support and event.support.is_supported is False:
                    late_notes.append(UNSUPPORTED)
                case _:
                    lines = list(_lines(event))
                    if live and lines and not log.is_quiet:
                        live.interrupt()
                    for line in lines:
                        log(line)
    finally:
        text.end()
        for note in late_notes:
            log(note)
    return events


def _notes(event: SourcesEvent) -> list[str]:
    return [f"{event.party}: {note}" for note in event.notes]


def _lines(event: Event) -> Iterator[str]:
    """Lines that a person should see at once, apart from the text."""
    match event:
        case SourcesEvent():
            duration = "" if math.isnan(event.retrieve_s) else f" in {event.retrieve_s:.2f} s"
            yield f"{event.party}: {plural(len(event.sources), 'document')}{duration}"
            yield from _notes(event)
        case StepEvent():
            yield str(event)
        case WaitEvent():
            yield f"queue: this query waits until an open one ends ({event.num_ahead} before it)"
        case PeerEvent(is_alone=True):
            reason = f" ({event.reason})" if event.reason else ""
            alone = {
                Party.CLOUD: "the device continues alone",
                SERVER: "the worker that is asked continues alone",
            }
            who = alone.get(event.party, "the others go on")
            yield f"{event.party}: lost at token {event.step}, {who}{reason}"
        case PeerEvent():
            yield f"{event.party}: back at token {event.step}"


class LiveText:
    """The twin of PlainText on a terminal: provisional text stands dimmed behind the committed text until it is
    committed or retracted. Lines that are complete scroll up; the last one is redrawn with what follows it, so it needs
    a terminal that can take text back."""

    def __init__(self) -> None:
        from rich.live import Live

        self.has_begun = False
        self._console = open_console()
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._line = ""  # committed text of the last line so far
        self._pieces: dict[int, str] = {}  # provisional, by step

    def propose(self, step: int, text: str) -> None:
        """A provisional token adds `text`."""
        self._pieces[step] = printable(text)
        self._draw()

    def retract(self, step: int) -> None:
        """Provisional text from `step` on is void."""
        self._pieces = {before: text for before, text in self._pieces.items() if before < step}
        self._draw()

    def commit(self, step: int, text: str) -> None:
        """A committed token adds `text`, in the place of its provisional piece."""
        self._pieces.pop(step, None)
        text = printable(text)
        self._line += text if self.has_begun else text.lstrip()
        self.has_begun = self.has_begun or bool(self._line)
        self._draw()

    def interrupt(self) -> None:
        """Somebody else is about to write whole lines: take the last line away until the next event."""
        if self._live.is_started:
            self._live.update("", refresh=True)

    def end(self) -> None:
        """Nothing more comes: the committed text stays, with an end of line."""
        self._pieces.clear()
        self._live.transient = not self.has_begun
        self._draw()
        self._live.stop()

    def _draw(self) -> None:
        """Print the lines that are complete, then the last one and what is provisional."""
        from rich.text import Text

        self._live.start()
        *complete, self._line = self._fold(self._line)
        tail = "".join(self._pieces[step] for step in sorted(self._pieces))
        lines = self._fold(self._line + (tail if self.has_begun else tail.lstrip()))
        text = Text("\n".join(lines), no_wrap=True, overflow="ignore")
        text.stylize("dim", len(self._line))
        with self._console:  # one write
            if complete:
                self._console.print(Text("\n".join(complete), no_wrap=True, overflow="ignore"))
            self._live.update(text, refresh=True)

    def _fold(self, text: str) -> list[str]:
        """Lines that fit; the last column stays free, as terminals differ in where the cursor goes behind it."""
        from rich.cells import chop_cells

        width, folded = max(2, self._console.width - 1), list[str]()
        for paragraph in text.split("\n"):
            lines = chop_cells(paragraph, width) or [""]
            lines[-1] += paragraph[sum(map(len, lines)) :]  # what takes no cell is left out by chop_cells
            folded += lines
        return folded
