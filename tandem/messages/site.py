"""Messages between the actors of one site, grouped by receiver. None of them crosses the link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tandem.errors import FAILED
from tandem.messages.link import Logprobs, Proposal, Votes, registry
from tandem.messages.wire import (
    Blobs,
    Digest,
    Failure,
    Flag,
    Float32s,
    Float64s,
    PartyIndex,
    Text,
    Texts,
    UInt32,
    Varint,
    Varints,
    sequence,
)

# ---- to a coordinator ---------------------------------------------------------------------------------------


@registry.message(16)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReady:
    """A new proposal of the own decoder. Decoder -> own coordinator."""

    session: UInt32
    proposal: Annotated[Any, registry.nested(Proposal)]


@registry.message(17)
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """How a ballot was decided. Aggregator -> own coordinator."""

    session: UInt32
    view: Varint  # of the ballot that it answers
    digest: Digest  # of the prefix it decided on
    step: Varint  # of the first token
    voters: Varints  # whose votes counted
    tokens: Varints  # to commit: accepted ones, then a correction or a bonus
    accepted: Varints  # how many of them each drafter had proposed
    acceptance: (
        Float64s  # of each drafter: expected, by the formula of the draft rule; nan: decided without the peer
    )
    next_decider: PartyIndex
    logprobs: Annotated[
        tuple[Any, ...], sequence(registry.nested(Logprobs))
    ] = ()  # of each token, where known


@registry.message(18)
@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderReady:
    """Documents are retrieved and prefilled; drafting begins. Decoder -> own coordinator."""

    session: UInt32
    sources: Texts  # opaque ids of the documents in use
    scores: Float64s  # their cosine similarity to the query
    retrieve_us: Varint  # time the retrieval took, microseconds
    prefill_us: Varint
    notes: Texts  # sentences for the user of this party: a truncated document, ...


@registry.message(19)
@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFailed:
    """The session cannot be decoded here. Decoder -> own coordinator."""

    session: UInt32
    reason: Text  # one sentence
    fault: Failure = FAILED


@registry.message(20)
@dataclass(frozen=True, slots=True, kw_only=True)
class VotesReady:
    """New votes of the own decoder, on another party's proposal. Decoder -> own coordinator."""

    session: UInt32
    votes: Annotated[Any, registry.nested(Votes)]


@registry.message(21)
@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The race lists of a ballot leave the winner open, or votes cannot be read. Aggregator -> own coordinator."""

    session: UInt32
    view: Varint  # of the ballot that it answers
    digest: Digest
    step: Varint
    voters: Varints
    depths: Varints  # of each voter: tokens of the list that may settle it; 0: its vote is known in full
    unreadable: Varints = ()  # peers whose vote cannot be decoded: it counts as not received
    problem: Text = ""  # one sentence about them


# ---- to a decoder ------------------------------------------------------------------------------------------


@registry.message(32)
@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A query starts. Coordinator -> decoder, aggregator, profiler and scheduler of its site."""

    session: UInt32
    spec: Text  # SessionSpec.to_json()


@registry.message(33)
@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One token is committed. Coordinator -> own decoder."""

    session: UInt32
    step: Varint
    token: Varint
    is_last: Flag  # the answer is complete: stop drafting
    view: Varint = 0  # Resyncs before it; says which of a Commit and an Adopt is later


@registry.message(34)
@dataclass(frozen=True, slots=True, kw_only=True)
class Adopt:
    """The committed tokens are these (Resync, restart). Coordinator -> own decoder."""

    session: UInt32
    tokens: Varints  # all of them
    is_last: Flag
    view: Varint = 0  # Resyncs so far, including its own


@registry.message(35)
@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The session is over: stop and free it. Coordinator -> decoder, aggregator, profiler, scheduler."""

    session: UInt32


@registry.message(39)
@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How far to draft ahead. Profiler -> own decoder."""

    session: UInt32
    size: Varint  # drafts past the last committed token


@registry.message(40)
@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Vote after each prefix of another party's proposal; without tokens: after the prefix it begins with.
    Coordinator -> own decoder, of a party that votes and does not draft."""

    session: UInt32
    proposal: Annotated[Any, registry.nested(Proposal)]


@registry.message(41)
@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Whether the answer goes on with drafts because all voters are lost. Coordinator -> own decoder, of a drafter."""

    session: UInt32
    is_alone: Flag


@registry.message(42)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLength:
    """How many tokens the next proposals have. Scheduler -> own decoder, of a drafter without a vote."""

    session: UInt32
    length: Varint  # 0: the decider goes on without proposals


@registry.message(36)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveResult:
    """The retrieved documents; they stay at this site. Retriever -> own decoder."""

    session: UInt32
    ids: Texts  # opaque ids
    texts: Texts  # page contents
    scores: Float64s  # cosine similarity to the query
    retrieve_us: Varint


@registry.message(38)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveFailed:
    """Retrieval failed. Retriever -> own decoder."""

    session: UInt32
    reason: Text  # one sentence
    fault: Failure = FAILED


# ---- to a retriever ----------------------------------------------------------------------------------------


@registry.message(48)
@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveRequest:
    """Find documents for a query. Decoder -> own retriever."""

    session: UInt32
    query: Text
    num_documents: Varint
    filter: Text = ""  # metadata that those that are found must have: a JSON object; empty: any


# ---- to an aggregator --------------------------------------------------------------------------------------


@registry.message(64)
@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
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
@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who is to aggregate from the next verdict of this party on. Scheduler -> own aggregator."""

    session: UInt32
    aggregator: PartyIndex
