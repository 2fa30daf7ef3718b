"""What the models compute next in a mode whose votes follow a proposal: drafts that continue it, blocks of votes on it.

A voter answers with its distributions after every prefix of the proposal, one more than it has tokens, from one pass.
A vote behind a rejected token simply never becomes current.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.modes.roles import MAX_PROPOSAL
from tandem.protocol.coordinator import SessionCoordinator
from tandem.protocol.messages import Proposal, ProposalReady, Votes, VotesReady
from tandem.protocol.prefix import extend_digest

PATIENCE_S = 0.5
"""A voter without a proposal votes on the committed prefix after this long: no drafter can stop the answer."""
MAX_RUN_AHEAD = 32
"""Tokens that a drafter proposes past the committed prefix, at most."""


@dataclass(frozen=True, slots=True)
class Block:
    """What a voter computes in one pass: its distributions after `tokens[:first]` and after each further token."""

    tokens: tuple[int, ...]
    first: int


def next_draft(session: SessionCoordinator) -> tuple[int, ...] | None:
    """The tokens after which the drafter drafts now; None: far enough ahead, no drafter, or the answer is complete."""
    is_drafting = session.spec.roles.role(session.party).drafts and session.lifecycle.reason is None
    if not is_drafting:
        return None
    line = session.ballots.follow(session.prefix, MAX_RUN_AHEAD)
    return None if len(line) >= MAX_RUN_AHEAD else (*session.prefix.tokens, *line)


def next_block(session: SessionCoordinator, now_s: float) -> Block | None:
    """What the voter computes now; None: nothing, no voter, or the answer is complete."""
    is_voting = session.spec.roles.role(session.party).votes and session.lifecycle.reason is None
    if not is_voting or not session.log.is_known:
        return None
    line = session.ballots.follow(session.prefix, MAX_PROPOSAL)
    known, digest, first = session.ballots.own, session.prefix.digest, 0
    while digest in known:
        if first == len(line):
            return None
        digest, first = extend_digest(digest, line[first]), first + 1
    if not line and now_s - session.committer.committed_s < PATIENCE_S:
        return None
    return Block((*session.prefix.tokens, *line), len(session.prefix) + first)


def make_proposal(
    session: SessionCoordinator,
    after: Sequence[int],
    tokens: Sequence[int],
    payloads: Sequence[bytes],
    decode_us: int = 0,
) -> ProposalReady:
    """The drafter's next tokens after these. payloads: their encoded distributions, which stay with this party."""
    proposal = Proposal(
        party=session.spec.roles.topology.index(session.party),
        step=len(after),
        digest=session.prefix.of(after).digest,
        tokens=tuple(tokens),
        payloads=tuple(payloads),
        log_weights=(),
        decode_us=decode_us,
    )
    return ProposalReady(session=session.spec.session, proposal=proposal)


def make_votes(session: SessionCoordinator, block: Block, payloads: Sequence[bytes]) -> VotesReady:
    """The voter's distributions for a block."""
    votes = Votes(
        party=session.spec.roles.topology.index(session.party),
        step=block.first,
        digests=tuple(session.prefix.of(block.tokens).digests[block.first :]),
        payloads=tuple(payloads),
    )
    return VotesReady(session=session.spec.session, votes=votes)
