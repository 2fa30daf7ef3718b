"""The decoder of a party that votes on what another one proposes: blocks of votes, each from one pass.

A voter answers with its vote after every prefix of a proposal, one more than that has tokens. A vote behind a rejected
token never becomes current. Where this party alone votes, its vote is the token that will be committed: it need not
wait for the commit, and a proposal that says otherwise is left at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

from tandem.aggregation.rules import Proposed
from tandem.messages import Local, Proposal, Votes
from tandem.messages.wire import MAX_FRAME_BYTES
from tandem.modes.proposing import MAX_PROPOSAL
from tandem.modes.spec import SessionSpec
from tandem.protocol.decoding import Computed, DecodingSession, Forward
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import extend_digest

MAX_VOTES_BYTES = MAX_FRAME_BYTES // 2
"""Of the votes of one message, if there are several."""


@dataclass(frozen=True, slots=True)
class Vote:
    """What this party says after one prefix."""

    step: int
    payload: bytes
    token: int
    log_weight: float | None = None  # of the documents; None: the party's weight is fixed


class FollowingSession(DecodingSession):
    """The state of one query in the decoder of a party that votes and does not draft.

    Invariants: one vote per prefix, ever, and one proposed token per prefix, the first that came. The line is the
    committed tokens, then own votes if they decide, then what is proposed behind them.
    """

    def __init__(self, spec: SessionSpec, party: str) -> None:
        super().__init__(spec, party)
        self._decides = spec.roles.voters == (party,)
        self._is_weighed = spec.roles.weighs_by_documents
        self._goes_on = self._decides and spec.rules.pacing == "cloud_goes_on"
        self._proposed: dict[
            bytes, tuple[int, Proposed]
        ] = {}  # with the step, by digest of the prefix before it
        self._wanted: dict[bytes, int] = {}  # prefixes that a vote is wanted for, with their length
        self._votes: dict[bytes, Vote] = {}

    # ---- results -------------------------------------------------------------------------------------------------

    def finish(self, job: Forward, results: Sequence[Computed]) -> list[Send]:
        """Vote after each prefix of the block, as far as the line still goes this way."""
        self._learn(job, results)
        digests: list[bytes] = []
        for step, result in enumerate(results[job.num_learned :], job.wanted):
            digest = job.lineage[step]
            if self._has_ended or step > len(self.prefix) or self.prefix.digests[step] != digest:
                break
            weight = result.log_weight if self._is_weighed else None
            vote = self._votes.setdefault(digest, Vote(step, result.payload, result.token, weight))
            digests.append(digest)
            if self._decides:
                self._follow_vote(vote)
        return self._send(digests)

    def is_current(self, job: Forward) -> bool:
        """Whether a result of `job` is still wanted; the model asks between layers."""
        first = min(job.wanted, job.step)
        return (
            not self._has_ended
            and first <= len(self.prefix)
            and self.prefix.digests[first] == job.lineage[first]
        )

    def _follow_vote(self, vote: Vote) -> None:
        """The own vote is the next token: go on with it, and with what is proposed behind it."""
        if vote.step < self.line.num_committed:
            return
        self.line.replace(vote.step, vote.token)
        self._follow_proposals()

    def _send(self, digests: Sequence[bytes]) -> list[Send]:
        """Stored votes on successive prefixes."""
        sends: list[Send] = []
        while digests:
            count = self._count_that_fit(digests)
            sends.append(self._make_votes(digests[:count]))
            digests = digests[count:]
        return sends

    def _count_that_fit(self, digests: Sequence[bytes]) -> int:
        """How many of the votes one message holds, at least one: in full, some take megabytes together."""
        sizes = accumulate(len(self._votes[digest].payload) for digest in digests)
        return max(1, sum(size <= MAX_VOTES_BYTES for size in sizes))

    def _make_votes(self, digests: Sequence[bytes]) -> Send:
        votes = [self._votes[digest] for digest in digests]
        message = Votes(
            party=self.spec.roles.topology.index(self.party),
            step=votes[0].step,
            digests=tuple(digests),
            payloads=tuple(vote.payload for vote in votes),
            log_weights=tuple(vote.log_weight for vote in votes if vote.log_weight is not None),
        )
        return Send("draft_queue", Local(session=self.spec.session, body=message))

    # ---- planning ------------------------------------------------------------------------------------------------

    @property
    def _first_step(self) -> int:
        """The first step that is not voted on."""
        digests = self.prefix.digests
        steps = range(self.line.num_committed, len(digests))
        return next((step for step in steps if digests[step] not in self._votes), len(digests))

    def _next_forward(self) -> Forward | None:
        first = self._first_step
        steps = range(first, min(len(self.prefix) + 1, first + MAX_PROPOSAL + 1))
        last = max(takewhile(self._wants, steps), default=None)
        if last is None:
            return None
        proposed = [
            self._proposed.get(digest, (0, None))[1] for digest in self.prefix.digests[first : last + 1]
        ]
        return self._plan(first, last, proposed)

    def _wants(self, step: int) -> bool:
        """Whether a vote after the first `step` tokens of the line is wanted now."""
        if not self._may_continue(step):
            return False
        goes_on = self._goes_on and step - self.line.num_committed < self.spec.decoding.max_window
        return goes_on or self.prefix.digests[step] in self._wanted

    # ---- changes -------------------------------------------------------------------------------------------------

    def _on_order(self, message: Any) -> list[Send]:
        if not isinstance(message, Local):
            return []
        proposal: Proposal = message.body
        digest = proposal.digest
        for position, token in enumerate(proposal.tokens):
            payload = proposal.payloads[position] if proposal.payloads else None
            self._proposed.setdefault(digest, (proposal.step + position, Proposed(token, payload)))
            self._wanted[digest] = proposal.step + position
            digest = extend_digest(digest, token)
        self._wanted[digest] = proposal.step + len(proposal.tokens)
        self._follow_proposals()
        # A vote that is asked for again may be lost.
        is_repeated = not proposal.tokens and proposal.digest in self._votes
        return self._send([proposal.digest]) if is_repeated else []

    def _follow_proposals(self) -> None:
        """Lengthen the line by own votes that decide and by what is proposed behind it."""
        prefix = self.prefix
        while len(prefix) - self.line.num_committed <= 2 * MAX_PROPOSAL:
            vote, proposed = self._votes.get(prefix.digest), self._proposed.get(prefix.digest)
            if self._decides and vote is not None:
                prefix.append(vote.token)
            elif proposed is not None:
                prefix.append(proposed[1].token)
            else:
                return

    def _extend(self) -> list[Send]:
        self._follow_proposals()
        return []

    def _on_adopt(self, message: Any) -> list[Send]:
        """After a restart of the coordinator, which holds no votes: they are sent again."""
        sends = super()._on_adopt(message)
        digests = self.prefix.digests[self.line.num_committed : self._first_step]
        return [*sends, *(self._send(digests) if not self._has_ended else [])]

    def _forget(self) -> None:
        """Drop what no later step can need; a Resync may take some tokens back."""
        horizon = self.line.num_committed - 2 * MAX_PROPOSAL
        if horizon > 0 and self.line.num_committed % 16 == 0:
            self._forget_evidence()
            self._proposed = {key: kept for key, kept in self._proposed.items() if kept[0] >= horizon}
            self._wanted = {key: step for key, step in self._wanted.items() if step >= horizon}
            self._votes = {key: vote for key, vote in self._votes.items() if vote.step >= horizon}
