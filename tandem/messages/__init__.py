"""Every message that Tandem's actors exchange, with its binary form: across the link, and within a site.

A message is a frozen value. The layout of a frame is the order of the fields (docs/reference/wire-format.md).
"""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

from tandem.messages.estimates import (
    Estimate,
    Observation,
    Observations,
    Profile,
    Round,
    RoundProfile,
    Rounds,
)
from tandem.messages.link import (
    PROTOCOL_VERSION,
    Cancel,
    Done,
    Heartbeat,
    LinkBody,
    LinkFrame,
    ListRequest,
    Logprobs,
    Open,
    Probe,
    Proposal,
    Rejoin,
    RelayedSources,
    Resync,
    Sources,
    Verdict,
    VerdictToHome,
    VerdictWithLogprobs,
    Votes,
    in_127ths,
    registry,
)
from tandem.messages.site import (
    Adopt,
    Alone,
    Ballot,
    Begin,
    Commit,
    DecoderFailed,
    DecoderReady,
    End,
    Follow,
    Placement,
    ProposalLength,
    ProposalReady,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    Undecided,
    VerifyResult,
    VotesReady,
    Window,
)

Message: TypeAlias = (
    LinkFrame
    | ProposalReady
    | VotesReady
    | VerifyResult
    | Undecided
    | DecoderReady
    | DecoderFailed
    | Window
    | ProposalLength
    | Begin
    | Commit
    | Adopt
    | Follow
    | Alone
    | End
    | RetrieveResult
    | RetrieveFailed
    | RetrieveRequest
    | Ballot
    | Placement
    | Observations
    | Profile
    | Estimate
    | Rounds
    | RoundProfile
)


def encode(message: Message | LinkBody) -> bytes:
    """The frame of one message: a tag byte, then its fields."""
    return registry.encode(message)


_MESSAGES: frozenset[type[Any]] = frozenset(get_args(Message))
_LINK_MESSAGES: frozenset[type[Any]] = frozenset({LinkFrame})


def decode(frame: bytes) -> Any:
    """The message in one frame; ProtocolError if the frame is malformed, or holds a body without its message."""
    return registry.decode(frame, _MESSAGES)


def decode_link(frame: bytes) -> LinkFrame:
    """The message in one frame of another party, which may send nothing but a LinkFrame; else ProtocolError."""
    message: LinkFrame = registry.decode(frame, _LINK_MESSAGES)
    return message


__all__ = [
    "PROTOCOL_VERSION",
    "Adopt",
    "Alone",
    "Ballot",
    "Begin",
    "Cancel",
    "Commit",
    "DecoderFailed",
    "DecoderReady",
    "Done",
    "End",
    "Estimate",
    "Follow",
    "Heartbeat",
    "LinkBody",
    "LinkFrame",
    "ListRequest",
    "Logprobs",
    "Message",
    "Observation",
    "Observations",
    "Open",
    "Placement",
    "Probe",
    "Profile",
    "Proposal",
    "ProposalLength",
    "ProposalReady",
    "Rejoin",
    "RelayedSources",
    "Resync",
    "RetrieveFailed",
    "RetrieveRequest",
    "RetrieveResult",
    "Round",
    "RoundProfile",
    "Rounds",
    "Sources",
    "Undecided",
    "Verdict",
    "VerdictToHome",
    "VerdictWithLogprobs",
    "VerifyResult",
    "Votes",
    "VotesReady",
    "Window",
    "decode",
    "decode_link",
    "encode",
    "in_127ths",
    "registry",
]
