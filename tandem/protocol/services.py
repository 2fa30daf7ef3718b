"""The state machines that answer a coordinator or decoder: aggregator, profiler with scheduler, and retriever.

An aggregator takes a ballot and gives a result; how it is decided is up to the mode. It keeps nothing between steps but
the scheduler's last advice on placement, so a restarted aggregator decides the same tokens.

    coordinator --Observations--> profiler --Profile--> scheduler --Placement--> own aggregator

The numbers are those of `tandem.profiler` and `tandem.scheduler`; this is their message form. No token ever waits for
it. Each party has one of each; the scheduler's advice stands until the next one, also while the other party aggregates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from math import isfinite
from typing import Any, Protocol

from tandem.codecs import Codec
from tandem.messages import (
    Ballot,
    DraftWindow,
    Estimate,
    Observation,
    Observations,
    Placement,
    Profile,
    RetrieveRequest,
    RetrieveResult,
    VerifyResult,
)
from tandem.modes import SessionSpec
from tandem.modes.tally import Tally, UnreadableVoteError
from tandem.profiler.estimates import DecodeLine, Estimator
from tandem.protocol.routes import Send
from tandem.protocol.table import ActorSession, SessionTable, misdirected
from tandem.scheduler import Policy, fill_gaps, make_policy
from tandem.topology import PARTIES, Party


class DocumentSource(Protocol):
    """The port by which these functions ask a retriever."""

    def search(self, query: str, k: int, *, filter: Any = None) -> Sequence[Any]:
        """The hits for a query, best first: `id`, `document` and `score` each."""


def find_documents(source: DocumentSource, request: RetrieveRequest) -> Sequence[Any]:
    """The hits for a query, best first, and those as one that belong together. Raises TandemError.

    In a later turn those for the query alone, which may have changed the subject, take turns with those for it behind
    the question of the turn before, to which it may refer.
    """
    filter = json.loads(request.filter) if request.filter else None
    search = partial(source.search, k=request.num_documents, filter=filter)
    join = getattr(source, "join", list)  # a plugin's store may have none
    hits = search(request.query)
    if not request.before.strip():
        return join(hits)
    found = dict[str, Any]()
    for hit in chain.from_iterable(zip_longest(hits, search(f"{request.before}\n{request.query}"))):
        if hit is not None:
            found.setdefault(hit.id, hit)
    return join(list(found.values())[: request.num_documents])


def to_result(
    source: DocumentSource, request: RetrieveRequest, hits: Sequence[Any], retrieve_us: int = 0
) -> RetrieveResult:
    """Hits as the message that carries them."""
    texts = tuple(hit.document.page_content for hit in hits)
    marks = getattr(source, "marks", None) if request.wants_marks else None  # a plugin's store may have none
    return RetrieveResult(
        session=request.session,
        ids=tuple(hit.id for hit in hits),
        texts=texts,
        scores=tuple(hit.score for hit in hits),
        retrieve_us=retrieve_us,
        marks=marks(texts) if marks is not None else b"",
    )


class AggregatorSession(ActorSession):
    """Decides the steps of one query."""

    def __init__(self, spec: SessionSpec, party: str, codec: Codec, policy: Policy | None = None) -> None:
        """policy: default the one that the query asks for."""
        self.spec = spec
        self.party = party
        self._rules = spec.rules
        self._policy = policy
        if policy is None and self._rules.is_placed:
            self._policy = policy_of(spec)
        self._advice: Party | None = None  # of the scheduler: who is to aggregate after a remote rejection
        self._codec = self._rules.codec_of_votes(codec)

    def decide(self, ballot: Ballot) -> VerifyResult:
        """The next tokens, by the votes that are there. Raises ProtocolError if the own vote cannot be read."""
        roles = self._rules.roles
        tally = Tally(self.spec, roles, self.party, self._codec, ballot, self._policy, self._advice)
        try:
            result = self._rules.decide(tally)
        except UnreadableVoteError as error:
            if error.voter == roles.topology.index(self.party):
                raise
            return tally.make_result(unreadable=(error.voter,), problem=str(error))
        return replace(result, tail=self._rules.make_tail(tally, result.tokens))

    def receive(self, message: Any) -> list[Send]:
        """Decide a step, or take the scheduler's advice, which holds until the next one."""
        match message:
            case Ballot():
                return [Send("draft_queue", self.decide(message))]
            case Placement():
                self._advice = PARTIES[message.aggregator]
                return []
            case _:
                raise misdirected(message, "an aggregator")


class AggregatingTable(SessionTable[AggregatorSession]):
    """The aggregator of one party."""

    def __init__(self, party: str, codec: Codec) -> None:
        super().__init__(party)
        self.codec = codec

    def _open(self, spec: SessionSpec) -> AggregatorSession:
        return AggregatorSession(spec, self.party, self.codec)


class ProfilingSession(ActorSession):
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
            acceptance=(old.rules.draft_rule, old.sampling.without_end())
            == (spec.rules.draft_rule, spec.sampling.without_end()),
        )

    def begin(self) -> list[Send]:
        """The draft window that earlier queries call for, if there were any."""
        return self._update_window() if isfinite(self._estimator.estimate(1).rtt_s) else []

    def receive(self, message: Any) -> list[Send]:
        """Take in committed steps: a Profile for the scheduler, and a DraftWindow for the decoder if it has changed."""
        if not isinstance(message, Observations):
            raise misdirected(message, "a profiler")
        notes = [note for observation in message.steps for note in self._take(observation)]
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
        return [Send("decoder", DraftWindow(session=self.spec.session, size=window))]


def _decoding(spec: SessionSpec, party: Party) -> tuple[object, ...]:
    return spec.num_documents(party), spec.decode_line(party)


def _lines(spec: SessionSpec) -> dict[Party, DecodeLine]:
    return {party: DecodeLine.from_tuple(line) for party in PARTIES if (line := spec.decode_line(party))}


def policy_of(spec: SessionSpec) -> Policy:
    """The placement policy that a query asks for."""
    return make_policy(spec.decoding.placement, first=Party(spec.rules.first_decider))


class SchedulingSession(ActorSession):
    """Decides the placement of one query."""

    def __init__(self, spec: SessionSpec, party: Party, policy: Policy | None = None) -> None:
        """policy: default the one that the query asks for."""
        self.spec = spec
        self.party = party
        self._policy = policy or policy_of(spec)

    def receive(self, message: Any) -> list[Send]:
        """Take in estimates: an Estimate for the client and, if the policy gives advice, a Placement.

        The advice is repeated with every profile, since the aggregator may have restarted.
        """
        if not isinstance(message, Profile):
            raise misdirected(message, "a scheduler")
        profile = message
        situation, assumed = fill_gaps(
            dict(zip(PARTIES, profile.decode_s, strict=True)),
            dict(zip(PARTIES, profile.acceptance, strict=True)),
            profile.rtt_s,
        )
        aggregator = PARTIES[profile.aggregator]
        estimate = Estimate(
            session=self.spec.session,
            profile=profile,
            delta_z_s=situation.delta_z_s,
            chosen=PARTIES.index(self._policy.advise(situation, aggregator) or aggregator),
            assumed=(*profile.notes, *assumed),
        )
        sends = [Send("draft_queue", estimate)]
        advice = self._policy.advise(situation, self.party)
        if advice is not None:
            sends.append(
                Send("aggregator", Placement(session=self.spec.session, aggregator=PARTIES.index(advice)))
            )
        return sends


class ProfilingTable(SessionTable[ProfilingSession]):
    """The profiler of one party. A query begins with what the last one learned."""

    def __init__(self, party: str) -> None:
        super().__init__(party)
        self._latest: ProfilingSession | None = None

    def _open(self, spec: SessionSpec) -> ProfilingSession:
        self._latest = ProfilingSession(spec, Party(self.party), self._latest)
        return self._latest


class SchedulingTable(SessionTable[SchedulingSession]):
    """The scheduler of one party."""

    def _open(self, spec: SessionSpec) -> SchedulingSession:
        return SchedulingSession(spec, Party(self.party))
