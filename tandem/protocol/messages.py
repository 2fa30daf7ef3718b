"""Every message that Tandem's actors exchange, grouped by receiver, with its binary form.

A message is a frozen value. It knows nothing of who delivers it (socket, Ray, virtual clock). Only `LinkFrame`
crosses the link between the two sides, and nothing in it holds text: documents, questions and answers stay out.
The layout of a frame is the order of the fields (docs/wire-format.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from tandem.protocol.wire import (
    Blob,
    Digest,
    Flag,
    Float32,
    Float64,
    Float64s,
    PartyField,
    Registry,
    Text,
    Texts,
    UInt32,
    Varint,
    Varints,
    sequence,
)

PROTOCOL_VERSION = 3
_registry = Registry()


# ---- between the two draft queues, and within a side ------------------------------------------------------


@_registry.message(1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One side's proposal for one output position. Decoder -> both DraftQueues.

    The token is not sent: it is a function of the law, the seed, the side and the step (tandem.aggregation.rules).
    """

    party: PartyField  # who drafted; absolute
    step: Varint  # output position, 0-based
    epoch: Varint  # rollbacks of that side before this draft
    digest: Digest  # of the prefix it was conditioned on; pairs drafts
    log_weight: Float32  # log-sum-exp of this side's document scores, DRAGON A.1
    decode_us: Varint  # time the side took to decode it, microseconds
    payload: Blob  # Codec.encode(q), q: [vocab]


@_registry.message(2)
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The aggregator's decision for one step. Aggregating DraftQueue -> the peer's."""

    step: Varint  # output position, 0-based
    target: Varint  # the token to commit
    device_accepted: Flag  # the device's draft equals the target
    cloud_accepted: Flag
    device_epoch: Varint  # rollbacks of each side after this verdict
    cloud_epoch: Varint
    device_acceptance: Varint  # expected, by the formula of the draft rule, in 1/127 (`in_127ths`)
    cloud_acceptance: Varint
    next_aggregator: PartyField  # who decides the next step


@_registry.message(3)
@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The sender has committed the whole answer: the count and the digest are in the frame's header."""

    is_reply: Flag  # an answer to the receiver's own Done, not to be answered again


@_registry.message(4)
@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """The device's committed tokens, which the cloud adopts. Starts the generation of its frame."""

    aggregator: PartyField  # who decides the next step
    tokens: Varints  # all committed tokens, from step 0


@_registry.message(5)
@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The sender is alive; its LinkFrame carries what is acknowledged."""


@_registry.message(6)
@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The sender has given the session up; drop it."""

    reason: Text  # one sentence about the session, never document text
    is_refused: Flag = (
        False  # what was asked for is at fault, not the sender: the peer cannot answer it either
    )


@_registry.message(8)
@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Asks for an echo at once, to measure the round trip and, by its padding, the bandwidth."""

    is_reply: Flag  # an echo, not to be answered again
    padding: Blob  # zeros


@_registry.message(9)
@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """The cloud's draft queue was restarted and knows nothing of what was committed: it asks for a Resync."""

    incarnation: UInt32  # drawn at the restart; one Resync answers it


LinkBody: TypeAlias = Proposal | Verdict | Done | Resync | Heartbeat | Cancel | Probe | Rejoin


@_registry.message(7)
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFrame:
    """What crosses the link: one body under the header that acknowledges and measures. DraftQueue -> peer."""

    session: UInt32  # the query
    view: Varint  # number of Resyncs; frames of an older generation are ignored
    committed: Varint  # tokens the sender has committed
    committed_digest: Digest  # of those tokens; two digests for one count are a divergence
    sent_us: UInt32  # the sender's clock, microseconds modulo 2^32
    echo_us: UInt32  # `sent_us` of the last frame it had received
    held_us: UInt32  # how long ago that was; all ones: none received yet
    body: Annotated[Any, _registry.nested(Proposal, Verdict, Done, Resync, Heartbeat, Cancel, Probe, Rejoin)]


# ---- to a DraftQueue ---------------------------------------------------------------------------------------


@_registry.message(16)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReady:
    """A new draft of the own decoder. Decoder -> own DraftQueue."""

    session: UInt32
    draft: Annotated[Any, _registry.nested(Proposal)]
    token: Varint = 0  # drawn from the draft's law; shown to a user who asked for provisional tokens


@_registry.message(17)
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """What the aggregator found for a Pair. Aggregator -> own DraftQueue."""

    session: UInt32
    view: Varint  # of the Pair or Lone that it answers
    digest: Digest  # of the prefix it decided on
    step: Varint
    target: Varint
    device_accepted: Flag
    cloud_accepted: Flag
    device_acceptance: Float64  # expected, by the formula of the draft rule
    cloud_acceptance: Float64
    next_aggregator: PartyField


@_registry.message(18)
@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderReady:
    """Documents are retrieved and prefilled; drafting begins. Decoder -> own DraftQueue."""

    session: UInt32
    sources: Texts  # opaque ids of the documents in use
    scores: Float64s  # their cosine similarity to the query
    retrieve_us: Varint  # time the retrieval took, microseconds
    prefill_us: Varint
    notes: Texts  # sentences for the user of this side: a truncated document, ...


@_registry.message(19)
@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFailed:
    """The session cannot be decoded on this side. Decoder -> own DraftQueue."""

    session: UInt32
    reason: Text  # one sentence
    is_refused: Flag = False  # what was asked for is at fault


# ---- to a Decoder ------------------------------------------------------------------------------------------


@_registry.message(32)
@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A query starts. DraftQueue -> Decoder, Aggregator, Profiler and Scheduler of its side."""

    session: UInt32
    spec: Text  # SessionSpec.to_json()


@_registry.message(33)
@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One token is committed. DraftQueue -> own Decoder."""

    session: UInt32
    step: Varint
    token: Varint
    epoch: Varint  # rollbacks of this side after it
    is_last: Flag  # the answer is complete: draft no further
    view: Varint = 0  # Resyncs before it; tells which of a Commit and an Adopt is the later one


@_registry.message(34)
@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """The committed tokens are these (Resync, restart). DraftQueue -> own Decoder."""

    session: UInt32
    tokens: Varints  # all of them
    epoch: Varint  # rollbacks of this side after it
    is_last: Flag
    view: Varint = 0  # Resyncs before it, its own included


@_registry.message(35)
@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The session is over: stop and free it. DraftQueue -> Decoder, Aggregator, Profiler, Scheduler."""

    session: UInt32


@_registry.message(39)
@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How far to draft ahead. Profiler -> own Decoder."""

    session: UInt32
    size: Varint  # drafts past the last committed token


@_registry.message(36)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveResult:
    """The retrieved documents; they stay on this side. Retriever -> own Decoder."""

    session: UInt32
    ids: Texts  # opaque ids
    texts: Texts  # page contents
    scores: Float64s  # cosine similarity to the query
    retrieve_us: Varint


@_registry.message(37)
@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreResult:
    """Scores of the session's documents against question and answer so far. Retriever -> own Decoder."""

    session: UInt32
    digest: Digest  # of the prefix that was scored
    scores: Float64s  # cosine similarity, in the order of Found.ids


@_registry.message(38)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveFailed:
    """Retrieval failed. Retriever -> own Decoder."""

    session: UInt32
    reason: Text  # one sentence
    is_refused: Flag = False  # what was asked for is at fault


# ---- to a Retriever ----------------------------------------------------------------------------------------


@_registry.message(48)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveRequest:
    """Find documents for a query. Decoder -> own Retriever."""

    session: UInt32
    query: Text
    num_documents: Varint
    filter: Text = ""  # metadata that those that are found must have: a JSON object; empty: any


@_registry.message(49)
@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreRequest:
    """Re-estimate the relevance of documents (DRAGON 4.1). Decoder -> own Retriever."""

    session: UInt32
    digest: Digest  # of the prefix whose text follows
    ids: Texts
    text: Text  # question and answer so far


# ---- to an Aggregator --------------------------------------------------------------------------------------


@_registry.message(64)
@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """Both sides' drafts for the next step. DraftQueue -> own Aggregator."""

    session: UInt32
    view: Varint
    device: Annotated[Any, _registry.nested(Proposal)]  # Draft
    cloud: Annotated[Any, _registry.nested(Proposal)]  # Draft


@_registry.message(65)
@dataclass(frozen=True, slots=True, kw_only=True)
class SoloBallot:
    """One side's draft for the next step where it decides alone: the peer is lost, or was never asked.

    DraftQueue -> own Aggregator.
    """

    session: UInt32
    view: Varint
    draft: Annotated[Any, _registry.nested(Proposal)]


@_registry.message(66)
@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who shall aggregate from the next verdict of this side on. Scheduler -> own Aggregator."""

    session: UInt32
    aggregator: PartyField


# ---- to a Profiler and a Scheduler -------------------------------------------------------------------------


@_registry.message(80)
@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one committed step showed. Part of `Observations`."""

    step: Varint
    aggregator: PartyField  # who decides the next step
    device_decode_s: Float64  # nan: not seen
    cloud_decode_s: Float64
    device_acceptance: Float64  # expected, by the formula of the draft rule; nan: decided without the peer
    cloud_acceptance: Float64
    rtt_s: Float64  # nan: not measured since the last step
    bytes_per_s: Float64  # of the link towards the peer; nan: not measured since, inf: too much to measure


@_registry.message(82)
@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What some steps in a row showed; not one message a step, for that would wake two actors more for each token.

    DraftQueue -> own Profiler.
    """

    session: UInt32
    steps: Annotated[tuple[Any, ...], sequence(_registry.nested(Observation))]


@_registry.message(81)
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The profiler's estimates after a step; nan where nothing is known. Profiler -> own Scheduler."""

    session: UInt32
    step: Varint  # the last one observed
    aggregator: PartyField  # who decides the next step
    device_decode_s: Float64  # predicted for the next step
    cloud_decode_s: Float64
    device_acceptance: Float64
    cloud_acceptance: Float64
    rtt_s: Float64  # the real-time estimate
    rtt_average_s: Float64  # the historical one
    bytes_per_s: Float64  # towards the peer
    notes: Texts  # what a measurement was taken for, where it was not believed


@_registry.message(83)
@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the scheduler made of a profile. Scheduler -> own DraftQueue, for statistics and timelines."""

    session: UInt32
    profile: Annotated[Any, _registry.nested(Profile)]
    delta_z_s: (
        Float64  # Z of the device minus Z of the cloud, DRAGON Eq. 8: above 0 the cloud should aggregate
    )
    chosen: PartyField
    assumed: Texts  # one sentence for each value that was not measured or not believed


Message: TypeAlias = (
    LinkFrame
    | ProposalReady
    | VerifyResult
    | DecoderReady
    | DecoderFailed
    | Window
    | Begin
    | Commit
    | Adopt
    | End
    | RetrieveResult
    | RescoreResult
    | RetrieveFailed
    | RetrieveRequest
    | RescoreRequest
    | Ballot
    | SoloBallot
    | Placement
    | Observations
    | Profile
    | Estimate
)


def in_127ths(share: float) -> int:
    """A probability as a small integer, one byte on the wire; nan becomes 0."""
    return round(127 * min(1.0, max(0.0, share))) if share == share else 0


def encode(message: Message | LinkBody) -> bytes:
    """The frame of one message: a tag byte, then its fields."""
    return _registry.encode(message)


def decode(frame: bytes) -> Any:
    """The message in one frame; raises ProtocolError where the frame is malformed."""
    return _registry.decode(frame)
