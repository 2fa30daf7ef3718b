"""What one answer amounted to, gathered from its events, for people and for scripts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from tandem.cli.output import plural
from tandem.cli.passages import describe_place, describe_score, is_scored, text_lines
from tandem.events import (
    DoneEvent,
    EstimateEvent,
    Event,
    PlacementEvent,
    ProvisionalEvent,
    RetractEvent,
    RoundEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
)
from tandem.topology import PARTIES, SERVER, Party

SHOWN_IDS = 3
"""Opaque ids shown to a person; --json holds all."""
SHOWN_SWITCHES = 3
"""Handovers shown one by one to a person; --json holds all."""


class Transcript:
    """The events of one answer so far."""

    def __init__(
        self, question: str, seed: int, placement: str, only: Party | None = None, *, mode: str = "dual"
    ) -> None:
        self.question = question
        self.seed = seed
        self.placement = placement
        self.only = only
        self.mode = mode
        self.sources: list[Source] = []
        self.notes: list[str] = []
        self.tokens: list[TokenEvent] = []
        self.switches: list[PlacementEvent] = []
        self.estimates: list[EstimateEvent] = []
        self.rounds: list[RoundEvent] = []
        self.provisional: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self.done: DoneEvent | None = None

    def add(self, event: Event) -> None:
        """Add an event."""
        self.events.append(event)
        match event:
            case SourcesEvent():
                self.sources.extend(event.sources)
                self.notes.extend(f"{event.party}: {note}" for note in event.notes)
            case TokenEvent():
                self.tokens.append(event)
            case PlacementEvent():
                self.switches.append(event)
            case EstimateEvent():
                self.estimates.append(event)
            case RoundEvent():
                self.rounds.append(event)
            case ProvisionalEvent() | RetractEvent():
                kind = "provisional" if isinstance(event, ProvisionalEvent) else "retract"
                self.provisional.append({"event": kind, "committed": len(self.tokens), **asdict(event)})
            case DoneEvent():
                self.done = event

    @property
    def text(self) -> str:
        """The answer, without the space that tokenizers put before its first word."""
        return "".join(event.text for event in self.tokens).strip()

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        done = self.done
        return {
            "question": self.question,
            "answer": self.text,
            "reason": done.reason if done else None,
            "error": done.error if done else None,
            "seed": self.seed,
            "placement": self.placement,
            "alone": self.only,
            "sources": [asdict(source) for source in self.sources],
            "notes": self.notes,
            "statistics": asdict(done.statistics) if done else None,
            "tokens": [asdict(event) for event in self.tokens],
            "placements": [asdict(event) for event in self.switches],
            "estimates": [_compact(event) for event in self.estimates],
            "rounds": [asdict(event) for event in self.rounds],
            "provisional": self.provisional,
        }

    def source_lines(self, *, with_passages: bool = False) -> list[str]:
        """One line for each document with a title, best first; one per party for those whose titles stay there.

        with_passages: below each line the text that the model read.
        """
        if not self.sources:
            return ["  none: the models answered from the question alone"]
        parties = dict.fromkeys([*PARTIES, *(source.party for source in self.sources)])
        return [line for party in parties for line in self._lines_of(party, with_passages)]

    def _lines_of(self, party: str, with_passages: bool) -> Iterator[str]:
        own = sorted((source for source in self.sources if source.party == party), key=_badness)
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
            yield f"  {party:<6}  {plural(len(ids), 'document')} that stay there: {', '.join(ids[:SHOWN_IDS])}{more}"

    def statistics_lines(self) -> list[str]:
        """The compact table below an answer."""
        return [f"  {name:<9}  {value}" for name, value in self._rows()]

    def _rows(self) -> Iterable[tuple[str, str]]:
        assert self.done is not None  # a stream ends with it
        statistics, count = self.done.statistics, len(self.tokens)
        ended = f", ended by {_ENDS[self.done.reason]}" if self.done.reason in _ENDS else ""
        yield "tokens", f"{count} in {_seconds(statistics.total_s)}{ended}"
        yield (
            "time",
            f"first token after {_seconds(statistics.first_token_s)}, then {_per_token(self.tokens)}",
        )
        if self.only is not None:
            yield "alone", f"the {self.only} answered by itself, nothing crossed the link"
            yield "seed", str(self.seed)
            return
        yield "accepted", self._accepted(statistics, count)
        if self.rounds:
            mean = sum(each.length for each in self.rounds) / len(self.rounds)
            yield "proposals", f"{len(self.rounds)}, of {mean:.1f} tokens on average"
        sent, received = _per(statistics.sent_bytes, count), _per(statistics.received_bytes, count)
        yield "link", f"{sent} bytes out and {received} in per token, RTT {_milliseconds(statistics.rtt_s)}"
        yield "placement", self._placements()
        yield "verdicts", self._verdicts()
        if statistics.degraded_from is not None:
            yield "degraded", self._degraded(statistics.degraded_from)
        yield "seed", str(self.seed)

    def _degraded(self, step: int) -> str:
        """Who answered without whom from a step on."""
        if self.placement != SERVER:
            who, missing = "the device", "the cloud"
        elif (alone := self.tokens[step].aggregator) == SERVER:
            who, missing = "the others", "a worker"
        else:
            who, missing = alone, "the server"
        return f"from token {step} on {who} answered without {missing}"

    def _accepted(self, statistics: SessionStatistics, count: int) -> str:
        """Whose drafts the tokens are. In mode speculative the cloud verifies and drafts nothing."""
        device = _share(statistics.num_device_accepted, count)
        if self.placement == SERVER:
            return f"{device} of the server's drafts"
        if self.mode == "speculative":
            return f"{device} of the tokens as the device proposed them, the others are the cloud's"
        return f"device {device}, cloud {_share(statistics.num_cloud_accepted, count)}"

    def _placements(self) -> str:
        shown = [
            f", {switch.aggregator} from token {switch.step}" for switch in self.switches[:SHOWN_SWITCHES]
        ]
        more = len(self._handovers()) - len(shown)
        return self.placement + "".join(shown) + (f", and {more} more" if more > 0 else "")

    def _handovers(self) -> list[PlacementEvent]:
        """Those after which a token was decided; the last verdict may hold one without any."""
        return [switch for switch in self.switches if switch.step < len(self.tokens)]

    def _verdicts(self) -> str:
        """Who decided how often."""
        if self.placement == "mirror":
            num_solo = sum(event.is_alone for event in self.tokens)
            solo = f", except {num_solo} by the device alone" if num_solo else ""
            return f"each party decided all {len(self.tokens)} itself{solo}"
        if self.placement == SERVER:
            deciders = Counter(event.aggregator for event in self.tokens)
            return ", ".join(f"{party} {deciders[party]}" for party in deciders)
        counts = [f"{party} {sum(event.aggregator == party for event in self.tokens)}" for party in PARTIES]
        return f"{', '.join(counts)}; {plural(len(self._handovers()), 'handover')}"


_ENDS = {
    "length": "its limit",
    "stop": "a stop text",
    "loop": "the rule against loops, since it repeats itself",
    "cancelled": "cancellation",
    "failed": "a failure",
}


def _compact(event: EstimateEvent) -> dict[str, Any]:
    """Its fields that are known, to the microsecond."""
    known: dict[str, Any] = {}
    for key, value in asdict(event).items():
        if isinstance(value, float):
            if math.isfinite(value):
                known[key] = round(value, 6)
        elif value != ():
            known[key] = value
    return known


def _badness(source: Source) -> float:
    """Sorts by score, highest first; those without one come last, in the order given."""
    return -source.score if is_scored(source.score) else math.inf


def _seconds(duration_s: float) -> str:
    return "?" if math.isnan(duration_s) else f"{duration_s:.2f} s"


def _milliseconds(duration_s: float) -> str:
    return "unknown" if math.isnan(duration_s) else f"{1000 * duration_s:.1f} ms"


def _per_token(tokens: list[TokenEvent]) -> str:
    """Time from commit to commit; undefined for fewer than two tokens."""
    if len(tokens) < 2:
        return "no other"
    return f"{1000 * (tokens[-1].committed_s - tokens[0].committed_s) / (len(tokens) - 1):.0f} ms each"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _per(total: int, count: int) -> str:
    return f"{total / count:.0f}" if count else "-"
