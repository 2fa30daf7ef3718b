"""One answer at the terminal: its events as they come, a summary of them, and the documents that said its words."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tandem.citations import SENTENCE_END, Span, find_spans
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
from tandem.events import (
    DoneEvent,
    EstimateEvent,
    Event,
    PeerEvent,
    PlacementEvent,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
    WaitEvent,
    cited_tokens,
    mean_shares,
    own_sources,
)
from tandem.topology import PARTIES, SERVER, Party

if TYPE_CHECKING:
    from tandem.config.schema import DecodingConfig


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


E = TypeVar("E")

SHOWN_IDS = 3
"""Opaque ids shown to a person; --json holds all."""


@dataclass(slots=True)
class Transcript:
    """The events of one answer so far."""

    question: str
    seed: int
    only: str | None  # the party that answers alone
    decoding: DecodingConfig
    events: list[Event] = field(default_factory=list)

    @property
    def placement(self) -> str:
        """Who decides, for display."""
        from tandem.config.schema import placement_of

        return placement_of(self.decoding)

    @property
    def tokens(self) -> list[TokenEvent]:
        """The committed ones, with what is known by now of who said them."""
        return list(cited_tokens(self.events))

    @property
    def sources(self) -> list[Source]:
        """Documents of all parties, as far as they are known."""
        return [source for event in self._of(SourcesEvent) for source in event.sources]

    @property
    def alone(self) -> str | None:
        """The party that answered by itself: as it was asked to, or as its peer had nothing to add."""
        done = self.done
        if self.only is None and done and self.tokens and done.statistics.degraded_from is None:
            return None if done.statistics.sent_bytes else self.tokens[0].aggregator
        return self.only

    @property
    def text(self) -> str:
        """The answer, without the space that tokenizers put before its first word."""
        return "".join(event.text for event in self.tokens).strip()

    @property
    def done(self) -> DoneEvent | None:
        """The last event, once it is there."""
        return next(iter(self._of(DoneEvent)), None)

    def _of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def as_dict(self) -> dict[str, Any]:
        """The transcript as --json prints it."""
        done = self.done
        return {
            "question": self.question,
            "answer": self.text,
            "reason": done.reason if done else None,
            "error": done.error if done else None,
            "seed": self.seed,
            "placement": self.placement,
            "alone": self.alone,
            "sources": self.sources,
            "notes": [f"{event.party}: {note}" for event in self._of(SourcesEvent) for note in event.notes],
            "citations": describe_citations(find_spans(self.tokens), self.sources),
            "shares": mean_shares(self.tokens),
            "statistics": done.statistics if done else None,
            "tokens": self.tokens,
            "placements": self._of(PlacementEvent),
            "estimates": [_compact(event) for event in self._of(EstimateEvent)],
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
        if not self.sources:
            return ["  none: the models answered from the question alone"]
        parties = dict.fromkeys([*PARTIES, *(source.party for source in self.sources)])
        return [line for party in parties for line in self._lines_of(party, with_passages)]

    def _lines_of(self, party: str, with_passages: bool) -> Iterator[str]:
        own = sorted(
            (source for source in self.sources if source.party == party),
            key=lambda source: -source.score if is_scored(source.score) else math.inf,
        )
        for source in own:
            if source.title is not None:
                columns = (
                    f"{party:<6}",
                    describe_score(source.score),
                    describe_place(source.title, source.page, (source.metadata or {}).get("line")),
                )
                yield "  " + "  ".join(filter(None, columns))
                if with_passages and source.text is not None:
                    yield from text_lines(source.text)
        ids = [source.id for source in own if source.title is None]
        if ids:
            more = f", and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
            stay = "stays" if len(ids) == 1 else "stay"
            yield f"  {party:<6}  {plural(len(ids), 'document')} that {stay} there: {', '.join(ids[:SHOWN_IDS])}{more}"

    def cited_lines(self) -> list[str]:
        """A line for each document that the marks of `--cite` name."""
        return cited_lines(find_spans(self.tokens), own_sources(self.sources))

    def statistics_lines(self) -> list[str]:
        """The compact table below an answer."""
        return [f"  {name:<9}  {value}" for name, value in self._rows()]

    def _rows(self) -> Iterable[tuple[str, str]]:
        done, tokens = self.done, self.tokens
        assert done is not None  # a stream ends with it
        statistics, count = done.statistics, len(tokens)
        ended = f", ended by {_ENDS[done.reason]}" if done.reason in _ENDS else ""
        yield "tokens", f"{count} in {_seconds(statistics.total_s)}{ended}"
        yield "time", f"first token after {_seconds(statistics.first_token_s)}, then {_per_token(tokens)}"
        if self.alone is not None:
            yield "alone", f"the {self.alone} answered by itself, nothing crossed the link"
            yield "seed", str(self.seed)
            return
        yield "accepted", self._accepted(statistics, count)
        if shares := mean_shares(tokens):
            yield (
                "votes",
                "weigh " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items()),
            )
        sent, received = _per(statistics.sent_bytes, count), _per(statistics.received_bytes, count)
        rtt = "unknown" if math.isnan(statistics.rtt_s) else f"{1000 * statistics.rtt_s:.1f} ms"
        yield "link", f"{sent} bytes out and {received} in per token, RTT {rtt}"
        yield "placement", self._placement()
        yield "verdicts", self._verdicts()
        if statistics.degraded_from is not None:
            yield "degraded", self._degraded(statistics.degraded_from)
        if statistics.num_late_votes:
            share = f"{statistics.num_late_votes} of {count} tokens"
            yield "patience", f"{share} without the cloud's vote, later than {self.decoding.patience_s:g} s"
        yield "seed", str(self.seed)

    def _degraded(self, step: int) -> str:
        """A line on who answered without whom from a step on."""
        if self.placement != SERVER:
            who, missing = "the device", "the cloud"
        elif (alone := self.tokens[step].aggregator) == SERVER:
            who, missing = "the others", "a worker"
        else:
            who, missing = alone, "the server"
        return f"from token {step} on {who} answered without {missing}"

    def _accepted(self, statistics: SessionStatistics, count: int) -> str:
        """A line on whose drafts the tokens are. In mode speculative the cloud verifies and drafts nothing."""
        device = _share(statistics.num_device_accepted, count)
        if self.placement == SERVER:
            return f"{device} of the server's drafts"
        if self.decoding.mode == "speculative":
            return f"{device} of the tokens as the device proposed them, the others are the cloud's"
        return f"device {device}, cloud {_share(statistics.num_cloud_accepted, count)}"

    def _placement(self) -> str:
        """A line on who decides, and how often that changed before a token was decided."""
        count = len(self.tokens)
        num_handovers = sum(switch.step < count for switch in self._of(PlacementEvent))
        return self.placement + (f", {plural(num_handovers, 'handover')}" if num_handovers else "")

    def _verdicts(self) -> str:
        """A line on how often each party decided."""
        if self.placement == "mirror":
            num_solo = sum(event.is_alone for event in self.tokens)
            solo = f", except {num_solo} by the device alone" if num_solo else ""
            return f"each party decided all {len(self.tokens)} itself{solo}"
        deciders = Counter(event.aggregator for event in self.tokens)
        return ", ".join(f"{party} {deciders[party]}" for party in deciders)


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


def _per_token(tokens: list[TokenEvent]) -> str:
    """Time from commit to commit; undefined for fewer than two tokens."""
    if len(tokens) < 2:
        return "no other"
    return f"{1000 * (tokens[-1].committed_s - tokens[0].committed_s) / (len(tokens) - 1):.0f} ms each"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _per(total: int, count: int) -> str:
    return f"{total / count:.0f}" if count else "-"


def follow(
    events: Iterator[Event],
    transcript: Transcript,
    log: StageLog,
    *,
    provisional: bool = False,
    is_silent: bool = False,
    cite: bool = False,
) -> None:
    """Add every event to the transcript and print what it says. Raises TandemError.

    provisional: show drafts too, on a terminal. is_silent: print no text. cite: print it with marks.
    """
    is_live = provisional and not is_silent and LiveText.is_possible()
    text: LiveText | PlainText = LiveText() if is_live else PlainText(is_silent=is_silent)
    if cite and not is_silent:
        text = CitedText(transcript.events)
    late_notes: list[str] = []  # those that come amid the text are printed after it
    try:
        for event in events:
            transcript.events.append(event)
            match event:
                case TokenEvent():
                    text.commit(event.step, event.text)
                case ProvisionalEvent():
                    text.propose(event.step, event.text)
                case RetractEvent():
                    text.retract(event.step)
                case SourcesEvent() if text.has_begun:
                    late_notes += _notes(event)
                case _:
                    lines = list(_lines(event))
                    if lines and not log.is_quiet:
                        text.interrupt()
                    for line in lines:
                        log(line)
    finally:
        text.end()
        for note in late_notes:
            log(note)


def _notes(event: SourcesEvent) -> list[str]:
    return [f"{event.party}: {note}" for note in event.notes]


def _lines(event: Event) -> Iterator[str]:
    """Lines that a person should see at once, apart from the text."""
    match event:
        case SourcesEvent():
            duration = "" if math.isnan(event.retrieve_s) else f" in {event.retrieve_s:.2f} s"
            yield f"{event.party}: {plural(len(event.sources), 'document')}{duration}"
            yield from _notes(event)
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
        case _:
            pass


class LiveText:
    """The twin of PlainText on a terminal: provisional text stands dimmed behind the committed text until it is
    committed or retracted. Lines that are complete scroll up; the last one is redrawn with what follows it."""

    @staticmethod
    def is_possible() -> bool:
        """Whether stdout is a terminal that can take text back."""
        return sys.stdout.isatty() and not open_console().is_dumb_terminal

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
