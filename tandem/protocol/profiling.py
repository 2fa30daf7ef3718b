"""One session's profiler: observations of committed steps in, a profile and a draft window out.

The numbers are those of `tandem.profiler`; this is their message form.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from tandem.messages import Observation, Profile, Window
from tandem.modes.spec import SessionSpec
from tandem.profiler.estimates import DecodeLine, Estimator
from tandem.protocol.outbox import Send
from tandem.topology import PARTIES, Party


class ProfilingSession:
    """Estimates of one query at one party."""

    def __init__(self, spec: SessionSpec, party: Party, before: ProfilingSession | None = None) -> None:
        """before: an earlier query, whose estimates are the first of this one as far as they apply."""
        self.spec = spec
        self.party = party
        self.window = 0
        self._estimator = Estimator(_lines(spec)) if before is None else before.carry_over(spec)
        self._step = 0
        self._aggregator = PARTIES.index(spec.rules.first_decider)

    def carry_over(self, spec: SessionSpec) -> Estimator:
        """This query's estimates for another query: the link's in any case, others where the settings are equal."""
        old = self.spec
        return self._estimator.carry_over(
            _lines(spec),
            decode_of=[party for party in PARTIES if _decoding(old, party) == _decoding(spec, party)],
            acceptance=(old.decoding.draft_rule, old.sampling.without_end())
            == (spec.decoding.draft_rule, spec.sampling.without_end()),
        )

    def begin(self) -> list[Send]:
        """The draft window that earlier queries call for, if there were any."""
        return self._update_window() if isfinite(self._estimator.estimate(1).rtt_s) else []

    def observe(self, *steps: Observation) -> list[Send]:
        """Take in committed steps: a Profile for the scheduler, and a Window for the decoder if it has changed."""
        notes = [note for observation in steps for note in self._take(observation)]
        return [Send("scheduler", self.profile(notes)), *self._update_window()]

    def profile(self, notes: Sequence[str] = ()) -> Profile:
        """The present estimates; nan where nothing is known."""
        estimates = self._estimator.estimate(self._step + 1)
        return Profile(
            session=self.spec.session,
            step=self._step,
            aggregator=self._aggregator,
            decode_s=tuple(estimates.decode_s[party] for party in PARTIES),
            acceptance=tuple(estimates.acceptance[party] for party in PARTIES),
            rtt_s=estimates.rtt_s,
            rtt_average_s=estimates.rtt_average_s,
            bytes_per_s=estimates.bytes_per_s,
            notes=tuple(notes),
        )

    def _take(self, observation: Observation) -> tuple[str, ...]:
        self._step, self._aggregator = observation.step, observation.aggregator
        return self._estimator.add(observation)

    def _update_window(self) -> list[Send]:
        window = self._estimator.estimate(self._step + 1).window(self.party)
        if window == self.window:
            return []
        self.window = window
        return [Send("decoder", Window(session=self.spec.session, size=window))]


def _decoding(spec: SessionSpec, party: Party) -> tuple[object, ...]:
    """What a party's decode time depends on."""
    return spec.num_documents(party), spec.decode_line(party)


def _lines(spec: SessionSpec) -> dict[Party, DecodeLine]:
    """The offline profiles that come with a query."""
    return {party: DecodeLine.from_tuple(line) for party in PARTIES if (line := spec.decode_line(party))}
