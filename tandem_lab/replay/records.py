"""What a replay has seen, as plain values. Times are seconds since the trace began, by the device's clock.

Knows events and traces; knows neither Ray nor a clock, so that it can be drawn and tested without them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Literal, TypeAlias

from tandem.events import DoneEvent, Event, SessionStatistics, TokenEvent
from tandem.topology import Party
from tandem_lab.netlab.lab import Counters
from tandem_lab.netlab.schedule import LinkSchedule, ScheduleRow
from tandem_lab.netlab.shape import Shape

Drafter: TypeAlias = Literal["both", "device", "cloud", "neither", "alone"]
"""Whose draft was accepted; `alone`: the device decided without the cloud."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One echo of a ping."""

    sent_s: float
    number: int
    rtt_s: float


@dataclass(slots=True)
class QuestionRun:
    """One question and the events of its answer so far."""

    question: str
    seed: int
    opened_s: float
    events: list[Event] = field(default_factory=list)
    error: str | None = None

    @property
    def tokens(self) -> list[TokenEvent]:
        """The committed tokens in order."""
        return [event for event in self.events if isinstance(event, TokenEvent)]

    @property
    def done(self) -> DoneEvent | None:
        """How it ended; None: it did not."""
        return next((event for event in self.events if isinstance(event, DoneEvent)), None)

    @property
    def statistics(self) -> SessionStatistics:
        """Of the session; empty if it did not end."""
        return SessionStatistics() if self.done is None else self.done.statistics

    @property
    def answer(self) -> str:
        """Its text."""
        return "".join(token.text for token in self.tokens).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """One committed token, and the link when it was committed."""

    question: int
    step: int
    token: int
    text: str
    committed_s: float
    latency_s: float  # since the previous token; step 0: since the question was asked
    device_accepted: bool
    cloud_accepted: bool
    is_alone: bool
    drafter: Drafter
    aggregator: Party
    ping_rtt_s: float  # of the last reply by then; nan: there was none
    injected_rtt_s: float
    injected_loss: float  # share of the packets, each way


@dataclass(slots=True, kw_only=True)
class Replay:
    """A trace with the questions that were asked meanwhile."""

    trace: LinkSchedule
    asked: list[QuestionRun] = field(default_factory=list)
    rows: list[ScheduleRow] = field(default_factory=list)  # as they were really applied
    replies: tuple[Reply, ...] = ()
    num_pings: int = 0
    counters: dict[Party, Counters] = field(default_factory=dict)  # of each host's interface, meanwhile
    lost_s: dict[Party, float] = field(
        default_factory=dict
    )  # decode time of drafts that were thrown away, at most
    took_s: float = nan

    @property
    def note(self) -> str:
        """One sentence if the trace ended before the questions did."""
        return self.trace.note_at(self.took_s)

    def tokens(self) -> list[TokenRecord]:
        """Every committed token of every question."""
        heard = self._heard()
        return [
            self._token(number, asked, token, previous, heard)
            for number, asked in enumerate(self.asked)
            for previous, token in zip([None, *asked.tokens], asked.tokens, strict=False)
        ]

    def _heard(self) -> list[tuple[float, float]]:
        """When each reply came, and its round trip, by time."""
        return sorted((reply.sent_s + reply.rtt_s, reply.rtt_s) for reply in self.replies)

    def _shape_at(self, at_s: float) -> Shape:
        """What was injected then."""
        row = bisect_right(self.rows, at_s, key=lambda row: row.time_s) - 1
        return self.rows[row].shape if row >= 0 else self.trace.value_at(0)

    def _token(
        self,
        number: int,
        asked: QuestionRun,
        token: TokenEvent,
        previous: TokenEvent | None,
        heard: Sequence[tuple[float, float]],
    ) -> TokenRecord:
        at_s = asked.opened_s + token.committed_s
        shape = self._shape_at(at_s)
        return TokenRecord(
            question=number,
            step=token.step,
            token=token.token,
            text=token.text,
            committed_s=at_s,
            latency_s=token.committed_s - (0.0 if previous is None else previous.committed_s),
            device_accepted=token.device_accepted,
            cloud_accepted=token.cloud_accepted,
            is_alone=token.is_alone,
            drafter=drafter_of(token),
            aggregator=Party(token.aggregator),
            ping_rtt_s=_last_rtt_s(heard, at_s),
            injected_rtt_s=shape.rtt_s,
            injected_loss=shape.loss,
        )


def _last_rtt_s(heard: Sequence[tuple[float, float]], at_s: float) -> float:
    last = bisect_right(heard, at_s, key=lambda reply: reply[0]) - 1
    return heard[last][1] if last >= 0 else nan


def drafter_of(token: TokenEvent) -> Drafter:
    """Whose drafts were accepted."""
    if token.is_alone:
        return "alone"
    names: dict[tuple[bool, bool], Drafter] = {
        (True, True): "both",
        (True, False): "device",
        (False, True): "cloud",
        (False, False): "neither",
    }
    return names[token.device_accepted, token.cloud_accepted]
