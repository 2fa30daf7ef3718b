"""Every message that Tandem's actors exchange, with its binary form: across the link, and within a site.

A message is a frozen value. The layout of a frame is the order of the fields (docs/wire-format.md).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tandem.protocol.messages.link import (
    Cancel,
    Done,
    Heartbeat,
    LinkBody,
    LinkFrame,
    Probe,
    Proposal,
    Rejoin,
    Resync,
    Verdict,
    in_127ths,
    registry,
)
from tandem.protocol.messages.site import (
    Adopt,
    Ballot,
    Begin,
    Commit,
    DecoderFailed,
    DecoderReady,
    End,
    Estimate,
    Observation,
    Observations,
    Placement,
    Profile,
    ProposalReady,
    RescoreRequest,
    RescoreResult,
    RetrieveFailed,
    RetrieveRequest,
    RetrieveResult,
    SoloBallot,
    VerifyResult,
    Window,
)

PROTOCOL_VERSION = 3

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


def encode(message: Message | LinkBody) -> bytes:
    """The frame of one message: a tag byte, then its fields."""
    return registry.encode(message)


def decode(frame: bytes) -> Any:
    """The message in one frame; ProtocolError if the frame is malformed."""
    return registry.decode(frame)


__all__ = [
    "PROTOCOL_VERSION",
    "Adopt",
    "Ballot",
    "Begin",
    "Cancel",
    "Commit",
    "DecoderFailed",
    "DecoderReady",
    "Done",
    "End",
    "Estimate",
    "Heartbeat",
    "LinkBody",
    "LinkFrame",
    "Message",
    "Observation",
    "Observations",
    "Placement",
    "Probe",
    "Profile",
    "Proposal",
    "ProposalReady",
    "Rejoin",
    "RescoreRequest",
    "RescoreResult",
    "Resync",
    "RetrieveFailed",
    "RetrieveRequest",
    "RetrieveResult",
    "SoloBallot",
    "Verdict",
    "VerifyResult",
    "Window",
    "decode",
    "encode",
    "in_127ths",
    "registry",
]
