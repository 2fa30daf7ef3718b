"""The committed tokens of one session, in step order, and who decides the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandem.messages import Resync, Verdict, VerifyResult, in_127ths, join_tails
from tandem.messages.wire import MAX_VARINT_BITS
from tandem.modes.roles import Roles
from tandem.protocol.prefix import Prefix

MAX_VERDICT_TOKENS = MAX_VARINT_BITS
"""One verdict has at most so many: it says of each by a bit whether it was proposed."""
MAX_AHEAD = 256
"""Proposals, verdicts and claims further than this past the committed prefix are dropped; resends bring them back."""


class Log:
    """The committed prefix, and verdicts that arrived before their turn.

    Invariants: tokens are appended in step order, and only `adopt` removes any. At most MAX_AHEAD verdicts wait, and
    none of them whose last token is committed.
    """

    def __init__(self, session: int, roles: Roles, decider: str, opened_s: float = 0.0) -> None:
        self.prefix = Prefix(session)
        self.epochs = dict.fromkeys(roles.drafters, 0)  # rollbacks of each drafter
        self.decider = decider  # of the next step
        self.verdicts: dict[int, Verdict] = {}  # of the peers, by their first step
        self.incarnation: int | None = (
            None  # this party was restarted, and waits for a Resync: it decides nothing
        )
        self.view = 0  # Resyncs so far
        self.adopted_view = 0  # of the last Resync that was adopted here
        self.opened_s = self.committed_s = opened_s  # and when the last token was committed
        self._topology = roles.topology

    @property
    def is_synced(self) -> bool:
        """Whether this party has the committed tokens, and waits for no Resync."""
        return self.incarnation is None

    def is_near(self, step: int) -> bool:
        """Whether a step is near enough to be buffered."""
        return step < len(self.prefix) + MAX_AHEAD

    def hold(self, verdict: Verdict) -> bool:
        """Buffer a verdict of a peer until its turn. False: it is too far ahead, and must come again."""
        is_near = self.is_near(verdict.step)
        if is_near and verdict.step + len(verdict.tokens) > len(self.prefix):
            self.verdicts[verdict.step] = verdict
        return is_near

    def take_next(self) -> Verdict | None:
        """Take a peer's verdict from the next step on, if it is there; it may begin before."""
        length = len(self.prefix)
        for step, verdict in self.verdicts.items():
            if step <= length < step + len(verdict.tokens):
                del self.verdicts[step]
                return _without_first(verdict, length - step)
        return None

    def make_verdict(self, result: VerifyResult, num_tokens: int) -> Verdict:
        """The verdict on the next steps: the first tokens of the own aggregator's result."""
        return Verdict(
            step=result.step,
            tokens=result.tokens[:num_tokens],
            accepted=tuple((1 << min(count, num_tokens)) - 1 for count in result.accepted),
            acceptance=tuple(map(in_127ths, result.acceptance)),
            next_decider=result.next_decider,
            tail=tuple(tail.cut(0, num_tokens) for tail in result.tail),
        )

    def append(self, verdict: Verdict, position: int, now_s: float = 0.0) -> None:
        """Commit the token of the next step, which is the one at this position of a verdict."""
        self.committed_s = now_s
        self.prefix.append(verdict.tokens[position])
        for drafter, is_accepted in zip(self.epochs, verdict.accepted_at(position), strict=True):
            self.epochs[drafter] += not is_accepted
        length = len(self.prefix)
        if self.verdicts:
            self.verdicts = {
                step: verdict
                for step, verdict in self.verdicts.items()
                if step + len(verdict.tokens) > length
            }

    def make_resync(self) -> Resync:
        """All committed tokens, for who may not have heard of all of them."""
        return Resync(decider=self._topology.index(self.decider), tokens=tuple(self.prefix.tokens))

    def adopt(self, tokens: Sequence[int], party: str, view: int, decider: str) -> None:
        """Replace what differs from the authority's `tokens` by these, in a new view.

        party: this one, which begins a new epoch if it drafts. decider: of the next step.
        """
        common = self.prefix.common_length(tokens)
        self.prefix.truncate(common)
        self.prefix.extend(tokens[common:])
        if party in self.epochs:
            self.epochs[party] += 1
        self.verdicts.clear()
        self.view = self.adopted_view = view
        self.decider, self.incarnation = decider, None


def _without_first(verdict: Verdict, count: int) -> Verdict:
    """The verdict from the next step on."""
    if count == 0:
        return verdict
    return replace(
        verdict,
        step=verdict.step + count,
        tokens=verdict.tokens[count:],
        accepted=tuple(mask >> count for mask in verdict.accepted),
        tail=tuple(tail.cut(count) for tail in verdict.tail),
    )


def join_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for successive ones, whose tokens are at most MAX_VERDICT_TOKENS. What is expected of the drafters
    differs from step to step, so the last one's holds for all."""
    step, last = verdicts[0].step, verdicts[-1]
    if len(verdicts) == 1:
        return last
    masks = [
        sum(mask << verdict.step - step for mask, verdict in zip(of_drafter, verdicts, strict=True))
        for of_drafter in zip(*(verdict.accepted for verdict in verdicts), strict=True)
    ]
    tokens = tuple(token for verdict in verdicts for token in verdict.tokens)
    joined = replace(last, step=step, tokens=tokens, accepted=tuple(masks), tail=join_tails(verdicts))
    return joined.for_home()
