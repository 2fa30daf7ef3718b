"""What a verdict changes at one party: the committed log and all that depends on it, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import nan

from tandem.events import TokenEvent
from tandem.messages import Proposal, Verdict, VerifyResult
from tandem.modes.spec import SessionSpec
from tandem.protocol.ballots import BallotBox
from tandem.protocol.lifecycle import Lifecycle, StopCheck
from tandem.protocol.link import PeerLink
from tandem.protocol.log import CommittedLog, DecidedToken
from tandem.protocol.outbox import Send
from tandem.protocol.report import CommitRecord, Reporter, expected_acceptance
from tandem.protocol.rounds import ProposalRounds
from tandem.protocol.routes import Routes
from tandem.protocol.to_home import Messenger


class Committer:
    """Commits the tokens of verdicts.

    Invariant: after each token ballots and backlogs hold nothing that cannot count any more, and the stop rule has been
    asked about exactly the committed tokens.
    """

    def __init__(
        self,
        spec: SessionSpec,
        routes: Routes,
        log: CommittedLog,
        ballots: BallotBox,
        links: Mapping[str, PeerLink],
        reporter: Reporter,
        lifecycle: Lifecycle,
        check_stop: StopCheck,
        now_s: float,
    ) -> None:
        self.check_stop = check_stop
        self.opened_s = self.committed_s = now_s  # and when the last token was committed
        self._party = routes.party
        self._log, self._ballots, self._links = log, ballots, links
        self._reporter, self._lifecycle = reporter, lifecycle
        self.rounds = ProposalRounds(spec, routes.party, reporter)
        self.messenger = Messenger(routes, log, ballots, reporter, lifecycle)
        self._lost: frozenset[str] = frozenset()  # when the last verdict was committed

    def resume(self) -> list[Send]:
        """What an earlier run of this query committed, for the client and the own decoder."""
        tokens = self._log.prefix.tokens
        if not tokens:
            return []
        sends = [Send("decoder", self._log.make_adopt(is_last=False))]
        for step, token in enumerate(tokens):
            sends += self._reporter.confirm(step, token)
            sends += self._reporter.emit(_repeat(step, token, self._log.decider))
        return sends

    def make_verdict(self, result: VerifyResult) -> Verdict:
        """What the own aggregator decided, as far as the answer goes."""
        num_tokens = self._count_to_end(result.tokens)
        return self._log.make_verdict(result, num_tokens, is_home=self.messenger.is_home)

    def _count_to_end(self, tokens: Sequence[int]) -> int:
        """How many of these next tokens belong to the answer."""
        for count in range(1, len(tokens)):
            if self.check_stop([*self._log.prefix.tokens, *tokens[:count]]) is not None:
                return count
        return len(tokens)

    def commit(self, verdict: Verdict, result: VerifyResult | None, now_s: float) -> list[Send]:
        """Commit a verdict up to the end of the answer: the own one, made of `result`, or a peer's."""
        num_before = len(self._log.prefix)
        acceptance = expected_acceptance(verdict, result, len(self._log.epochs))
        decided_by = self._party if result is not None else self.messenger.decider
        logprobs = verdict.logprobs if result is None else result.logprobs
        sends = self.messenger.follow(verdict, len(self._log.prefix))
        for decided, known in zip_longest(self._log.split(verdict), logprobs[: len(verdict.tokens)]):
            if self._lifecycle.reason is not None:  # a peer's verdict goes on behind the end
                break
            last_voter = self.messenger.last_voter(verdict, decided.step)
            record = self._append(decided, decided_by, acceptance, last_voter, now_s)
            sends += self._commit_token(replace(record, logprobs=known), now_s)
        is_known, self._lost = self._lifecycle.lost == self._lost, frozenset(self._lifecycle.lost)
        if self._lifecycle.decides_alone or not is_known:
            self.rounds.forget()
            return sends
        num_tokens = len(self._log.prefix) - num_before
        return sends + self.rounds.commit(self._log.prefix, num_tokens, now_s, self.opened_s)

    def note(self, proposal: Proposal, now_s: float) -> list[Send]:
        """An own proposal goes out: show what it adds, and await what becomes of it."""
        self.rounds.propose(proposal, len(self._log.prefix), now_s)
        return self.show(now_s)

    def show(self, now_s: float) -> list[Send]:
        """Show the own drafts that follow what is shown, or the drafter's, while the answer goes on."""
        if self._lifecycle.reason is not None:
            return []
        return self._reporter.show(self.messenger.drafts, now_s - self.opened_s)

    def _commit_token(self, record: CommitRecord, now_s: float) -> list[Send]:
        decided, log = record.decided, self._log
        event, observations = self._reporter.commit(record)
        commit = log.make_commit(decided, is_last=record.is_last)
        sends = [Send("decoder", commit), *self._reporter.confirm(decided.step, decided.token)]
        sends += self._reporter.emit(event) + self.show(now_s) + observations
        if decided.next_decider != log.decider:
            log.decider = decided.next_decider
            sends += self._reporter.emit_placement(decided.step + 1, log.decider)
        return sends

    def _append(
        self,
        decided: DecidedToken,
        decided_by: str,
        acceptance: tuple[float, ...],
        last_voter: str | None,
        now_s: float,
    ) -> CommitRecord:
        log, ballots, lifecycle = self._log, self._ballots, self._lifecycle
        drafts, epochs = ballots.drafts_on(log.prefix.digest), tuple(log.epochs.values())
        last_voter = last_voter or ballots.find_last_voter(log.prefix.digest, lifecycle.voters)
        log.append(decided)
        ballots.advance(log.prefix)
        for link in self._links.values():
            link.backlog.drop_dead(ballots.own, len(log.prefix))
        lifecycle.reason = self.check_stop(log.prefix.tokens)
        self.committed_s = now_s
        is_degraded = bool(lifecycle.lost or self.messenger.lost_elsewhere)
        return CommitRecord(
            decided=decided,
            decided_by=decided_by,
            acceptance=acceptance,
            drafts=drafts,
            epochs=epochs,
            is_alone=is_degraded or lifecycle.is_solo,
            is_degraded=is_degraded,
            is_last=lifecycle.reason is not None,
            committed_s=now_s - self.opened_s,
            last_voter=last_voter,
        )


def _repeat(step: int, token: int, decider: str) -> TokenEvent:
    """A token that an earlier run of the query committed, of which nothing else is known. decider: of this run."""
    return TokenEvent(
        step=step,
        token=token,
        text="",
        device_accepted=False,
        cloud_accepted=False,
        aggregator=decider,
        committed_s=0.0,
        device_decode_s=nan,
        cloud_decode_s=nan,
    )
