"""What crosses the link: a `LinkFrame` with one body. No text of documents, questions or answers is in any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from tandem.errors import FAILED, ProtocolError
from tandem.messages.wire import (
    Blob,
    Blobs,
    Digest,
    Digests,
    Failure,
    FieldFormat,
    Flag,
    Float32s,
    Float64,
    Float64s,
    FrameCursor,
    Line,
    Lines,
    PartyIndex,
    Registry,
    Text,
    UInt32,
    Varint,
    Varints,
    sequence,
    write_varint,
)

PROTOCOL_VERSION = 10

registry = Registry()


def _read_version(cursor: FrameCursor) -> int:
    version = cursor.varint()
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"A frame of protocol version {version} was received, but this party speaks version {PROTOCOL_VERSION}; "
            "install the same version of tandem-rag at both parties."
        )
    return version


Version = Annotated[int, FieldFormat(write_varint, _read_version)]


@registry.message(1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Tokens that a drafter proposes from one prefix. Drafter -> coordinators of all that vote or decide.

    A drafter that votes sends the distribution of each token along; what it sends is its vote, too. The token is a
    function of distribution, seed, party and step (tandem.aggregation.rules), which an aggregator computes; it is sent
    so that coordinators, which know no distributions, can tell dead branches. Of a drafter without a vote ids are
    enough, unless the rule is rejection. Such a proposal may be empty: it asks for the next token.
    """

    party: PartyIndex  # who drafted
    step: Varint  # output position of the first token, 0-based
    digest: Digest  # of the prefix before it; decides alone whether the proposal is valid
    tokens: Varints  # each conditioned on the one before; 0 to 16, or 1 where the drafter votes
    payloads: Blobs  # Codec.encode(q) of each token, q: [vocab]; none where ids are enough
    log_weights: Float32s  # with each payload: log-sum-exp of this party's document scores, DRAGON A.1
    decode_us: Varint  # time the party took to decode them, microseconds


@registry.message(2)
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was decided, in step order. The decider's coordinator -> those of all others.

    What several ballots decided may stand in one verdict.
    """

    step: Varint  # output position of the first token, 0-based
    tokens: Varints  # to commit
    accepted: Varints  # by each drafter, in the topology's order: bit i says whether it had proposed token i
    acceptance: Varints  # expected, by the formula of the draft rule, in 1/127 (`in_127ths`); of each drafter, or none
    next_decider: PartyIndex  # who decides the step after them


@registry.message(22)
@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """How probable a token was in the target that it was drawn from, and the likeliest ones. Part of other messages."""

    logprob: Float64  # natural logarithm
    top_ids: Varints  # the likeliest first
    top_logprobs: Float64s  # of each


@registry.message(13)
@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictWithLogprobs(Verdict):
    """A Verdict to the home of a query that asks for log probabilities, from a decider that alone knows the target."""

    logprobs: Annotated[tuple[Any, ...], sequence(registry.nested(Logprobs))]  # of each token


@registry.message(23)
@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictToHome(VerdictWithLogprobs):
    """A Verdict of several voters to the home of the query, where that is one of them: what only the decider knows."""

    lost: Varints  # parties without which it was decided, by their index, ascending
    last_voters: Varints  # whose vote on each token came last; the decider itself, which has none: not told


@registry.message(3)
@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The sender has committed the whole answer: the count and the digest are in the frame's header."""

    is_reply: Flag  # an answer to the receiver's own Done; not to be answered


@registry.message(4)
@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """The device's committed tokens, which the cloud adopts. It starts the view of its frame."""

    decider: PartyIndex  # who decides the next step
    tokens: Varints  # all committed tokens, from step 0


@registry.message(5)
@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The sender is alive; its LinkFrame carries what is acknowledged."""


@registry.message(6)
@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The sender has given up the session; drop it."""

    reason: Line  # one sentence for the user, never document text and never read by a program
    fault: Failure = FAILED  # decides what the receiver does


@registry.message(8)
@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """To be echoed at once: measures the round trip and, by its padding, the bandwidth."""

    is_reply: Flag  # an echo; not to be answered
    padding: Blob  # zeros


@registry.message(9)
@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """The cloud's coordinator was restarted and does not know what was committed: it asks for a Resync."""

    incarnation: UInt32  # drawn at the restart; one Resync answers it


@registry.message(11)
@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A query begins. Home -> peer, and on to parties behind it; repeated until a frame of the receiver arrives."""

    spec: Text  # SessionSpec.to_json(), as the receiver may see it


@registry.message(12)
@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the sender has retrieved and prefilled, for the client at home; no text, title or score."""

    ids: Lines  # opaque
    retrieve_us: Varint  # time the retrieval took, microseconds
    prefill_us: Varint
    notes: Lines  # sentences for the user: a truncated document, ...


@registry.message(24)
@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedSources(Sources):
    """Sources of a party that has no link to the home. Decider -> home."""

    party: PartyIndex  # whose


@registry.message(14)
@dataclass(frozen=True, slots=True, kw_only=True)
class Votes:
    """A voter's distributions after several prefixes, each one token longer than the one before. Voter -> decider."""

    party: PartyIndex  # who votes
    step: Varint  # length of the first prefix
    digests: Digests  # of the prefixes
    payloads: Blobs  # Codec.encode(p) after each
    log_weights: (
        Float32s  # with each: log-sum-exp of the voter's document scores; none where weights are fixed
    )


@registry.message(15)
@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """The race list of a vote leaves the winner open: send a longer one, as a proposal again. Decider -> voter."""

    step: Varint  # that is to be decided
    digest: Digest  # of the prefix before it
    depth: Varint  # tokens wanted; more than a list may have: the vote in full


LinkBody: TypeAlias = (
    Proposal
    | Verdict
    | VerdictWithLogprobs
    | VerdictToHome
    | Done
    | Resync
    | Heartbeat
    | Cancel
    | Probe
    | Rejoin
    | Open
    | Sources
    | RelayedSources
    | Votes
    | ListRequest
)


@registry.message(10)
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFrame:
    """What crosses the link: one body under the header that acknowledges and measures. Coordinator -> peer."""

    version: Version = PROTOCOL_VERSION  # of the protocol; a frame of another one is refused
    session: UInt32  # the query
    view: Varint  # number of Resyncs so far; frames of an older view are ignored
    number: Varint = 0  # of a body whose receipt is to be acknowledged, from 1 on; 0: none is needed
    received: Varints = ()  # numbers that the sender has received in this view and not acknowledged yet
    committed: Varint  # tokens the sender has committed
    committed_digest: Digest  # of those tokens; two digests for one count are a divergence
    stamp: Varint  # of this frame, for the receiver to echo: from 1 to 127 and again
    echo: Varint  # `stamp` of the last frame it had received; 0: none yet
    held_us: Varint  # how long ago that frame arrived, microseconds
    body: Annotated[
        Any,
        registry.nested(
            Proposal,
            Verdict,
            VerdictWithLogprobs,
            VerdictToHome,
            Done,
            Resync,
            Heartbeat,
            Cancel,
            Probe,
            Rejoin,
            Open,
            Sources,
            RelayedSources,
            Votes,
            ListRequest,
        ),
    ]


def in_127ths(share: float) -> int:
    """A probability as a small integer, one byte on the wire; nan becomes 0."""
    return round(127 * min(1.0, max(0.0, share))) if share == share else 0
