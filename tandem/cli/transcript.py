"""A summary of one answer, gathered from its events, for people and for scripts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tandem.citations import find_spans
from tandem.cli.citing import cited_lines
from tandem.cli.output import describe_place, describe_score, is_scored, plural, text_lines
from tandem.client.answers import describe_citations
from tandem.events import (
    DoneEvent,
    EstimateEvent,
    Event,
    PlacementEvent,
    ProvisionalEvent,
    RetractEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
    cited_tokens,
    mean_shares,
    own_sources,
)
from tandem.topology import PARTIES, SERVER

if TYPE_CHECKING:
    from tandem.config.schema import DecodingConfig

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
