"""When each token's drafts were made, sent, awaited and decided, from the events of one answer.

Times are seconds since the query was opened on the device, by the device's clock alone (by the cloud's of a query that
it was asked alone). What happened on the
cloud is reckoned from when its frames came, half a round trip earlier, and marked as an estimate. Knows events only;
a value that was not seen is nan, a span that cannot be reckoned is None. Nothing here draws or writes files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from tandem.events import (
    DoneEvent,
    EstimateEvent,
    Event,
    PeerEvent,
    PlacementEvent,
    StopReason,
    TokenEvent,
)
from tandem.topology import PARTIES, Party
from tandem_lab.numbers import to_plain

FORMAT = 1
"""Version of `Timeline.to_dict`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From when to when."""

    start_s: float
    end_s: float
    is_estimate: bool = (
        False  # an end of it lies on the cloud: half the last round trip from what the device saw
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTimes:
    """One side's draft for one step: the one that was decided on, not those that were rolled back."""

    party: Party
    epoch: int
    is_accepted: bool
    acceptance: float  # expected, by the formula of the draft rule
    accepted_share: float  # of this side's drafts up to this step; steps decided alone are left out
    decode_s: float
    arrived_s: float  # in the device's queue
    decode: Span | None  # ends when the draft left its side; an estimate if that is the cloud
    link: Span | None  # its way to the other side; an end of it is always an estimate; None also if it stayed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One committed token.

    The waits are the two terms of DRAGON Table 1 as the device saw them: how long after the previous commit (step 0:
    after the query was opened, so with retrieval and prefill) each draft came; 0 if it was there before. The pair
    waited for the greater.
    """

    step: int
    token: int
    text: str
    aggregator: Party  # who decided
    is_alone: bool
    device: DraftTimes
    cloud: DraftTimes
    wait_for_device_s: float
    wait_for_cloud_s: float
    pair_s: float  # when the later draft had come and the previous token was committed; alone: the own draft
    decide_s: float  # from then to the commit: where the cloud decides, with the way there and back
    committed_s: float
    verdict: Span | None  # its way to the other side, an estimate; None: none crossed
    rtt_s: float  # last measured
    estimate: EstimateEvent | None  # the latest of this or an earlier step: delta Z and its inputs

    @property
    def delta_z_s(self) -> float:
        """Z of the device minus Z of the cloud (DRAGON Eq. 8), nan before the first estimate."""
        return nan if self.estimate is None else self.estimate.delta_z_s

    @property
    def waited_for(self) -> Party | None:
        """Whose draft the pair waited for; None: for neither, not known, or there was no pair."""
        device_s, cloud_s = self.wait_for_device_s, self.wait_for_cloud_s
        if not max(device_s, cloud_s) > 0 or cloud_s != cloud_s:
            return None
        return Party.DEVICE if device_s >= cloud_s else Party.CLOUD

    def draft(self, party: Party) -> DraftTimes:
        """One side's draft."""
        return self.device if party is Party.DEVICE else self.cloud


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All steps of one answer."""

    placement: str | None  # that was asked for; None: not known
    steps: tuple[StepTimes, ...]
    handovers: tuple[PlacementEvent, ...]  # after which a token was decided: not one in the last verdict
    peer_losses: tuple[PeerEvent, ...]  # and returns
    estimates: tuple[EstimateEvent, ...]
    reason: StopReason | None  # None: the events ended early

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain values, None for what is not known or not finite. Estimates stand with their steps."""
        steps = [
            {**dataclasses.asdict(step), "delta_z_s": step.delta_z_s, "waited_for": step.waited_for}
            for step in self.steps
        ]
        value: dict[str, Any] = to_plain(
            {
                "format": FORMAT,
                "clock": "seconds since the query was opened on the device; null: not known",
                "placement": self.placement,
                "reason": self.reason,
                "steps": steps,
                "handovers": [dataclasses.asdict(each) for each in self.handovers],
                "peer_losses": [dataclasses.asdict(each) for each in self.peer_losses],
            },
            digits=6,
        )
        return value


def timeline(events: Iterable[Event], placement: str | None = None) -> Timeline:
    """The timeline of one answer.

    events: of `Tandem.stream`, of a virtual run, or an answer's `tokens`, `estimates` and `placements` one after the
    other. placement: that was asked for; it says what crossed the link. None: the device's drafts are taken to have
    crossed if the cloud ever decided, and verdicts always.
    """
    events = list(events)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    estimates = [event for event in events if isinstance(event, EstimateEvent)]
    estimates.sort(key=lambda event: event.step)
    crossing = _Crossing.of(tokens, placement)
    counts = _Counts()
    steps, previous = [], None
    for token in tokens:
        steps.append(_step(token, previous, _latest(estimates, token.step), crossing, counts.add(token)))
        previous = token
    last_step = tokens[-1].step if tokens else -1
    return Timeline(
        placement=placement,
        steps=tuple(steps),
        handovers=tuple(
            event for event in events if isinstance(event, PlacementEvent) and event.step <= last_step
        ),
        peer_losses=tuple(event for event in events if isinstance(event, PeerEvent)),
        estimates=tuple(estimates),
        reason=next((event.reason for event in events if isinstance(event, DoneEvent)), None),
    )


@dataclass(frozen=True, slots=True)
class _Crossing:
    """What a session sends over the link, beside the cloud's drafts that the device saw come."""

    device_drafts: bool
    verdicts: bool

    @classmethod
    def of(cls, tokens: Sequence[TokenEvent], placement: str | None) -> _Crossing:
        if placement is None:
            return cls(any(token.aggregator is Party.CLOUD for token in tokens), True)
        return cls(placement != Party.DEVICE, placement != "mirror")


class _Counts:
    """Accumulated acceptance."""

    def __init__(self) -> None:
        self._num_pairs = 0
        self._num_accepted = dict.fromkeys(PARTIES, 0)

    def add(self, token: TokenEvent) -> dict[Party, float]:
        """The share accepted of each side's drafts, this token's included."""
        if not token.is_alone:
            self._num_pairs += 1
            self._num_accepted[Party.DEVICE] += token.device_accepted
            self._num_accepted[Party.CLOUD] += token.cloud_accepted
        count = self._num_pairs
        return {party: self._num_accepted[party] / count if count else nan for party in PARTIES}


def _step(
    token: TokenEvent,
    previous: TokenEvent | None,
    estimate: EstimateEvent | None,
    crossing: _Crossing,
    shares: dict[Party, float],
) -> StepTimes:
    since_s = _since(token, previous)
    arrived_s = {Party.DEVICE: token.device_arrived_s, Party.CLOUD: token.cloud_arrived_s}
    waits = {party: _not_negative(arrived_s[party] - since_s) for party in PARTIES}
    wait_s = waits[Party(token.aggregator)] if token.is_alone else _later(*waits.values())
    one_way_s = _one_way(token, estimate)
    has_crossed = crossing.device_drafts and not token.is_alone
    return StepTimes(
        step=token.step,
        token=token.token,
        text=token.text,
        aggregator=Party(token.aggregator),
        is_alone=token.is_alone,
        device=_draft(token, Party.DEVICE, shares[Party.DEVICE], one_way_s, crosses=has_crossed),
        cloud=_draft(token, Party.CLOUD, shares[Party.CLOUD], one_way_s, crosses=not token.is_alone),
        wait_for_device_s=waits[Party.DEVICE],
        wait_for_cloud_s=waits[Party.CLOUD],
        pair_s=since_s + wait_s,
        decide_s=_not_negative(token.committed_s - (since_s + wait_s)),
        committed_s=token.committed_s,
        verdict=_verdict(token, one_way_s) if crossing.verdicts else None,
        rtt_s=token.rtt_s,
        estimate=estimate,
    )


def _draft(token: TokenEvent, party: Party, share: float, one_way_s: float, *, crosses: bool) -> DraftTimes:
    arrived_s: float = getattr(token, f"{party}_arrived_s")
    decode_s: float = getattr(token, f"{party}_decode_s")
    is_far = party is Party.CLOUD and crosses  # a cloud that was asked alone tells its own times
    left_s = arrived_s - one_way_s if is_far else arrived_s
    link = _span(left_s, arrived_s if is_far else left_s + one_way_s, is_estimate=True)
    return DraftTimes(
        party=party,
        epoch=getattr(token, f"{party}_epoch"),
        is_accepted=getattr(token, f"{party}_accepted"),
        acceptance=getattr(token, f"{party}_acceptance"),
        accepted_share=share,
        decode_s=decode_s,
        arrived_s=arrived_s,
        decode=_span(left_s - decode_s, left_s, is_estimate=is_far),
        link=link if crosses else None,
    )


def _verdict(token: TokenEvent, one_way_s: float) -> Span | None:
    if token.is_alone:
        return None
    at_s = token.committed_s
    if token.aggregator is Party.DEVICE:
        return _span(at_s, at_s + one_way_s, is_estimate=True)
    return _span(at_s - one_way_s, at_s, is_estimate=True)


def _since(token: TokenEvent, previous: TokenEvent | None) -> float:
    """From when a pair is waited for; nan where the previous token is not among the events."""
    if token.step == 0:
        return 0.0
    return nan if previous is None or previous.step != token.step - 1 else previous.committed_s


def _one_way(token: TokenEvent, estimate: EstimateEvent | None) -> float:
    """Half the last round trip, in seconds; where none was measured yet, half the profiler's."""
    rtt_s = token.rtt_s if isfinite(token.rtt_s) or estimate is None else estimate.rtt_s
    return rtt_s / 2 if isfinite(rtt_s) else nan


def _latest(estimates: Sequence[EstimateEvent], step: int) -> EstimateEvent | None:
    return next((each for each in reversed(estimates) if each.step <= step), None)


def _span(start_s: float, end_s: float, *, is_estimate: bool = False) -> Span | None:
    if not (isfinite(start_s) and isfinite(end_s)):
        return None
    return Span(start_s=start_s, end_s=max(start_s, end_s), is_estimate=is_estimate)


def _later(one_s: float, other_s: float) -> float:
    """The greater; nan if one is not known."""
    return max(one_s, other_s) if isfinite(one_s) and isfinite(other_s) else nan


def _not_negative(value_s: float) -> float:
    """At least 0, or nan."""
    return value_s if value_s != value_s else max(0.0, value_s)
