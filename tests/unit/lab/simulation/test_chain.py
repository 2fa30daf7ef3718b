"""Modes whose drafter has no vote: every run gives the tokens of the draft-free loop, and planted defects are found.

The mutants are alternative implementations of the small classes. What crosses if a worker is asked is told in
`protocol/transcripts/asked_at_a_worker`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.aggregation.rules import Step
from tandem.events import PeerEvent
from tandem.messages import Ballot, LinkBody, Local, Verdict, VerifyResult, Vote
from tandem.modes.query import Roles
from tandem.modes.tally import Tally
from tandem.protocol.ballots import BallotBox
from tandem.protocol.decoding import FollowingSession, Forward
from tandem.protocol.log import Log, Prefix, digests_along
from tandem.protocol.peer import Peer
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Routes, Send
from tandem.protocol.services import AggregatorSession
from tandem.protocol.session import Session
from tandem.topology import SERVER
from tandem_lab.simulation import fuzz as simulated
from tandem_lab.simulation.fuzz import fuzz, play
from tandem_lab.simulation.scenario import Scenario, make_chain_scenario
from tests.unit.lab.simulation.planted import Mutate, Planted, both_tests_of, put
from tests.unit.lab.simulation.test_mutants import (
    WithoutMemory,
    cache_not_cropped,
    evidence_of_votes_is_that_of_the_first,
    evidence_starts_at_zero_after_a_restart,
    evidence_survives_a_rollback,
    weights_rounded_at_one_party,
)
from tests.unit.lab.simulation.test_race_list_mutants import (
    LongerListIsKeptAside,
    bound_left_out,
    noise_of_another_step,
    without_certificate,
)
from tests.unit.lab.simulation.world import calm, cut, played

NUM_SEEDS = {0: 16, 2: 12, 3: 10, 5: 5, 8: 3}
"""Runs by the number of workers (0: speculative)."""
MANY = {
    "speculative": 2000,
    "federated-2": 500,
    "federated-3": 500,
    "federated-5": 300,
    "federated-8": 200,
    "dual-lottery": 2000,
    "federated-2-lottery": 500,
    "federated-3-lottery": 500,
    "federated-5-lottery": 300,
}
"""Runs of each role at night."""


def roles_of(num_workers: int) -> str:
    return f"federated-{num_workers}" if num_workers else "speculative"


@pytest.mark.parametrize("num_workers", NUM_SEEDS)
def test_every_run_gives_the_tokens_of_the_draft_free_loop(num_workers: int) -> None:
    drafters, lengths, policies, counts = set(), set(), set(), Counter[str]()
    weighed, listed, homes = set(), set(), set()
    for seed in range(NUM_SEEDS[num_workers]):
        report = play(seed, roles=roles_of(num_workers))
        assert report.num_tokens > 0 or report.counts["cancelled"]
        scenario = make_chain_scenario(seed, num_workers)
        drafters.add(scenario.drafter)
        lengths.add(scenario.spec.decoding.max_proposal)
        policies.add(scenario.spec.decoding.length_policy)
        weighed.add(scenario.spec.roles.weighs_by_documents)
        listed.add(scenario.spec.rules.has_race_lists)
        homes.add(scenario.spec.home)
        counts += report.counts
    assert len(drafters) > 1
    assert max(lengths) > 1
    assert len(policies) > 1
    assert weighed == listed == ({False, True} if num_workers else {False})
    assert (len(homes) > 1) == (num_workers > 0)
    assert counts["tokens accepted"] > 0, "no proposal was any good"
    assert any(counts[name] for name in ("host crashes", "cuts", "stalls", "crashes"))


@pytest.mark.nightly("thousands of runs")
@pytest.mark.parametrize("roles", MANY)
def test_many_runs_give_the_tokens_of_the_draft_free_loop(roles: str) -> None:
    report = fuzz(0, MANY[roles], 2, max_failures=5, roles=roles)
    assert not report.failures, "\n".join(map(str, report.failures))
    assert report.num_runs == MANY[roles]


def test_a_length_that_adapts_is_quicker_than_a_poor_one() -> None:
    """In virtual time, at 300 ms: proposals of one token wait a round trip each."""
    times_s = {}
    for policy, max_proposal in (("fixed", 1), ("last_accepted", 16)):
        scenario = calm(
            1, 0, length_policy=policy, max_proposal=max_proposal, max_window=16, pacing="stop_and_wait",
            on_peer_loss="wait", max_new_tokens=60, drafter="good", delay_s=0.15, pass_s=0.02,
        )  # fmt: skip
        times_s[policy] = played(scenario).tokens[-1].committed_s
    assert times_s["last_accepted"] < 0.6 * times_s["fixed"]


@pytest.mark.parametrize("max_proposal", [1, 2, 4])
def test_a_pipeline_never_waits_for_the_patience_of_the_voter(
    max_proposal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a proposal begins with the token that was its predecessor's bonus."""
    requests: list[float] = []
    original = Session.lead_on

    def lead_on(self: Session, waited_s: float) -> list[Send]:
        sends = original(self, waited_s)
        requests.extend([waited_s] * len(sends))
        return sends

    monkeypatch.setattr(Session, "lead_on", lead_on)
    for seed, drafter in enumerate(("good", "garbage", "n-gram")):
        scenario = calm(
            seed, 0, drafter=drafter, max_proposal=max_proposal, max_window=16, pacing="pipelined",
            on_peer_loss="wait", max_new_tokens=60, pass_s=0.02, delay_s=0.05,
        )  # fmt: skip
        assert len(played(scenario).committed) == 60
    assert requests == []


def test_the_home_knows_whose_drafts_were_accepted_and_who_was_last() -> None:
    workers = ("worker-1", "worker-2", "worker-3")
    at_server, at_worker = (
        played(
            calm(
                5, 3, home=home, workers=workers, drafter="good", max_proposal=5, pacing="stop_and_wait",
                length_policy="fixed", on_peer_loss="continue", delay_s=0.05, pass_s=0.1,
            )
        )
        for home in ("", "worker-2")
    )  # fmt: skip
    assert any(token.device_accepted for token in at_worker.tokens)
    accepted = [[token.device_accepted for token in run.tokens] for run in (at_server, at_worker)]
    assert accepted[0] == accepted[1]
    for run in (at_server, at_worker):
        assert {token.aggregator for token in run.tokens} == {SERVER}
        assert {token.last_voter for token in run.tokens} <= set(workers)


# ---- mutants -------------------------------------------------------------------------------------------------------


class PairedByStep(BallotBox):
    """A vote counts for its step, whatever prefix it was conditioned on."""

    def take_ballot(self, view: int, prefix: Prefix, voters: Sequence[str]) -> Ballot | None:
        for voter in voters:
            of_step = [entry for entry in self.entries[voter].values() if entry.step == len(prefix)]
            if of_step:
                self.entries[voter].setdefault(prefix.digest, of_step[0])
        return super().take_ballot(view, prefix, voters)

    def advance(self, prefix: Prefix) -> None:
        for party, held in self.entries.items():
            self.entries[party] = {key: kept for key, kept in held.items() if kept.step >= len(prefix)}


class OldBaseAccepted(Session):
    """A proposal is taken to begin at the committed prefix, whatever its base."""

    def lead(self, source: str, proposal: Vote) -> list[Send]:
        if not self.routes.follows_proposals:
            return []
        moved = replace(proposal, step=len(self.prefix), digest=self.prefix.digest)
        return [Send("decoder", Local(session=self.spec.session, body=moved))]


class SharesReversed(BallotBox):
    """The order of the voters is lost: shares go to whoever voted first."""

    def take_ballot(self, view: int, prefix: Prefix, voters: Sequence[str]) -> Ballot | None:
        ballot = super().take_ballot(view, prefix, voters)
        return None if ballot is None else replace(ballot, payloads=ballot.payloads[::-1])


class WithoutTheLast(BallotBox):
    """A ballot does not wait for the last voter."""

    def take_ballot(self, view: int, prefix: Prefix, voters: Sequence[str]) -> Ballot | None:
        return super().take_ballot(view, prefix, voters[: max(1, len(voters) - 1)])


class VotesComputedAgain(BallotBox):
    """What was computed again for the same proposal replaces what was sent."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        for digest in digests_along(vote.digest, vote.tokens) if vote.payloads else ():
            self.entries[source].pop(digest, None)
        return super().hold(source, vote, prefix, arrived_s)


class FormerVotersDecide(BallotBox):
    """The result of a ballot counts, though a voter was lost or came back since it was taken."""

    former: frozenset[tuple[int, bytes]] = frozenset()

    def take_ballot(self, view: int, prefix: Prefix, voters: Sequence[str]) -> Ballot | None:
        ballot = super().take_ballot(view, prefix, voters)
        if ballot is not None:
            self.former = self.former | {(view, ballot.digest)}
        return ballot

    def is_pending(self, result: VerifyResult) -> bool:
        return (result.view, result.digest) in self.former


class FirstTokenOnly(Log):
    """Of a verdict of several tokens only the first counts."""

    def take_next(self) -> Verdict | None:
        verdict = super().take_next()
        return None if verdict is None else replace(verdict, tokens=verdict.tokens[:1])


class WholeProposalCommitted(AggregatorSession):
    """A proposal is committed as a whole if its first token is right."""

    def decide(self, ballot: Ballot) -> VerifyResult:
        result = super().decide(ballot)
        is_right = bool(ballot.tokens) and result.tokens[0] == ballot.tokens[0]
        return replace(result, tokens=ballot.tokens) if is_right else result


class CorrectionOneEarly(AggregatorSession):
    """The correction is drawn from the votes on the last token that stood, not from those behind it."""

    def decide(self, ballot: Ballot) -> VerifyResult:
        size = len(ballot.voters)
        return super().decide(replace(ballot, payloads=ballot.payloads[:size] + ballot.payloads[:-size]))


class DrafterCounts(AggregatorSession):
    """A token that the drafter proposed counts for the mixture, though the drafter has no vote."""

    def decide(self, ballot: Ballot) -> VerifyResult:
        result = super().decide(ballot)
        proposed = ballot.tokens[len(result.tokens) - 1 : len(result.tokens)]
        is_close = ballot.step % 5 == 4
        return replace(result, tokens=result.tokens[:-1] + proposed) if proposed and is_close else result


class CountsTooEarly(Session):
    """A worker that returns counts from a step that is already decided."""

    def take_back(self, peer: Peer) -> list[Send]:
        sends = super().take_back(peer)
        for send in sends:
            event = send.message.event
            if isinstance(event, PeerEvent):
                early = replace(event, step=max(0, event.step - 1))
                return [replace(send, message=replace(send.message, event=early))]
        return sends


class BonusOneEarly(FollowingSession):
    """The bonus is taken from the vote before the last token of the line, not behind it."""

    def finish(self, job: Forward, steps: Sequence[Step]) -> list[Send]:
        if len(steps) > 1:
            steps = [*steps[:-1], replace(steps[-2], step=steps[-1].step)]
        return super().finish(job, steps)


class LogWeightsReversed(BallotBox):
    """The weight of each worker's documents goes to another one's vote."""

    def take_ballot(self, view: int, prefix: Prefix, voters: Sequence[str]) -> Ballot | None:
        ballot = super().take_ballot(view, prefix, voters)
        return None if ballot is None else replace(ballot, log_weights=ballot.log_weights[::-1])


class WeightOfTheLastStep(FollowingSession):
    """All votes of a pass come with the weight of the last of them."""

    def finish(self, job: Forward, steps: Sequence[Step]) -> list[Send]:
        return super().finish(job, [replace(step, log_weight=steps[-1].log_weight) for step in steps])


class AuthorityHasTheEvents(Reporter):
    """The client of the server is told, as if it had asked."""

    @property
    def is_home(self) -> bool:
        return self._party == self._spec.roles.topology.authority


class BothHaveTheEvents(Reporter):
    """The client of the server listens."""

    @property
    def is_home(self) -> bool:
        return self._party in (self._spec.home, self._spec.roles.topology.authority)


class HomeIsNotTold(Routes):
    """The home hears what every worker hears."""

    def address(self, verdict: Verdict, *others: Any) -> Any:
        return [(self.verdicts_go_to, verdict)]


class LossesOneStepLate(Reporter):
    """A verdict says who was there for the step before."""

    def note_losses(self, verdict: Verdict, step: int) -> list[Send]:
        sends = super().note_losses(verdict, step)
        for send in sends:
            event = send.message.event
            object.__setattr__(event, "step", event.step + 1)
        return sends


class ServerIsTakenBack(Session):
    """A home that goes on alone listens to a server that is back."""

    def turn_away(self, peer: Peer, body: LinkBody, now_s: float) -> list[Send]:
        peer.liveness.take_back()
        return []


class HomeCountsAll(Session):
    """A home that goes on alone waits for the votes of all."""

    @property
    def present(self) -> tuple[str, ...]:
        lost = self.lost
        return tuple(name for name in self.routes.roles.voters if name not in lost)


def alike_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    """After a loss documents no longer decide how much the others count."""
    shares = Tally.shares

    def forget(tally: Tally, position: int = 0) -> tuple[float, ...]:
        count = len(tally.voters)
        is_weighed = tally.roles.weighs_by_documents and count != 3
        return (1 / count,) * count if is_weighed else shares(tally, position)

    patch.setattr(Tally, "shares", forget)


def not_renormalized(patch: pytest.MonkeyPatch) -> None:
    """A lost worker's weight is left out of the mixture, and the others keep theirs."""
    patch.setattr(
        Roles, "shares", lambda self, voters, *_: [self.roles[voter].weight or 0.0 for voter in voters]
    )


def weights_shifted(patch: pytest.MonkeyPatch) -> None:
    """After a loss the weights go to the voters that are left in the order of the table."""

    def shares(self: Roles, voters: Sequence[int], *_: object) -> list[float]:
        weights = [weight or 0.0 for weight in self.weights[: len(voters)]]
        return [weight / sum(weights) for weight in weights]

    patch.setattr(Roles, "shares", shares)


def without_budget_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    """What was drafted while the cloud was lost is proposed to it when it is back."""
    patch.setattr(Routes, "may_count", lambda *arguments: True)


def short(patch: pytest.MonkeyPatch) -> None:
    """Of a run that hangs not much is played."""
    patch.setattr(simulated, "LIMIT_S", 40.0)


def cut_off(patch: pytest.MonkeyPatch) -> None:
    """A worker cannot be reached for three seconds, in the middle of a long answer."""

    def make(seed: int, num_workers: int) -> Scenario:
        return calm(
            seed, num_workers, faults=cut("worker-1", 0.4, 3.0), on_peer_loss="continue", peer_loss_margin_s=0.1,
            max_new_tokens=120, pass_s=0.1,
        )  # fmt: skip

    patch.setattr(simulated, "make_chain_scenario", make)


def planted(mutate: Mutate, num_workers: int, seeds: range, witness: int, around: Mutate = short) -> Planted:
    return Planted(mutate, seeds, witness, roles_of(num_workers), around)


MUTANTS = {
    "votes_paired_by_step": planted(put(PairedByStep), 2, range(4), 0),
    "proposal_with_an_old_base_accepted": planted(put(OldBaseAccepted), 2, range(4), 0),
    "only_the_first_token_of_a_verdict": planted(put(FirstTokenOnly), 0, range(6), 1),
    "whole_proposal_if_its_first_token_stands": planted(put(WholeProposalCommitted), 0, range(24, 30), 26),
    "bonus_from_the_vote_before": planted(put(BonusOneEarly), 0, range(8), 1),
    "correction_from_the_vote_before": planted(put(CorrectionOneEarly), 0, range(6), 1),
    "cache_not_cropped": planted(cache_not_cropped, 0, range(6, 16), 7),
    "budget_forgotten_after_a_loss": planted(without_budget_after_a_loss, 0, range(24, 26), 25),
    "drafter_without_a_vote_counts": planted(put(DrafterCounts), 0, range(8, 24), 23),
    "shares_not_in_the_voters_order": planted(put(SharesReversed), 2, range(4), 0),
    "ballot_without_the_last_voter": planted(put(WithoutTheLast), 2, range(4), 0),
    "documents_weights_of_others": planted(put(LogWeightsReversed), 3, range(2, 8), 2),
    "documents_weights_of_another_step": planted(put(WeightOfTheLastStep), 3, range(6, 10), 6),
    "evidence_survives_a_rollback": planted(evidence_survives_a_rollback, 3, range(6, 16), 6),
    "evidence_of_votes_is_that_of_the_first": planted(
        evidence_of_votes_is_that_of_the_first, 3, range(6, 16), 6
    ),
    "evidence_starts_at_zero_after_a_restart": planted(
        evidence_starts_at_zero_after_a_restart, 3, range(6, 26), 19
    ),
    "memory_left_out": planted(put(WithoutMemory), 3, range(6, 16), 6),
    "weights_rounded_at_one_party": planted(weights_rounded_at_one_party, 3, range(6, 16), 6),
    "winner_without_certificate": planted(without_certificate, 3, range(8, 14), 10),
    "what_lists_lack_left_out": planted(bound_left_out, 3, range(8, 14), 10),
    "lists_by_the_noise_of_another_step": planted(noise_of_another_step, 3, range(9, 15), 9),
    "longer_list_not_put_to_the_vote": planted(put(LongerListIsKeptAside), 3, range(9, 13), 10),
    "votes_computed_again": planted(put(VotesComputedAgain), 2, range(9, 19), 11),
    "lost_weight_not_renormalized": planted(not_renormalized, 3, range(4), 1, cut_off),
    "weights_shifted_after_a_loss": planted(weights_shifted, 3, range(2, 6), 3, cut_off),
    "documents_weights_forgotten_after_a_loss": planted(alike_after_a_loss, 3, range(6, 9), 6, cut_off),
    "returned_worker_counts_from_a_decided_step": planted(put(CountsTooEarly), 3, range(8), 2, cut_off),
    "ballot_of_former_voters_decides": planted(put(FormerVotersDecide), 3, range(309, 313), 311),
    "authority_has_the_events": planted(put(AuthorityHasTheEvents), 2, range(8), 2),
    "both_have_the_events": planted(put(BothHaveTheEvents), 2, range(8), 2),
    "home_is_not_told_of_losses": planted(put(HomeIsNotTold), 2, range(8), 3),
    "losses_one_step_late": planted(put(LossesOneStepLate), 2, range(8), 3),
    "server_is_taken_back": planted(put(ServerIsTakenBack), 2, range(8), 2),
    "home_counts_all": planted(put(HomeCountsAll), 2, range(8), 2),
}
test_the_comparison_finds, test_the_witness_is_among_the_seeds_that_find = both_tests_of(MUTANTS)
