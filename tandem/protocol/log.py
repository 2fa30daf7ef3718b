"""The committed tokens of one session, in step order, and who decides the next one."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.protocol.messages import Verdict, VerifyResult, in_127ths
from tandem.protocol.prefix import Prefix
from tandem.topology import PARTIES, Party

MAX_AHEAD = 256
"""Proposals, verdicts and claims further than this past the committed prefix are dropped; resends bring them back."""


class CommittedLog:
    """The committed prefix, and verdicts that arrived before their turn.

    Invariants: tokens are appended in step order, and only `adopt` removes any. At most MAX_AHEAD verdicts wait, and
    none of them for a step that was committed when it arrived.
    """

    def __init__(self, session: int, aggregator: Party) -> None:
        self.prefix = Prefix(session)
        self.epochs = dict.fromkeys(PARTIES, 0)  # rollbacks of each party
        self.aggregator = aggregator  # decides the next step
        self.verdicts: dict[int, Verdict] = {}  # of the peer, by step

    def expects(self, step: int) -> bool:
        """Whether `step` is still to be committed, and near enough to be buffered."""
        return len(self.prefix) <= step < len(self.prefix) + MAX_AHEAD

    def hold(self, verdict: Verdict) -> None:
        """Buffer a verdict of the peer until its step is next."""
        if self.expects(verdict.step):
            self.verdicts[verdict.step] = verdict

    def take_next(self) -> Verdict | None:
        """The peer's verdict on the next step, if it is there."""
        return self.verdicts.pop(len(self.prefix), None)

    def make_verdict(self, result: VerifyResult) -> Verdict:
        """The verdict on the next step, of the own aggregator's result."""
        return Verdict(
            step=result.step,
            target=result.target,
            device_accepted=result.device_accepted,
            cloud_accepted=result.cloud_accepted,
            device_epoch=self.epochs[Party.DEVICE] + (not result.device_accepted),
            cloud_epoch=self.epochs[Party.CLOUD] + (not result.cloud_accepted),
            device_acceptance=in_127ths(result.device_acceptance),
            cloud_acceptance=in_127ths(result.cloud_acceptance),
            next_aggregator=result.next_aggregator,
        )

    def append(self, verdict: Verdict) -> None:
        """Commit the token of `verdict`, which decides the next step."""
        self.prefix.append(verdict.target)
        self.epochs[Party.DEVICE] += not verdict.device_accepted
        self.epochs[Party.CLOUD] += not verdict.cloud_accepted

    def adopt(self, tokens: Sequence[int], party: Party) -> None:
        """Replace what differs from `tokens`, on behalf of `party`, which begins a new epoch."""
        common = self.prefix.common_length(tokens)
        self.prefix.truncate(common)
        self.prefix.extend(tokens[common:])
        self.epochs[party] += 1
