"""Modes whose drafter has no vote: every run gives the tokens of the draft-free loop, and planted defects are found.

The mutants are alternative implementations of the small classes; MUTANTS records a seed that finds each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.aggregation.rules import Step
from tandem.events import PeerEvent
from tandem.messages import Ballot, Local, Verdict, VerifyResult, Vote
from tandem.modes.query import Roles
from tandem.modes.tally import Tally
from tandem.protocol.ballots import BallotBox
from tandem.protocol.decoding import FollowingSession, Forward, Job
from tandem.protocol.log import Log, Prefix, digests_along
from tandem.protocol.peer import Peer
from tandem.protocol.routes import Routes, Send
from tandem.protocol.services import AggregatorSession
from tandem.protocol.session import Session
from tandem_lab.simulation import fuzz as simulated
from tandem_lab.simulation.fuzz import FuzzFailure, fuzz, play
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.scenario import (
    DRAFTERS,
    WILD,
    Fault,
    Scenario,
    expected_answer,
    make_chain_scenario,
)
from tandem_lab.simulation.specs import change_spec
from tandem_lab.simulation.watched import WatchedRun
from tests.unit.lab.simulation.test_mutants import (
    WithoutMemory,
    cache_not_cropped,
    evidence_of_votes_is_that_of_the_first,
    evidence_starts_at_zero_after_a_restart,
    evidence_survives_a_rollback,
    put,
    weights_rounded_at_one_party,
)
from tests.unit.lab.simulation.test_race_list_mutants import (
    LongerListIsKeptAside,
    bound_left_out,
    noise_of_another_step,
    without_certificate,
)
from tests.unit.protocol.talk import votes

NUM_SEEDS = {0: 40, 2: 36, 3: 24, 5: 12, 8: 8}
"""Runs by the number of workers (0: speculative), 120 in all."""
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
NEVER_S = 1e9
NUM_TOKENS = 40


def roles_of(num_workers: int) -> str:
    return f"federated-{num_workers}" if num_workers else "speculative"


@pytest.mark.parametrize("num_workers", NUM_SEEDS)
def test_every_run_gives_the_tokens_of_the_draft_free_loop(num_workers: int) -> None:
    drafters, lengths, policies, counts = set(), set(), set(), Counter[str]()
    weighed, listed = set(), set()
    for seed in range(NUM_SEEDS[num_workers]):
        report = play(seed, roles=roles_of(num_workers))
        assert report.num_tokens > 0 or report.counts["cancelled"]
        scenario = make_chain_scenario(seed, num_workers)
        drafters.add(scenario.drafter)
        lengths.add(scenario.spec.decoding.max_proposal)
        policies.add(scenario.spec.decoding.length_policy)
        weighed.add(scenario.spec.roles.weighs_by_documents)
        listed.add(scenario.spec.rules.has_race_lists)
        counts += report.counts
    assert len(drafters) > 1
    assert max(lengths) > 1
    assert len(policies) > 1
    assert weighed == listed == ({False, True} if num_workers else {False})
    assert counts["tokens accepted"] > 0, "no proposal was any good"
    assert any(counts[name] for name in ("host crashes", "cuts", "stalls", "crashes"))


@pytest.mark.nightly("thousands of runs")
@pytest.mark.parametrize("roles", MANY)
def test_many_runs_give_the_tokens_of_the_draft_free_loop(roles: str) -> None:
    report = fuzz(0, MANY[roles], 2, max_failures=5, roles=roles)
    assert not report.failures, "\n".join(map(str, report.failures))
    assert report.num_runs == MANY[roles]


def calm(seed: int, num_workers: int, **changes: Any) -> Scenario:
    """A scenario in which nothing is planted, asked where the drafter is."""
    scenario = make_chain_scenario(seed, num_workers)
    changes.setdefault("home", "")
    of_scenario = {
        key: changes.pop(key) for key in ("drafter", "faults", "pass_s", "delay_s") if key in changes
    }
    values = {
        "faults": (), "cancel_s": None, "is_rounding": False, "restarts": 0.0, "first_end": 1 << 30, **of_scenario
    }  # fmt: skip
    if "pass_s" in values:
        values["model_s"] = dict.fromkeys(scenario.model_s, values.pop("pass_s"))
    if "delay_s" in values:
        values |= {"link": Link(delay_s=values.pop("delay_s"), is_in_order=True), "frames": {}}
    return replace(scenario, spec=change_spec(scenario.spec, **changes), **values)


def played(scenario: Scenario, run_class: type[WatchedRun] = WatchedRun) -> WatchedRun:
    """The whole run; its end is not checked."""
    run = run_class(scenario)
    run.run()
    return run


def test_the_drafter_does_not_show_in_the_answer() -> None:
    for seed in range(4):
        scenario = calm(seed, 2, on_peer_loss="wait")
        answers = {tuple(played(replace(scenario, drafter=drafter)).committed) for drafter in DRAFTERS}
        assert len(answers) == 1


def test_a_good_drafter_saves_passes() -> None:
    """Several tokens are committed for each pass of the voter."""
    blocks: list[int] = []

    class Counting(WatchedRun):
        def finish(self, party: str, job: Job, duration_s: float) -> None:
            if party == "cloud" and isinstance(job, Forward):
                blocks.append(1 + job.num_earlier)
            super().finish(party, job, duration_s)

    scenario = calm(
        3, 0, drafter="good", max_proposal=5, max_window=16, pacing="stop_and_wait", on_peer_loss="wait"
    )
    run = played(scenario, Counting)
    assert len(blocks) < len(run.committed)
    assert max(blocks) > 2


class Choosing(WatchedRun):
    """Keeps how long the proposals of the drafter are."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lengths: list[int] = []

    def deliver(self, party: str, sends: Sequence[Send]) -> None:
        proposals = votes(sends) if self.scenario.spec.rules.proposes(party) else []
        self.lengths += [len(proposal.tokens) for proposal in proposals]
        super().deliver(party, sends)


def quick(seed: int, policy: str, **changes: Any) -> Choosing:
    """A device whose drafts are right and quick, over a link that loses nothing."""
    values = {
        "max_proposal": 16, "max_window": 16, "pacing": "stop_and_wait", "on_peer_loss": "wait",
        "max_new_tokens": 60, "length_policy": policy, "drafter": "good", "delay_s": 0.05, "pass_s": 0.02,
    }  # fmt: skip
    run = Choosing(calm(seed, 0, **{**values, **changes}))
    run.run()
    return run


@pytest.mark.parametrize(
    ("policy", "pacing"),
    [
        ("last_accepted", "stop_and_wait"),
        ("last_accepted", "pipelined"),
        (WILD, "stop_and_wait"),
        (WILD, "pipelined"),
        (WILD, "cloud_goes_on"),
    ],
)
def test_lengths_that_adapt_change_proposals_and_no_token(policy: str, pacing: str) -> None:
    options: dict[str, Any] = {"pacing": pacing, "temperature": 1.0, "drafter": "replaced"}
    fixed, adapting = (quick(1, each, **options) for each in ("fixed", policy))
    assert adapting.committed == fixed.committed == expected_answer(adapting.scenario)
    assert len(set(adapting.lengths)) > 2, "the policy never changed the length"
    assert max(adapting.lengths) <= 16


def test_a_length_that_adapts_is_quicker_than_a_poor_one() -> None:
    """In virtual time, at 300 ms: proposals of one token wait a round trip each."""
    times_s = {}
    for name, changes in {"one": {"max_proposal": 1}, "adapting": {"policy": "last_accepted"}}.items():
        run = quick(1, **{"policy": "fixed", "delay_s": 0.15, **changes})
        times_s[name] = run.tokens[-1].committed_s
    assert times_s["adapting"] < 0.6 * times_s["one"]


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


# ---- who is lost -----------------------------------------------------------------------------------------------


def cut(party: str, at_s: float, seconds: float) -> tuple[Fault, ...]:
    return (Fault(kind="cut", party=party, after_s=at_s, seconds=seconds),)


def lose(
    num_workers: int, party: str, on_peer_loss: str, seconds: float, num_tokens: int = NUM_TOKENS
) -> WatchedRun:
    """A run in which a party cannot be reached for a while."""
    scenario = calm(
        1, num_workers, faults=cut(party, 1.2, seconds), on_peer_loss=on_peer_loss, peer_loss_margin_s=0.1,
        max_new_tokens=num_tokens, drafter="garbage", max_proposal=2, max_window=16, pacing="pipelined", pass_s=0.1,
    )  # fmt: skip
    return played(scenario)


def degraded_steps(run: WatchedRun) -> list[int]:
    return [event.step for event in run.tokens if event.is_alone]


def test_a_device_goes_on_alone_with_its_drafter_from_a_stated_step() -> None:
    run = lose(0, "cloud", "continue", NEVER_S)
    (lost,) = run.peer_events
    assert (lost.party, lost.is_alone) == ("cloud", True)
    assert 0 < lost.step < NUM_TOKENS
    assert degraded_steps(run) == list(range(lost.step, NUM_TOKENS))
    run.check_end()
    assert run.committed != expected_answer(run.scenario), "the cloud's answer would have been another"
    assert run.committed[: lost.step] == expected_answer(run.scenario)[: lost.step]


@pytest.mark.parametrize("num_workers", [2, 3])
def test_the_weights_of_those_that_are_left_are_renormalized_from_a_stated_step(num_workers: int) -> None:
    run = lose(num_workers, "worker-2", "continue", NEVER_S)
    (lost,) = run.peer_events
    assert (lost.party, lost.is_alone) == ("worker-2", True)
    assert degraded_steps(run) == list(range(lost.step, NUM_TOKENS))
    assert run.outcome.done is not None
    assert run.outcome.done.statistics.degraded_from == lost.step
    run.check_end()
    assert run.committed != expected_answer(run.scenario), (
        "with that worker the answer would have been another"
    )


def test_a_worker_that_returns_counts_again_from_a_step_that_is_not_decided() -> None:
    run = lose(3, "worker-1", "continue", 4.0, num_tokens=120)
    lost, back = run.peer_events
    assert (lost.is_alone, back.is_alone) == (True, False)
    assert degraded_steps(run) == list(range(lost.step, back.step))
    assert back.step < 120
    run.check_end()


# ---- mutants -------------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


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


MUTANTS: dict[str, tuple[Plant, int, range, int]] = {
    "votes_paired_by_step": (put(PairedByStep), 2, range(4), 0),
    "proposal_with_an_old_base_accepted": (put(OldBaseAccepted), 2, range(4), 0),
    "only_the_first_token_of_a_verdict": (put(FirstTokenOnly), 0, range(6), 1),
    "whole_proposal_if_its_first_token_stands": (put(WholeProposalCommitted), 0, range(24, 30), 26),
    "bonus_from_the_vote_before": (put(BonusOneEarly), 0, range(8), 1),
    "correction_from_the_vote_before": (put(CorrectionOneEarly), 0, range(6), 1),
    "cache_not_cropped": (cache_not_cropped, 0, range(6, 16), 7),
    "budget_forgotten_after_a_loss": (without_budget_after_a_loss, 0, range(1987, 1988), 1987),
    "drafter_without_a_vote_counts": (put(DrafterCounts), 0, range(8, 24), 23),
    "shares_not_in_the_voters_order": (put(SharesReversed), 2, range(4), 0),
    "ballot_without_the_last_voter": (put(WithoutTheLast), 2, range(4), 0),
    "documents_weights_of_others": (put(LogWeightsReversed), 3, range(2, 8), 2),
    "documents_weights_of_another_step": (put(WeightOfTheLastStep), 3, range(6, 10), 6),
    "evidence_survives_a_rollback": (evidence_survives_a_rollback, 3, range(6, 16), 6),
    "evidence_of_votes_is_that_of_the_first": (evidence_of_votes_is_that_of_the_first, 3, range(6, 16), 6),
    "evidence_starts_at_zero_after_a_restart": (evidence_starts_at_zero_after_a_restart, 3, range(6, 26), 19),
    "memory_left_out": (put(WithoutMemory), 3, range(6, 16), 6),
    "weights_rounded_at_one_party": (weights_rounded_at_one_party, 3, range(6, 16), 6),
    "winner_without_certificate": (without_certificate, 3, range(8, 14), 10),
    "what_lists_lack_left_out": (bound_left_out, 3, range(8, 14), 10),
    "lists_by_the_noise_of_another_step": (noise_of_another_step, 3, range(9, 15), 9),
    "longer_list_not_put_to_the_vote": (put(LongerListIsKeptAside), 3, range(9, 13), 10),
    "votes_computed_again": (put(VotesComputedAgain), 2, range(9, 19), 11),
    "lost_weight_not_renormalized": (not_renormalized, 3, range(4), 1),
    "weights_shifted_after_a_loss": (weights_shifted, 3, range(2, 6), 3),
    "documents_weights_forgotten_after_a_loss": (alike_after_a_loss, 3, range(6, 9), 6),
    "returned_worker_counts_from_a_decided_step": (put(CountsTooEarly), 3, range(8), 2),
    "ballot_of_former_voters_decides": (put(FormerVotersDecide), 3, range(309, 313), 311),
}
"""By name: the mutant, the number of workers (0: speculative), seeds among which it is found, and a witness."""
OF_LOSSES = list(MUTANTS)[-5:-1]
"""Those that only a long loss shows."""


def make_cut_scenario(seed: int, num_workers: int) -> Scenario:
    """A worker cannot be reached for three seconds, in the middle of a long answer."""
    return calm(
        seed, num_workers, faults=cut("worker-1", 0.4, 3.0), on_peer_loss="continue", peer_loss_margin_s=0.1,
        max_new_tokens=120, pass_s=0.1,
    )  # fmt: skip


def test_a_worker_that_is_cut_off_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the mutants of losses."""
    monkeypatch.setattr(simulated, "make_chain_scenario", make_cut_scenario)
    for seed in range(4):
        play(seed, roles="federated-3")


def finds(name: str, seed: int) -> bool:
    """Whether a run finds the mutant; one that fails without it finds nothing."""
    mutant, num_workers, _, _ = MUTANTS[name]
    return (
        play_planted(name, seed, num_workers, lambda patch: None) is None
        and play_planted(name, seed, num_workers, mutant) is not None
    )


def play_planted(name: str, seed: int, num_workers: int, mutant: Plant) -> str | None:
    """How a run with a mutant fails."""
    with pytest.MonkeyPatch.context() as patch:
        if name in OF_LOSSES:
            patch.setattr(simulated, "make_chain_scenario", make_cut_scenario)
        else:
            patch.setattr(simulated, "LIMIT_S", 40.0)
        mutant(patch)
        try:
            play(seed, roles=roles_of(num_workers))
        except FuzzFailure as error:
            return str(error)
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_the_comparison_finds(name: str) -> None:
    """By the witness alone; if it stops being one, the nightly test names others."""
    *_, witness = MUTANTS[name]
    assert finds(name, witness)


@pytest.mark.nightly("every seed of every mutant; `make test` plays the witnesses")
@pytest.mark.parametrize("name", MUTANTS)
def test_the_witness_is_among_the_seeds_that_find(name: str) -> None:
    *_, seeds, witness = MUTANTS[name]
    assert witness in {seed for seed in seeds if finds(name, seed)}
