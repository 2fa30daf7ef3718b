"""The events of a stream and the parts of an answer, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from math import isnan, nan
from typing import Any, Literal, TypeAlias, get_args

from tandem.citations import Citation, Span
from tandem.errors import FAILED, Fault, QueryError
from tandem.messages import Logprobs
from tandem.support import UNSUPPORTED, Support, supported_spans
from tandem.topology import PARTIES, SERVER, Party, in_words

SHOWN_CHARS = 60
"""Characters of an answer's text in its `repr`."""
StopReason = Literal["eos", "stop", "loop", "length", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One retrieved document: an opaque id and, if it is the home party's own, what that party knows about it."""

    party: str  # "device", "cloud", "server" or the name of a worker
    id: str  # opaque
    title: str | None = None  # where it came from; this and what follows: None for others' documents
    score: float | None = None  # cosine similarity to the question
    text: str | None = None  # the passage that the model read
    page: int | None = None  # of a pdf, from 1
    metadata: dict[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcesEvent:
    """One party has retrieved and prefilled its documents."""

    party: str
    sources: tuple[Source, ...]
    retrieve_s: float  # nan: measured at the other end of the link
    prefill_s: float
    notes: tuple[str, ...] = ()  # sentences for the user
    marks: str = (
        ""  # of the words of the passages (`retrieval.words.mark_of`), in hexadecimal digits; if wanted
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How probable a token was in the target distribution: after temperature, `top_k`, `min_p` and codec."""

    token: int
    logprob: float  # natural logarithm of the probability
    text: str = ""  # what it spells alone; of a special token its name
    utf8: tuple[int, ...] | None = None  # its bytes, maybe a part of a character; None: a special token


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One committed token."""

    step: int  # output position, 0-based
    token: int
    text: str  # what it adds to the answer; may be empty within a multi-byte character
    device_accepted: bool  # of the server's draft in mode "federated", as all here that is the device's
    cloud_accepted: bool
    aggregator: str  # who decided it
    committed_s: float  # since the query was opened at the home party
    device_decode_s: float  # nan: that draft did not reach the home party
    cloud_decode_s: float
    device_arrived_s: float = nan  # when the draft came to the device's queue, since it was opened there
    cloud_arrived_s: float = nan
    device_acceptance: float = (
        nan  # expected, by the formula of the draft rule; nan: decided without the peer
    )
    cloud_acceptance: float = nan
    device_epoch: int = 0  # of the drafts
    cloud_epoch: int = 0
    rtt_s: float = nan  # last measured
    is_alone: bool = False  # decided without the peer, which is lost, or late (`decoding.patience_s`)
    # how much each party's vote counted, of sum 1; empty: it was decided elsewhere
    shares: dict[str, float] = field(default_factory=dict, hash=False)
    most: float = nan  # the most that the mixture gives it; nan: not decided at home by all votes
    # how well each party's documents fit question and answer so far, in nats (DRAGON A.1), as far as it came with the
    # drafts that decided it
    log_weights: dict[str, float] = field(default_factory=dict, hash=False)
    last_voter: str | None = None  # mode "federated": the worker whose vote came last, for which all waited
    logprob: TokenLogprob | None = None  # of this token; None: not asked for (`num_logprobs`)
    top_logprobs: tuple[TokenLogprob, ...] = ()  # of the likeliest tokens, the likeliest first
    citation: Citation | None = (
        None  # who said it; None: it is not known yet (a CitationEvent follows), or never
    )

    def with_tail(self, logprobs: Logprobs | None) -> TokenEvent:
        """The event with what the verdict says of its token's probability and the likeliest ones."""
        if logprobs is None:
            return self
        top = zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
        return replace(
            self,
            logprob=TokenLogprob(token=self.token, logprob=logprobs.logprob),
            top_logprobs=tuple(TokenLogprob(token=token, logprob=logprob) for token, logprob in top),
        )

    def spelled(self, spell: Callable[[int], tuple[str, tuple[int, ...] | None]]) -> TokenEvent:
        """The event with the names of the tokens whose probabilities it holds. spell: text and bytes of a token."""
        if self.logprob is None:
            return self
        named = []
        for each in (self.logprob, *self.top_logprobs):
            text, utf8 = spell(each.token)
            named.append(replace(each, text=text, utf8=utf8))
        return replace(self, logprob=named[0], top_logprobs=tuple(named[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CitationEvent:
    """Who said a token that was committed before it was known: one that another party had drafted, mostly."""

    step: int
    citation: Citation


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionalEvent:
    """A draft of the home party, or of who drafts for it, not yet committed: the TokenEvent of this step confirms it,
    unless a RetractEvent comes first. Drafts come in step order, and each extends the tokens shown so far."""

    step: int
    token: int
    text: str  # what it adds to the text so far; the TokenEvent that confirms it adds the same
    shown_at_s: float  # since the query was opened


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractEvent:
    """All provisional tokens from `step` on are withdrawn."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEvent:
    """The query waits at its home until one of the open ones ends (`cluster.max_sessions`); its time limit runs."""

    num_ahead: int  # queries that wait and came before


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """What one party said before the answer, alone, in an answer in steps (`tandem.client.steps`)."""

    party: str
    text: str
    sources: tuple[Source, ...] = ()  # of the home, that it read

    def __str__(self) -> str:
        return f"{self.party}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementEvent:
    """Another party aggregates from `step` on."""

    step: int
    aggregator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateEvent:
    """The estimates of the device's profiler and scheduler after a step: the inputs of DRAGON Eq. 8 and its result."""

    step: int
    aggregator: Party  # who decides the next step
    chosen: Party  # who should, by the scheduler; differs only under `greedy`
    delta_z_s: float  # Z of the device minus Z of the cloud: above 0 the cloud should aggregate
    device_decode_s: float  # predicted for the next step; these six: nan where nothing was measured
    cloud_decode_s: float
    device_acceptance: float  # moving averages
    cloud_acceptance: float
    rtt_s: float  # the real-time estimate
    rtt_average_s: float  # the historical one
    bytes_per_s: float  # of the link towards the cloud; inf: too much to measure
    assumed: tuple[str, ...]  # one sentence for each value that was not measured or not believed


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEvent:
    """A peer was lost or came back; in between the home party answers without it."""

    step: int  # the first step that is decided without it, or with it again
    is_alone: bool  # it was lost
    reason: str | None = None  # one sentence, where the peer gave one
    party: str = Party.CLOUD  # the peer


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatistics:
    """Counters of one session, as its home party saw them."""

    num_tokens: int = 0
    num_device_accepted: int = 0  # of the server's drafts in mode "federated"
    num_cloud_accepted: int = 0
    expected_device_acceptance: float = nan  # mean over the steps decided by both sides' drafts
    expected_cloud_acceptance: float = nan
    num_resyncs: int = 0
    num_divergences: int = 0
    num_resent_frames: int = 0
    num_certified: int = 0  # steps decided at home whose race lists settled the winner at once
    num_escalated: int = 0  # those that needed a longer list of the peer
    num_list_requests: int = 0  # longer lists that were asked for: each costs a round trip
    num_refused_frames: int = 0  # whose sender may not send such a thing, by its role
    num_late_votes: int = 0  # steps decided without the cloud's vote, later than `decoding.patience_s`
    degraded_from: int | None = None  # first step decided without the peer, although it takes part
    rtt_s: float = nan  # last measured
    bytes_per_s: float = nan  # of the link towards the cloud; inf: too much to measure
    sent_frames: int = 0  # on the link, this query
    sent_bytes: int = 0
    received_frames: int = 0
    received_bytes: int = 0
    first_token_s: float = nan  # since the query was opened on the device
    total_s: float = nan


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneEvent:
    """The answer is complete, or ended early."""

    reason: StopReason
    statistics: SessionStatistics
    error: str | None = None  # one sentence where the reason is "failed", or the home fell silent
    fault: Fault | None = None  # what programs may know of it
    session: int = 0  # names the query at its parties
    support: Support | None = None  # of the answer, by the passages of the home; None: nobody looked

    def check(self) -> None:
        """Raises QueryError where the query failed."""
        if self.reason == "failed":
            raise QueryError(self.error or "The query failed.", **asdict(self.fault or FAILED))


Event: TypeAlias = (
    SourcesEvent
    | TokenEvent
    | CitationEvent
    | ProvisionalEvent
    | RetractEvent
    | WaitEvent
    | StepEvent
    | PlacementEvent
    | EstimateEvent
    | PeerEvent
    | DoneEvent
)
EVENT_TYPES: Mapping[str, type[Event]] = {
    kind.__name__.removesuffix("Event").lower(): kind for kind in get_args(Event)
}
"""The class of events of each name over HTTP: `sources`, `token`, ..., `done`."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event and the session that it belongs to, on its way from a draft queue's state machine."""

    session: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answered query. `print` shows its text, a notebook its text and sources."""

    text: str
    tokens: tuple[TokenEvent, ...]
    sources: tuple[Source, ...]
    reason: StopReason
    seed: int
    statistics: SessionStatistics
    notes: tuple[str, ...] = ()  # "PARTY: sentence": documents that were cut, a filter that matches none, ...
    estimates: tuple[EstimateEvent, ...] = ()  # one every few steps
    placements: tuple[PlacementEvent, ...] = ()  # the handovers
    session: int = 0  # names the query at its parties
    peer_events: tuple[PeerEvent, ...] = ()  # when a party was lost, and when it came back
    support: Support | None = None  # whether the passages that it cites say it; None: nobody looked
    steps: tuple[StepEvent, ...] = ()  # what was said before it, and crossed the link

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN_CHARS else f"{self.text[:SHOWN_CHARS]}..."
        degraded = f", degraded from token {self.statistics.degraded_from}" if self.is_degraded else ""
        return f"Answer({text!r}, {len(self.tokens)} tokens, {len(self.sources)} sources{degraded})"

    def _repr_html_(self) -> str:
        """A fragment of HTML, as notebooks show it: the text, why it is degraded, its sources; all of it escaped."""
        warning = f"<p><em>{escape(self.degraded_reason)}</em></p>" if self.degraded_reason else ""
        parties = dict.fromkeys([*PARTIES, *(source.party for source in self.sources)])
        items = "".join(f"<li>{line}</li>" for party in parties for line in _lines(self.sources, party))
        sources = f"<p>Sources</p><ul>{items}</ul>" if items else "<p>Sources: none</p>"
        return f'<div><p style="white-space: pre-wrap">{escape(self.text)}</p>{warning}{sources}</div>'

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The committed ids."""
        return tuple(event.token for event in self.tokens)

    @property
    def shares(self) -> dict[str, float]:
        """How much each party's votes counted, on average over the tokens of which it is known here."""
        shares = [event.shares for event in self.tokens if event.shares]
        parties = dict.fromkeys(party for each in shares for party in each)
        return {party: sum(each.get(party, 0.0) for each in shares) / len(shares) for party in parties}

    @property
    def citations(self) -> list[Span]:
        """The parts of the text that a document of the home party said, by its place in `own_sources`, but those with a
        number, code or name that is not in its passage; none where nothing supports the answer."""
        return supported_spans(self.tokens, self.support)

    @property
    def own_sources(self) -> tuple[Source, ...]:
        """The documents of the home party, of which alone scores are known here, in the order of the shares of a
        `Citation`."""
        return tuple(source for source in self.sources if source.score is not None)

    @property
    def is_degraded(self) -> bool:
        """Whether some of it was decided without the cloud, or without a worker."""
        return self.statistics.degraded_from is not None

    @property
    def degraded_reason(self) -> str | None:
        """One sentence that says from which token on a party was missing, and why; None if none ever was."""
        step = self.statistics.degraded_from
        if step is None:
            return None
        lost = [event for event in self.peer_events if event.is_alone and event.step <= step]
        back = [event for event in self.peer_events if not event.is_alone and event.step > step]
        cause, peer = (lost[-1].reason, lost[-1].party) if lost else (None, Party.CLOUD)
        until = f"; it came back at token {back[0].step}" if back else ""
        home = self.tokens[step].aggregator if peer == SERVER else "the device"  # continues alone
        who = f"{home if peer in (Party.CLOUD, SERVER) else 'the others'} answered without {in_words(peer)}"
        return f"From token {step} on {who} ({(cause or 'it fell silent').rstrip('.')}){until}."


def cited_tokens(events: Sequence[Event]) -> tuple[TokenEvent, ...]:
    """The tokens of an answer, each with what became known of it later."""
    late = {event.step: event.citation for event in events if isinstance(event, CitationEvent)}
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    return tuple(
        replace(token, citation=late[token.step]) if token.step in late else token for token in tokens
    )


def collect(events: Sequence[Event], seed: int) -> Answer:
    """The answer that the events of one query make up. Raises QueryError where the query failed."""
    done = events[-1]
    assert isinstance(done, DoneEvent)
    done.check()
    return assemble(events, done, seed)


def assemble(events: Sequence[Event], done: DoneEvent, seed: int) -> Answer:
    """The answer that events make up, even of a query that failed. done: the last of them."""
    tokens = cited_tokens(events)
    retrieved = [event for event in events if isinstance(event, SourcesEvent)]
    # whichever came first
    retrieved.sort(key=lambda event: (event.party in (Party.CLOUD, SERVER), event.party))
    return Answer(
        text="".join(token.text for token in tokens).strip(),
        tokens=tokens,
        sources=tuple(source for event in retrieved for source in event.sources),
        notes=(
            *(f"{event.party}: {note}" for event in retrieved for note in event.notes),
            *([done.error] if done.error and done.reason == "length" else []),
            *([UNSUPPORTED] if done.support and done.support.is_supported is False else []),
        ),
        reason=done.reason,
        seed=seed,
        statistics=done.statistics,
        estimates=tuple(event for event in events if isinstance(event, EstimateEvent)),
        placements=tuple(event for event in events if isinstance(event, PlacementEvent)),
        session=done.session,
        peer_events=tuple(event for event in events if isinstance(event, PeerEvent)),
        support=done.support,
        steps=tuple(event for event in events if isinstance(event, StepEvent)),
    )


def _lines(sources: tuple[Source, ...], party: str) -> Iterator[str]:
    """A line for each document with a title, its passage folded away; one for all whose titles stay away."""
    own = [source for source in sources if source.party == party]
    for source in own:
        if source.title is not None:
            is_scored = source.score is not None and not isnan(source.score)
            score = f" ({source.score:.2f})" if is_scored else ""
            page = "" if source.page is None else f", page {source.page}"
            heading = f"{party}: {escape(source.title)}{page}{score}"
            passage = f"<details><summary>{heading}</summary>{escape(source.text or '')}</details>"
            yield passage if source.text else heading
    num_opaque = sum(source.title is None for source in own)
    if num_opaque:
        noun = "document" if num_opaque == 1 else "documents"
        yield f"{party}: {num_opaque} {noun} that stay there"
