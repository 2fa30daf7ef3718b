"""One session's profile at runtime: decode times, round trips, bandwidth, acceptance, and the draft window.

Values come in as observations of committed steps; only round trips are used, so the two hosts' clocks need not
agree. Knows nothing of laws or placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil, isfinite, nan

from tandem.profiler.decoding import DecodeTime
from tandem.profiler.line import DecodeLine
from tandem.profiler.moving import MovingAverage
from tandem.protocol.messages import Observation, Profile, Window
from tandem.protocol.outbox import Send
from tandem.protocol.spec import SessionSpec
from tandem.topology import PARTIES, Party

ACCEPTANCE_SHARE = 0.1
"""Weight of a new step in the moving average of acceptance: about 20 steps count."""
RTT_SHARE = 0.5
"""Weight of a new round trip in the real-time estimate."""
RTT_AVERAGE_SHARE = 0.1
"""Weight of a new round trip in the historical average."""


def draft_window(rtt_s: float, own_decode_s: float, peer_decode_s: float) -> int:
    """W = ceil((rtt + c_own) / max(c)) + 2: drafts that keep both sides busy for one round trip.

    One more than needed at an even pace: after a rejection the faster side has to catch up with the slower one.

    Values in seconds. What is not yet measured counts as "no wait": window 2.
    """
    if not (isfinite(rtt_s) and isfinite(own_decode_s)) or own_decode_s <= 0:
        return 2
    slower_s = max(own_decode_s, peer_decode_s) if isfinite(peer_decode_s) else own_decode_s
    return ceil((rtt_s + own_decode_s) / slower_s) + 2


@dataclass(slots=True)
class Estimators:
    """What is known of both sides and the link."""

    decode_s: dict[Party, DecodeTime]
    acceptance: dict[Party, MovingAverage]
    rtt_s: MovingAverage = field(default_factory=lambda: MovingAverage(RTT_SHARE))
    rtt_average_s: MovingAverage = field(default_factory=lambda: MovingAverage(RTT_AVERAGE_SHARE))
    bytes_per_s: float = nan  # the last measured

    @classmethod
    def fresh(cls, spec: SessionSpec) -> Estimators:
        """Nothing seen yet; the offline lines, where both sides' were measured before, come with the query."""
        return cls(
            decode_s={party: DecodeTime(_line(spec.decode_line(party))) for party in PARTIES},
            acceptance={party: MovingAverage(ACCEPTANCE_SHARE) for party in PARTIES},
        )


class ProfilerSession:
    """Estimates of one query on one side."""

    def __init__(self, spec: SessionSpec, party: Party, before: ProfilerSession | None = None) -> None:
        """before: an earlier query, whose estimates are the first of this one as far as they fit it."""
        self.spec = spec
        self.party = party
        self.window = 0
        self._seen = Estimators.fresh(spec) if before is None else before.carried_to(spec)
        self._step = 0
        self._aggregator = spec.first_aggregator

    def carried_to(self, spec: SessionSpec) -> Estimators:
        """This query's estimates for another query: the link's in any case, others where nothing was changed."""
        known, fresh, old = deepcopy(self._seen), Estimators.fresh(spec), self.spec
        for party in PARTIES:
            if _decoding(old, party) != _decoding(spec, party):
                known.decode_s[party] = fresh.decode_s[party]
        if (old.draft_rule, old.temperature) != (spec.draft_rule, spec.temperature):
            known.acceptance = fresh.acceptance
        return known

    def begin(self) -> list[Send]:
        """The draft window that earlier queries call for, if there were any."""
        return self._window() if isfinite(self._seen.rtt_s.value) else []

    def observe(self, *steps: Observation) -> list[Send]:
        """Take committed steps in; tells the scheduler, and the decoder where its window changes."""
        notes = [note for seen in steps for note in self._take(seen)]
        return [Send("scheduler", self.profile(notes)), *self._window()]

    def profile(self, notes: Sequence[str] = ()) -> Profile:
        """The present estimates; nan where nothing was seen."""
        seen, following = self._seen, self._step + 1
        return Profile(
            session=self.spec.session,
            step=self._step,
            aggregator=self._aggregator,
            device_decode_s=seen.decode_s[Party.DEVICE].predict(following),
            cloud_decode_s=seen.decode_s[Party.CLOUD].predict(following),
            device_acceptance=seen.acceptance[Party.DEVICE].value,
            cloud_acceptance=seen.acceptance[Party.CLOUD].value,
            rtt_s=seen.rtt_s.value,
            rtt_average_s=seen.rtt_average_s.value,
            bytes_per_s=seen.bytes_per_s,
            notes=tuple(notes),
        )

    def _take(self, seen: Observation) -> list[str]:
        known = self._seen
        self._step, self._aggregator = seen.step, seen.aggregator
        found = [
            known.decode_s[Party.DEVICE].add(seen.step, seen.device_decode_s),
            known.decode_s[Party.CLOUD].add(seen.step, seen.cloud_decode_s),
        ]
        known.acceptance[Party.DEVICE].add(seen.device_acceptance)
        known.acceptance[Party.CLOUD].add(seen.cloud_acceptance)
        known.rtt_s.add(seen.rtt_s)
        known.rtt_average_s.add(seen.rtt_s)
        if seen.bytes_per_s == seen.bytes_per_s:
            known.bytes_per_s = seen.bytes_per_s
        return [f"{party}: {note}" for party, note in zip(PARTIES, found, strict=True) if note is not None]

    def _window(self) -> list[Send]:
        decode_s = {party: self._seen.decode_s[party].predict(self._step + 1) for party in PARTIES}
        window = draft_window(self._seen.rtt_s.value, decode_s[self.party], decode_s[self.party.other])
        if window == self.window:
            return []
        self.window = window
        return [Send("decoder", Window(session=self.spec.session, size=window))]


def _decoding(spec: SessionSpec, party: Party) -> tuple[object, ...]:
    """What a side's decode time depends on."""
    return spec.num_documents(party), spec.decode_line(party)


def _line(values: Sequence[float]) -> DecodeLine | None:
    return DecodeLine.from_tuple(values) if values else None
