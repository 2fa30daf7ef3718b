"""Every message that Tandem's actors exchange, with its binary form: across the link, and within a site.

A message is a frozen value. It is registered where it is defined, by the byte that it begins with; the layout of a
frame is the order of the fields (docs/reference/wire-format.md). What crosses the link is a `LinkFrame` with one
`LinkBody`; no text of documents, questions or answers is in any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from tandem.errors import FAILED, ProtocolError
from tandem.messages.wire import (
    Blob,
    Blobs,
    Digest,
    Failure,
    FieldFormat,
    Flag,
    Float32s,
    Float64,
    Float64s,
    FrameCursor,
    Json,
    Line,
    Lines,
    Marks,
    PartyIndex,
    Registry,
    Text,
    Texts,
    UInt32,
    Varint,
    Varints,
    WireMessage,
    sequence,
    write_varint,
)

PROTOCOL_VERSION, OLDEST_VERSION = 17, 17
"""The newest version that this party speaks, and the oldest. A frame says the version that its reader must have: that
in which its body got its present form. So two versions speak with each other as long as they use what both have. A new
body, or a new field of one that is written unasked, is of a version of its own; numbers of bodies that are gone (7, 13,
14) are not given again."""

registry = Registry()


class LinkBody(WireMessage):
    """Base of the bodies of a `LinkFrame`."""

    __slots__ = ()
    words: ClassVar[str]
    """The body within a sentence."""
    since: ClassVar[int] = 17
    """The version of the protocol that gave the body its present form."""


def describe_versions() -> str:
    """The versions of this party in words."""
    is_one = OLDEST_VERSION == PROTOCOL_VERSION
    return f"version {PROTOCOL_VERSION}" if is_one else f"versions {OLDEST_VERSION} to {PROTOCOL_VERSION}"


def have_common(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two parties have a version in common. one, other: the oldest and the newest that each speaks."""
    return one[0] <= other[1] and other[0] <= one[1]


def _read_version(cursor: FrameCursor) -> int:
    version = cursor.varint()
    if not OLDEST_VERSION <= version <= PROTOCOL_VERSION:
        raise ProtocolError(
            f"A frame of protocol version {version} was received, but this party speaks {describe_versions()}; "
            "install the same version of tandem-rag at both parties."
        )
    return version


Version = Annotated[int, FieldFormat(write_varint, _read_version)]


@registry.body(1)
class Vote(LinkBody):
    """The drafts or votes of a party after one prefix, and after each token that follows it. Drafter -> voters or
    deciders; voter -> decider; within a site decoder -> coordinator, and on to the decoder of a party that votes on
    proposals.

    Of a drafter the tokens are those that it proposes. With each comes the distribution that it was drawn from, if the
    drafter votes, or the rule is rejection; else, and where a lottery decides, ids are enough. The token is a function
    of distribution, seed, party and step (tandem.aggregation.rules), which an aggregator computes; it is sent so that
    coordinators, which know no distributions, can tell dead branches. A drafter without a vote that sends none at all
    asks for the next token.

    Of a voter that follows proposals the tokens are the proposed ones along which it voted, and there is one
    distribution more: that behind the last of them.
    """

    words = "a vote"
    step: Varint  # output position of the first token, 0-based: length of the prefix
    digest: Digest  # of the prefix; decides alone whether the vote counts
    tokens: Varints = ()  # each behind the one before; 0 to 16, or 1 where the drafter votes
    payloads: Blobs = ()  # Codec.encode(q), q: [vocab], of each token, and of the next one; or draws; or none
    log_weights: Float32s = ()  # with each payload: log-sum-exp of the party's document scores, DRAGON A.1; or none
    decode_us: Varint = 0  # time the drafter took to decode them, microseconds

    @property
    def num_prefixes(self) -> int:
        """Successive prefixes that it says something about."""
        return max(len(self.tokens), len(self.payloads))


@registry.part(22)
class Logprobs(WireMessage):
    """How probable a token was in the target that it was drawn from, and the likeliest ones. Part of other messages."""

    logprob: Float64  # natural logarithm
    top_ids: Varints  # the likeliest first
    top_logprobs: Float64s  # of each


@registry.part(23)
class Tail(WireMessage):
    """Details that only the decider knows of its verdict, for the home of the query. Part of a `Verdict`."""

    # of each token, if it is asked for; at the decider of the first ones, as far as it knows them
    logprobs: Annotated[tuple[Any, ...], sequence(registry.nested(Logprobs))] = ()
    lost: Varints = ()  # parties behind the decider without which it was decided, by their index, ascending
    last_voters: Varints = ()  # of several behind it, whose vote on each token came last; the decider itself: not told

    def cut(self, first: int, end: int | None = None) -> Tail:
        """The same of these tokens alone."""
        return replace(self, logprobs=self.logprobs[first:end], last_voters=self.last_voters[first:end])


@registry.body(2)
class Verdict(LinkBody):
    """Decided tokens, in step order. The decider's coordinator -> those of all others.

    What several ballots decided may stand in one verdict.
    """

    words = "a verdict"
    step: Varint  # output position of the first token, 0-based
    tokens: Varints  # to commit
    accepted: Varints  # by each drafter, in the topology's order: bit i says whether it had proposed token i
    acceptance: Varints  # expected, by the formula of the draft rule, in 1/127 (`in_127ths`); of each drafter, or none
    next_decider: PartyIndex  # who decides the step after them
    tail: Annotated[tuple[Any, ...], sequence(registry.nested(Tail))] = ()  # one, or none

    @property
    def logprobs(self) -> tuple[Logprobs, ...]:
        """How probable each token was, as far as it says."""
        return tuple(logprobs for tail in self.tail for logprobs in tail.logprobs)

    def tail_at(self, position: int) -> Logprobs | None:
        """How probable the token at this position of it was; None: it does not say."""
        return next(iter(self.logprobs[position : position + 1]), None)

    def for_home(self, lost: Iterable[int] = (), last_voters: Iterable[int] = ()) -> Verdict:
        """The verdict as it goes to the home: log probabilities only if each token has them. lost, last_voters: of
        `Tail`."""
        tail = Tail(
            logprobs=self.logprobs if len(self.logprobs) >= len(self.tokens) else (),
            lost=tuple(lost),
            last_voters=tuple(last_voters),
        )
        return replace(self, tail=() if tail == Tail() else (tail,))

    def accepted_at(self, position: int) -> tuple[bool, ...]:
        """Whether each drafter had proposed the token at this position of it."""
        return tuple(bool(mask >> position & 1) for mask in self.accepted)


@registry.body(3)
class Done(LinkBody):
    """The sender has committed the whole answer: the count and the digest are in the frame's header."""

    words = "the end of the answer"
    is_reply: Flag  # an answer to the receiver's own Done; not to be answered


@registry.body(4)
class Resync(LinkBody):
    """The device's committed tokens, which the cloud adopts. It starts the view of its frame."""

    words = "tokens to be adopted"
    decider: PartyIndex  # who decides the next step
    tokens: Varints  # all committed tokens, from step 0


@registry.body(5)
class Heartbeat(LinkBody):
    """The sender is alive; its LinkFrame carries what is acknowledged."""

    words = "a heartbeat"


@registry.body(6)
class Cancel(LinkBody):
    """The sender has given up the session; drop it."""

    words = "a cancellation"
    reason: Line  # one sentence for the user, never document text and never read by a program
    fault: Failure = FAILED  # decides what the receiver does


@registry.body(8)
class Probe(LinkBody):
    """To be echoed at once: measures the round trip and, by its padding, the bandwidth."""

    words = "a probe"
    is_reply: Flag  # an echo; not to be answered
    padding: Blob  # zeros


@registry.body(9)
class Rejoin(LinkBody):
    """The cloud's coordinator was restarted and does not know what was committed: it asks for a Resync."""

    words = "a request for the committed tokens"
    incarnation: UInt32  # drawn at the restart; one Resync answers it


@registry.body(11)
class Open(LinkBody):
    """A query begins. Home -> peer, and on to parties behind it; repeated until a frame of the receiver arrives."""

    words = "an opening"
    spec: Text  # SessionSpec.to_json(), as the receiver may see it


@registry.body(12)
class Sources(LinkBody):
    """The documents that a party has retrieved and prefilled, passed on to the client at home; no text, title or
    score."""

    words = "sources"
    party: PartyIndex  # whose
    ids: Lines  # opaque
    retrieve_us: Varint  # time the retrieval took, microseconds
    prefill_us: Varint
    notes: Lines  # sentences for the user: a truncated document, ...
    marks: Marks = b""  # of the words of the documents, for a query that wants them


@registry.body(15)
class ListRequest(LinkBody):
    """The race list of a vote leaves the winner open: send a longer one, as a vote again. Decider -> voter."""

    words = "a request for more of a vote"
    step: Varint  # that is to be decided
    digest: Digest  # of the prefix before it
    depth: Varint  # tokens wanted; more than a list may have: the vote in full


@registry.message(10)
class LinkFrame(WireMessage):
    """A frame of the link: one body under the header that acknowledges and measures. Coordinator -> peer."""

    version: Version = OLDEST_VERSION  # of the protocol, that the reader must have
    session: UInt32  # the query
    view: Varint  # number of Resyncs so far; frames of an older view are ignored
    number: Varint = 0  # of a body whose receipt is to be acknowledged, from 1 on; 0: none is needed
    received: Varints = ()  # numbers that the sender has received in this view and not acknowledged yet
    committed: Varint  # tokens the sender has committed
    committed_digest: Digest  # of those tokens; two digests for one count are a divergence
    stamp: Varint  # of this frame, for the receiver to echo: from 1 to 127 and again
    echo: Varint  # `stamp` of the last frame it had received; 0: none yet
    held_us: Varint  # how long ago that frame arrived, microseconds
    body: Annotated[Any, registry.bodies()]


def join_tails(verdicts: Sequence[Verdict]) -> tuple[Tail, ...]:
    """The tail of one verdict for successive ones, to be sent `for_home`."""
    return (Tail(logprobs=tuple(each for verdict in verdicts for each in verdict.logprobs)),)


def in_127ths(share: float) -> int:
    """A probability as a small integer, one byte on the wire; nan becomes 0."""
    return round(127 * min(1.0, max(0.0, share))) if share == share else 0


# ---- within a site: none of these crosses the link -----------------------------------------------------------


@registry.part(24)
class Attribution(WireMessage):
    """How probable each document of a party made one token: what citations are made of. Part of `Local`, and so never
    on the link."""

    step: Varint  # of the token
    digest: Digest  # of the prefix that ends with it
    masses: Float32s  # w_d(t) p_d(x) of each document, in the order of `Sources.ids`, then of rows without


@registry.message(16)
class Local(WireMessage):
    """A body of the link within a site. Decoder -> own coordinator: its new vote. Coordinator -> own decoder: what is
    decided, as the peers hear it; after a Resync or a restart all committed tokens; and where the party votes on
    proposals what it is to vote on, without tokens a request.
    """

    session: UInt32
    body: Annotated[Any, registry.nested(Vote, Verdict, Resync)]
    view: Varint = 0  # Resyncs so far; says which of a verdict and a Resync is later
    is_last: Flag = False  # the answer is complete: stop drafting
    # of the home's decoder, of tokens that it has learned
    attributions: Annotated[tuple[Any, ...], sequence(registry.nested(Attribution))] = ()


# ---- to a coordinator ---------------------------------------------------------------------------------------


@registry.message(17)
class VerifyResult(WireMessage):
    """How a ballot was decided, or what it lacks. Aggregator -> own coordinator.

    Without tokens it is open: race lists leave the winner open, or a vote cannot be read.
    """

    session: UInt32
    view: Varint  # of the ballot that it answers
    digest: Digest  # of the prefix it decided on
    step: Varint  # of the first token
    voters: Varints  # whose votes counted
    tokens: Varints = ()  # to commit: accepted ones, then a correction or a bonus
    accepted: Varints = ()  # how many of them each drafter had proposed
    acceptance: Float64s = ()  # of each drafter, expected by the draft rule; nan: decided without the peer
    next_decider: PartyIndex = 0
    tail: Annotated[tuple[Any, ...], sequence(registry.nested(Tail))] = ()  # of the verdict; one, or none
    own: Float64s = ()  # of each token: how much of it this party's vote said; none: nobody asks, or it voted alone
    most: Float64s = ()  # of each token: the most that the votes can give it; none as above
    depths: Varints = ()  # of each voter: tokens of the list that may settle it; 0: its vote is known in full
    unreadable: Varints = ()  # peers whose vote cannot be decoded: it counts as not received
    problem: Text = ""  # one sentence about them


@registry.message(18)
class DecoderReady(WireMessage):
    """Documents are retrieved and prefilled; drafting begins. Decoder -> own coordinator."""

    session: UInt32
    scores: Float64s  # of the documents in use: their cosine similarity to the query
    masses: Float32s = ()  # `Attribution.masses` of every token, of a lone row: its weight does not follow the answer
    sources: Annotated[Any, registry.nested(Sources)]  # these documents; the last field, as their marks are


@registry.message(19)
class DecoderFailed(WireMessage):
    """The session cannot be decoded here. Decoder -> own coordinator."""

    session: UInt32
    reason: Text  # one sentence
    fault: Failure = FAILED


# ---- to a decoder ------------------------------------------------------------------------------------------


@registry.message(32)
class Begin(WireMessage):
    """A query starts. Coordinator -> decoder, aggregator, profiler and scheduler of its site."""

    session: UInt32
    spec: Json  # a SessionSpec; actors of one process get the object


@registry.message(35)
class End(WireMessage):
    """The session is over: stop and free it. Coordinator -> decoder, aggregator, profiler, scheduler."""

    session: UInt32


@registry.message(39)
class DraftWindow(WireMessage):
    """The number of steps to draft ahead. Profiler -> own decoder."""

    session: UInt32
    size: Varint  # drafts past the last committed token


@registry.message(41)
class Alone(WireMessage):
    """Whether drafts continue the answer because all voters are lost. Coordinator -> own decoder, of a drafter."""

    session: UInt32
    is_alone: Flag


@registry.message(36)
class RetrieveResult(WireMessage):
    """The retrieved documents; they stay at this site. Retriever -> own decoder."""

    session: UInt32
    ids: Texts = ()  # opaque ids
    texts: Texts = ()  # page contents
    scores: Float64s = ()  # cosine similarity to the query
    retrieve_us: Varint = 0
    notes: Texts = ()  # sentences for the user of this party: why there are none
    marks: Blob = b""  # as of `Sources`


@registry.message(38)
class RetrieveFailed(WireMessage):
    """Retrieval failed. Retriever -> own decoder."""

    session: UInt32
    reason: Text  # one sentence
    fault: Failure = FAILED


# ---- to a retriever ----------------------------------------------------------------------------------------


@registry.message(48)
class RetrieveRequest(WireMessage):
    """Find documents for a query. Decoder -> own retriever."""

    session: UInt32
    query: Text
    num_documents: Varint
    filter: Text = ""  # metadata that those that are found must have: a JSON object; empty: any
    before: Text = ""  # the question of the turn before, to which the query may refer; empty: there is none
    wants_marks: Flag = False  # of the words of what is found


# ---- to an aggregator --------------------------------------------------------------------------------------


@registry.message(64)
class Ballot(WireMessage):
    """Enough to decide the next step: the votes of all voters that are there. Coordinator -> own aggregator.

    Where votes follow a proposal, those after each of its tokens may be there as well: enough for several steps.
    """

    session: UInt32
    view: Varint
    step: Varint
    digest: Digest  # of the committed prefix
    voters: Varints  # in the topology's order; a lost one is missing
    tokens: Varints  # proposed after the prefix, and voted on
    payloads: Blobs  # those of all voters for the prefix, then for the prefix and one token, and so on
    log_weights: Float32s  # with each payload; none where weights are fixed


@registry.message(66)
class Placement(WireMessage):
    """The party that is to aggregate from the next verdict of this party on. Scheduler -> own aggregator."""

    session: UInt32
    aggregator: PartyIndex


# ---- to a profiler and a scheduler: what steps showed, and what follows -------------------------------------


@registry.part(80)
class Observation(WireMessage):
    """The measurements of one committed step. Part of `Observations`."""

    step: Varint
    aggregator: PartyIndex  # who decides the next step
    decode_s: Float64s  # of each party; nan: not seen
    acceptance: (
        Float64s  # of each party: expected, by the formula of the draft rule; nan: decided without the peer
    )
    rtt_s: Float64  # nan: not measured since the last step
    bytes_per_s: Float64  # of the link towards the peer; nan: not measured since, inf: too much to measure


@registry.message(82)
class Observations(WireMessage):
    """The measurements of a few consecutive steps: one message per step would wake two more actors for every token.

    Coordinator -> own profiler.
    """

    session: UInt32
    steps: Annotated[tuple[Any, ...], sequence(registry.nested(Observation))]


@registry.message(81)
class Profile(WireMessage):
    """The profiler's estimates after a step; nan where nothing is known. Profiler -> own scheduler."""

    session: UInt32
    step: Varint  # the last one observed
    aggregator: PartyIndex  # who decides the next step
    decode_s: Float64s  # of each party, predicted for the next step
    acceptance: Float64s  # of each party
    rtt_s: Float64  # the real-time estimate
    rtt_average_s: Float64  # the historical one
    bytes_per_s: Float64  # towards the peer
    notes: Texts  # one sentence for each measurement that was clamped, and to what


@registry.message(83)
class Estimate(WireMessage):
    """The scheduler's advice on a profile. Scheduler -> own coordinator, for statistics and timelines."""

    session: UInt32
    profile: Annotated[Any, registry.nested(Profile)]
    delta_z_s: Float64  # Z(device) - Z(cloud), DRAGON Eq. 8: above 0 the cloud should aggregate
    chosen: PartyIndex
    assumed: Texts  # one sentence for each value that was not measured or not believed


encode = registry.encode
decode = registry.decode


def decode_link(frame: bytes) -> LinkFrame:
    """The message in one frame of another party, which may send nothing but a LinkFrame; else ProtocolError."""
    decoded: LinkFrame = registry.decode(frame, (LinkFrame,))
    return decoded
