"""The outcomes of the proposals of a drafter without a vote: observations by which later ones get their length.

A round is known by the committed tokens alone: a proposed token counts as accepted if it is the one that was committed.
"""

from __future__ import annotations

from math import isnan, nan

from tandem.events import Event, RoundEvent
from tandem.messages import Round, Rounds, Vote
from tandem.modes.spec import SessionSpec
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.report import REPORT_STEPS


class ProposalRounds:
    """The proposals of one drafter without a vote that are not judged yet.

    Invariants: a proposal is judged once, as soon as the committed tokens hold all of it or contradict it; one that
    continues other tokens than the committed ones says nothing and is dropped. What is committed never depends on this.
    """

    def __init__(self, spec: SessionSpec, party: str) -> None:
        self._session = spec.session
        self._adapts_lengths = spec.rules.adapts_lengths(party)
        self._pacing = spec.rules.pacing
        self._waiting: dict[bytes, tuple[Vote, float]] = {}  # undecided, by digest, with when it was sent
        self._unreported: list[Round] = []
        self._committed_s = nan
        self._lost: frozenset[str] | None = frozenset()  # when the last verdict was committed

    def propose(self, proposal: Vote, num_committed: int, now_s: float) -> None:
        """A proposal is on its way; one that is repeated counts from now on. num_committed: tokens of the answer."""
        if self._adapts_lengths:
            self._waiting.pop(proposal.digest, None)
            # before the first token the voter may have been reading its documents still
            self._waiting[proposal.digest] = proposal, now_s if num_committed else nan

    def commit(
        self,
        prefix: Prefix,
        num_new: int,
        now_s: float,
        opened_s: float,
        link: tuple[float, float],
        lost: frozenset[str] | None,
    ) -> tuple[list[Event], list[Send]]:
        """A verdict is committed: events for the client, and what the profiler gets.

        prefix: with its num_new tokens; opened_s: when the query was. link: round trip in seconds, and bytes per
        second. lost: without whom it was decided; None: without any voter, and then nobody judges what is on its way.
        """
        is_same, self._lost = lost is not None and lost == self._lost, lost
        if not is_same:  # what is on its way may wait for one that is gone
            self._waiting.clear()
            self._committed_s = nan
        if not is_same or not self._adapts_lengths:
            return [], []
        has_proposals = bool(self._waiting)
        judged = [
            (proposal, sent_s, count)
            for proposal, sent_s in self._waiting.values()
            if (count := count_accepted(proposal, prefix)) is not None
        ]
        self._waiting = {key: kept for key, kept in self._waiting.items() if is_open(kept[0], prefix)}
        events: list[Event] = [
            RoundEvent(
                step=proposal.step,
                length=len(proposal.tokens),
                num_accepted=count,
                judged_s=now_s - opened_s,
            )
            for proposal, _, count in judged
        ]
        rounds = [
            self._observe(proposal, count, now_s, now_s - sent_s, link) for proposal, sent_s, count in judged
        ]
        if self._pacing == "cloud_goes_on" and not has_proposals:
            alone = Round(waited_s=(now_s - self._committed_s) / num_new, rtt_s=link[0], bytes_per_s=link[1])
            rounds.append(alone)
        self._committed_s = now_s
        return events, self._report(rounds)

    def _observe(
        self, proposal: Vote, num_accepted: int, now_s: float, waited_s: float, link: tuple[float, float]
    ) -> Round:
        if self._pacing == "pipelined" and not isnan(
            self._committed_s
        ):  # without the wait behind another one
            waited_s = min(waited_s, now_s - self._committed_s + link[0])
        return Round(
            length=len(proposal.tokens),
            num_accepted=num_accepted,
            draft_us=proposal.decode_us,
            num_bytes=sum(map(len, proposal.payloads)),
            waited_s=waited_s,
            rtt_s=link[0],
            bytes_per_s=link[1],
        )

    def _report(self, rounds: list[Round]) -> list[Send]:
        """Report at once where something was judged; tokens without a proposal a few at a time."""
        self._unreported += rounds
        is_due = any(each.length for each in rounds) or len(self._unreported) >= REPORT_STEPS
        if not is_due:
            return []
        reported, self._unreported = tuple(self._unreported), []
        return [Send("profiler", Rounds(session=self._session, rounds=reported))]


def count_accepted(proposal: Vote, prefix: Prefix) -> int | None:
    """Its tokens before the first rejected one; None: not decided yet, or it continues other tokens."""
    step, length = proposal.step, len(proposal.tokens)
    if len(prefix) <= step or prefix.digests[step] != proposal.digest:
        return None
    committed = prefix.tokens[step : step + length]
    pairs = zip(proposal.tokens, committed, strict=False)
    num_equal = next((count for count, (one, other) in enumerate(pairs) if one != other), len(committed))
    return num_equal if num_equal < len(committed) or num_equal == length else None


def is_open(proposal: Vote, prefix: Prefix) -> bool:
    """Whether later tokens can judge it."""
    if len(prefix) < proposal.step:
        return True
    return prefix.digests[proposal.step] == proposal.digest and count_accepted(proposal, prefix) is None
