"""Defects of mode dual, planted one at a time: the fuzz property must find each, or a transcript.

Four of these were defects of this code until the property found them: the Resync in order of arrival, the Begin
taken as it comes, the proposals not kept after a Resync, and the later proposals forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.aggregation.document_weights import DocumentWeights, Evidence, Weights
from tandem.aggregation.rules import Step
from tandem.config.schema import DecodingConfig
from tandem.messages import Ballot, Heartbeat, LinkFrame, Local, Resync, Verdict, Vote
from tandem.messages.wire import to_float32
from tandem.protocol.ballots import BallotBox
from tandem.protocol.decoding import (
    DecodingSession,
    DraftingSession,
    DraftLine,
    FollowingSession,
    Forward,
    Job,
)
from tandem.protocol.log import Log, Prefix, extend_digest
from tandem.protocol.peer import Peer
from tandem.protocol.report import Reporter
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem.protocol.table import ReorderBuffer
from tandem.topology import PAIR, PARTIES
from tandem_lab.simulation.scenario import Fault, Scenario, make_scenario
from tandem_lab.simulation.world import CODEC, VOCAB, World
from tests.unit.lab.simulation.planted import Planted, both_tests_of, put
from tests.unit.protocol import transcript
from tests.unit.protocol.test_transcripts import STORIES
from tests.unit.protocol.transcript import play

# ---- the mutants: alternative implementations of the small machines' public interfaces ------------------------------


class PairedByStep(BallotBox):
    """No validity check: the latest proposal for the next step counts, whatever prefix it was conditioned on."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        (token,), (payload,), (log_weight,) = vote.tokens, vote.payloads, vote.log_weights
        entry = Step(vote.step, token, payload, log_weight=log_weight)
        if vote.step >= len(prefix):
            self.entries[source].setdefault(vote.digest, entry)
        return True

    def advance(self, prefix: Prefix) -> None:
        for party, held in self.entries.items():
            self.entries[party] = {key: kept for key, kept in held.items() if kept.step >= len(prefix)}

    def take_ballot(self, view: int, prefix: Prefix, voters: Sequence[str]) -> Ballot | None:
        for voter in voters:
            held = self.entries[voter]
            of_step = [entry for entry in held.values() if entry.step == len(prefix)]
            if of_step:
                self.entries[voter] = held | {prefix.digest: of_step[-1]}
        return super().take_ballot(view, prefix, voters)


class EarlierVoidsLater(BallotBox):
    """A literal reading of epochs: a peer's proposal for an earlier step begins a new one, and voids later ones."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        if source != self.party:
            held = self.entries[source].items()
            self.entries[source] = {key: kept for key, kept in held if kept.step <= vote.step}
        return super().hold(source, vote, prefix, arrived_s)


class ComputedAgain(BallotBox):
    """A party votes with a distribution computed again, equal but for its last bits, not with the bytes sent."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        if source == self.party:
            p = CODEC.decode(vote.payloads[0]).dense(VOCAB)
            p[p > 0] *= 1.0 + 1e-2 * (p[p > 0].argsort() % 2)
            vote = replace(vote, payloads=(CODEC.encode(p / p.sum()),))
        return super().hold(source, vote, prefix, arrived_s)


class LatestCounts(BallotBox):
    """A proposal that a restarted decoder computed again replaces the one that was sent for the same prefix."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        self.entries[source].pop(vote.digest, None)
        return super().hold(source, vote, prefix, arrived_s)


class OutOfOrder(Log):
    """A verdict is applied when it arrives, not in its turn."""

    def take_next(self) -> Verdict | None:
        return self.verdicts.popitem()[1] if self.verdicts else None


class TwiceAfterHandover(Log):
    """The verdict that hands over is committed as the peer's, and then as the own decision on the next step."""

    again: Verdict | None = None

    def take_next(self) -> Verdict | None:
        if self.again is not None:
            verdict, self.again = self.again, None
            return verdict
        taken = super().take_next()
        if taken is not None and PAIR.name(taken.next_decider) != self.decider:
            self.again = replace(taken, step=taken.step + 1)
        return taken


class NothingResent(Peer):
    """What was sent once is not sent again; heartbeats go on."""

    def resend(self, bodies: Any, prefix: Prefix, now_s: float) -> list[Send]:
        return []

    def resend_missing(self, prefix: Prefix, now_s: float, timeout_s: float = 0.0) -> list[Send]:
        return []


class CountAcknowledges(Peer):
    """A count of committed tokens acknowledges, whatever the tokens."""

    def receive(self, frame: LinkFrame, *args: Any) -> float:
        self.acknowledge(frame, frame.committed + 1, args[0])
        return super().receive(frame, *args)


class ReceiptsForEver(Peer):
    """What was received in one view counts as received in the next, though the peer may have lost it."""

    def start_view(self, view: int, num_committed: int, now_s: float) -> None:
        received = [sent.body for sent in self.deliveries.sent.values() if sent.is_received]
        super().start_view(view, num_committed, now_s)
        self.had = {body.digest for body in received if isinstance(body, Vote)}

    def post(self, body: Any, prefix: Prefix, now_s: float) -> Send:
        if isinstance(body, Vote) and body.digest in getattr(self, "had", ()):
            return self.send(Heartbeat(), prefix, now_s)
        return super().post(body, prefix, now_s)


class PostsNothing(Session):
    """After a Resync a party waits for its decoder to propose again what it holds already."""

    def post_again(self, peer: Peer, now_s: float) -> list[Send]:
        return []


class OnlyFirstLineage(BallotBox):
    """A branch that a restarted decoder drew again is not known, and dies with the one that was sent."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        if vote.digest in self.entries[source]:
            return True
        return super().hold(source, vote, prefix, arrived_s)

    def advance(self, prefix: Prefix) -> None:
        super().advance(prefix)
        alive = {prefix.digest}
        for digest, entry in sorted(self.own.items(), key=lambda item: item[1].step):
            if digest in alive and entry.token is not None:
                alive.add(extend_digest(digest, entry.token))
        self.entries[self.party] = {key: held for key, held in self.own.items() if key in alive}


class TargetOnly(DraftLine):
    """The token is replaced where it was rejected, and what was drafted after it stays."""

    def replace(self, step: int, token: int) -> None:
        rest = self.prefix.tokens[step + 1 :]
        self.prefix.truncate(step)
        self.prefix.extend([token, *rest])


class ResyncInOrderOfArrival(DraftLine):
    """A decoder that takes a Resync for the latest word, though a later verdict overtook it."""

    def adopt(self, told: Local) -> bool:
        self.view = self.num_committed = 0
        self.early.clear()
        return super().adopt(told)


class WithoutMemory(DocumentWeights):
    """All of the evidence is kept at each token."""

    def learn(self, evidence: Evidence, token: Evidence) -> Evidence:
        return replace(self, memory=1.0).learn_as_it_is(evidence, token)

    def learn_as_it_is(self, evidence: Evidence, token: Evidence) -> Evidence:
        return super().learn(evidence, token)


class OneTokenLate(DocumentWeights):
    """The evidence of a token counts one step later: what is stored ends with what the last token says."""

    @property
    def start(self) -> Evidence:
        return (0.0,) * (2 * len(self.prior)) if self.moves else ()

    def weigh(self, evidence: Evidence) -> Weights:
        return super().weigh(evidence[: len(self.prior)])

    def learn(self, evidence: Evidence, token: Evidence) -> Evidence:
        count = len(self.prior)
        if not self.moves or all(held == 0.0 for held in evidence):
            return (*evidence[:count], *token) if self.moves else evidence
        return (*super().learn(evidence[:count], evidence[count:]), *token)


class OnceLateNeverAsked(Session):
    """A peer that was late at one step is not asked at later ones either."""

    was_late = False

    @property
    def present(self) -> tuple[str, ...]:
        self.was_late |= self.ballots.is_late(self.prefix.digest)
        return (self.party,) if self.was_late else super().present


class LateUnmarked(Reporter):
    """A step that was decided without the vote that came too late looks like any other."""

    def commit(self, *args: Any, **values: Any) -> list[Send]:
        return super().commit(*args, **{**values, "is_late": False})


def late_under_mirror(patch: pytest.MonkeyPatch) -> None:
    """Both parties go on to decide each for itself, though one of them may lack patience."""
    patch.setattr(DecodingConfig, "effective_placement", property(lambda self: self.placement))


def cache_not_cropped(patch: pytest.MonkeyPatch) -> None:
    """The model goes on from what it holds: rejected tokens stay in its cache."""
    patch.setattr(World, "crop", lambda self, length: None)


def rejection_has_no_effect(patch: pytest.MonkeyPatch) -> None:
    """A commit that would roll the decoder back goes unnoticed."""
    original = DraftingSession.receive

    def receive(self: DraftingSession, message: Any) -> list[Send]:
        if isinstance(message, Local) and isinstance(message.body, Verdict):
            step, tokens = message.body.step, [*message.body.tokens]
            drafted = self.prefix.tokens[step : step + len(tokens)]
            if drafted != tokens[: len(drafted)]:
                return []
        return original(self, message)

    patch.setattr(DraftingSession, "receive", receive)


def old_aggregator_goes_on(patch: pytest.MonkeyPatch) -> None:
    """After a hand-over both parties decide."""
    patch.setattr(Session, "decides_here", property(lambda self: True))


def verdict_has_no_effect(patch: pytest.MonkeyPatch) -> None:
    """A peer's verdict is committed, but the decoder does not hear of it."""
    original = Session.receive_frame

    def receive_frame(self: Session, frame: LinkFrame, *args: Any) -> list[Send]:
        sends = original(self, frame, *args)
        is_verdict = isinstance(frame.body, Verdict)
        return [send for send in sends if not (is_verdict and isinstance(send.message, Local))]

    patch.setattr(Session, "receive_frame", receive_frame)


def begin_is_taken_as_it_comes(patch: pytest.MonkeyPatch) -> None:
    """What overtakes its Begin is lost, and a Begin that its End overtook opens the session for good."""
    patch.setattr(ReorderBuffer, "keep", lambda self, message: None)
    patch.setattr(ReorderBuffer, "end", lambda self, session: None)


Change = Callable[[DecodingSession, Forward], Forward]


def change_jobs(patch: pytest.MonkeyPatch, change: Change) -> None:
    """Every pass of a party whose weights move is another one."""
    original = DecodingSession.next_job

    def next_job(self: DecodingSession) -> Job | None:
        job = original(self)
        return change(self, job) if isinstance(job, Forward) and job.weights.moves else job

    patch.setattr(DecodingSession, "next_job", next_job)


def note_steps(patch: pytest.MonkeyPatch, note: Callable[[DecodingSession, Forward, Step], None]) -> None:
    """`note` gets the last step of every pass."""
    for kind in (DraftingSession, FollowingSession):
        original = kind.finish

        def finish(self: Any, job: Forward, steps: Sequence[Step], original: Any = original) -> list[Send]:
            note(self, job, steps[-1])
            return original(self, job, steps)  # type: ignore[no-any-return]

        patch.setattr(kind, "finish", finish)


def begin_at_wanted(job: Forward, evidence: Evidence) -> Forward:
    """The same pass without what it had to learn first."""
    return replace(job, evidence=evidence, num_earlier=job.num_earlier - job.num_learned, num_learned=0)


def evidence_survives_a_rollback(patch: pytest.MonkeyPatch) -> None:
    """What was learned from tokens that were rolled back weighs the rows after the new ones."""
    by_length: dict[tuple[int, int], Evidence] = {}  # of the line's tokens, by session and how many there are

    def note(session: DecodingSession, job: Forward, step: Step) -> None:
        by_length.setdefault((id(session), job.step + 1), step.evidence)

    def change(session: DecodingSession, job: Forward) -> Forward:
        held = by_length.get((id(session), job.first_drawn))
        return begin_at_wanted(job, held) if job.num_learned and held else job

    note_steps(patch, note)
    change_jobs(patch, change)


def evidence_of_the_own_draft(patch: pytest.MonkeyPatch) -> None:
    """A row gains by the token that the party itself had drafted, not by the one that was committed."""
    of_draft: dict[tuple[int, bytes], Evidence] = {}  # after it, by the digest of the prefix before it

    def note(session: DecodingSession, job: Forward, step: Step) -> None:
        if not job.is_catching_up:
            of_draft[id(session), job.digest] = step.evidence

    def change(session: DecodingSession, job: Forward) -> Forward:
        while job.num_learned and (held := of_draft.get((id(session), job.lineage[job.first]))):
            job = replace(
                job, evidence=held, num_earlier=job.num_earlier - 1, num_learned=job.num_learned - 1
            )
        return job

    note_steps(patch, note)
    change_jobs(patch, change)


def evidence_of_votes_is_that_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """All votes of a pass weigh by what was known before it."""

    class Unmoved(DocumentWeights):
        def learn(self, evidence: Evidence, token: Evidence) -> Evidence:
            return evidence

    def change(session: DecodingSession, job: Forward) -> Forward:
        weights = job.weights
        return replace(job, weights=Unmoved(weights.prior, weights.evidence, weights.memory))

    change_jobs(patch, change)


def weights_rounded_at_one_party(patch: pytest.MonkeyPatch) -> None:
    """One party's model gets weights that were rounded to float32."""

    class Rounded(DocumentWeights):
        def weigh(self, evidence: Evidence) -> Weights:
            return tuple(to_float32(weight) for weight in super().weigh(evidence))

    def change(session: DecodingSession, job: Forward) -> Forward:
        if session.party not in ("cloud", "worker-1"):
            return job
        weights = job.weights
        return replace(job, weights=Rounded(weights.prior, weights.evidence, weights.memory))

    change_jobs(patch, change)


def evidence_starts_at_zero_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A decoder that begins in the middle of an answer takes no note of the tokens before."""

    def change(session: DecodingSession, job: Forward) -> Forward:
        is_new = session.num_evidence == 1 and job.num_learned > 0 and not job.is_catching_up
        return begin_at_wanted(job, session.weights.start) if is_new else job

    change_jobs(patch, change)


def rejection_forgets_later_proposals(patch: pytest.MonkeyPatch) -> None:
    """A rejected party forgets its later proposals, though a restarted decoder may have drawn the target."""
    for name in ("receive", "receive_frame"):
        patch.setattr(Session, name, forgetting(getattr(Session, name)))


def decoders_restart_all_the_time(patch: pytest.MonkeyPatch) -> None:
    """The same queries where a third of the frames is lost and decoders draw again what they had drawn."""

    def make(seed: int) -> Scenario:
        scenario = make_scenario(seed)
        faults = tuple(
            Fault(
                at_step=step, after_s=0.0, seconds=0.0, party=PARTIES[(step // 2 + seed) % 2], kind="decoder"
            )
            for step in range(1, 16, 2)
        )
        link = replace(scenario.link, drop=0.3, cut_s=None)
        return replace(scenario, is_rounding=True, faults=faults, link=link)

    patch.setattr("tandem_lab.simulation.fuzz.make_scenario", make)


def forgetting(original: Callable[..., list[Send]]) -> Callable[..., list[Send]]:
    """An entry of the coordinator that forgets what it posted once its party's draft is rejected."""

    def receive(self: Session, message: Any, *args: Any) -> list[Send]:
        before = self.log.epochs[self.party]
        sends = original(self, message, *args)
        is_resync = isinstance(message, LinkFrame) and isinstance(message.body, Resync)
        if self.log.epochs[self.party] > before and not is_resync:
            for peer in self.peers.values():
                peer.deliveries.drop_dead((), len(self.prefix))
        return sends

    return receive


MUTANTS: dict[str, Planted] = {
    "pair_by_step": Planted(put(PairedByStep), range(12), 0),
    "an_earlier_step_voids_later_ones": Planted(put(EarlierVoidsLater), range(24), 0),
    "verdicts_as_they_come": Planted(put(OutOfOrder), range(24), 4),
    "cache_not_cropped": Planted(cache_not_cropped, range(12), 0),
    "handover_commits_twice": Planted(put(TwiceAfterHandover), range(24), 5),
    "old_aggregator_goes_on": Planted(old_aggregator_goes_on, range(12), 3),
    "no_resend": Planted(put(NothingResent), range(12), 0),
    "rejection_has_no_effect": Planted(rejection_has_no_effect, range(24), 0),
    "verdict_has_no_effect": Planted(verdict_has_no_effect, range(12), 4),
    "rollback_to_the_latest_target": Planted(put(TargetOnly), range(12), 0),
    "evidence_survives_a_rollback": Planted(evidence_survives_a_rollback, range(24), 7),
    "evidence_of_the_own_draft": Planted(evidence_of_the_own_draft, range(24), 7),
    "memory_left_out": Planted(put(WithoutMemory), range(24), 3),
    "evidence_one_token_late": Planted(put(OneTokenLate), range(24), 3),
    "weights_rounded_at_one_party": Planted(weights_rounded_at_one_party, range(24), 8),
    "evidence_starts_at_zero_after_a_restart": Planted(
        evidence_starts_at_zero_after_a_restart, range(56, 64), 60
    ),
    "once_late_never_asked": Planted(put(OnceLateNeverAsked), range(24), 9),
    "late_step_unmarked": Planted(put(LateUnmarked), range(24), 9),
    "late_under_mirror": Planted(late_under_mirror, range(24), 9),
    "own_distribution_computed_again": Planted(put(ComputedAgain), range(1, 12), 1),
    "acknowledged_by_count_alone": Planted(put(CountAcknowledges), range(12), 0),
    "adopt_and_commit_in_order_of_arrival": Planted(put(ResyncInOrderOfArrival), range(1144, 1152), 1149),
    "begin_is_taken_as_it_comes": Planted(begin_is_taken_as_it_comes, range(100), 64),
    "resync_posts_nothing": Planted(put(PostsNothing), range(24), 0),
    "receipts_survive_a_resync": Planted(put(ReceiptsForEver), range(12), 0),
    "a_branch_drawn_again_is_unknown": Planted(put(OnlyFirstLineage), range(60, 80), 60),
    "restarted_decoder_proposal_replaces": Planted(
        put(LatestCounts), range(4, 12), 6, around=decoders_restart_all_the_time
    ),
    "rejection_forgets_later_proposals": Planted(
        rejection_forgets_later_proposals, range(36, 42), 39, around=decoders_restart_all_the_time
    ),
}
test_the_property_finds, test_the_witness_is_among_the_seeds_that_find = both_tests_of(MUTANTS)


class Impatient(DraftingSession):
    """A synchronous loop that does not wait: the answer stays right, only the baseline is none."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.window = 4


def test_a_synchronous_loop_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    story = STORIES["drafting: The synchronous loop drafts one token at a time, whatever the profiler says"]
    monkeypatch.setattr(transcript, "DraftingSession", Impatient)
    assert transcript.play(story) != story


class CountsFromTheDraft(Log):
    """The wait of a step begins before the one before is committed: when its draft is there."""

    @property
    def committed_s(self) -> float:
        return self.opened_s

    @committed_s.setter
    def committed_s(self, now_s: float) -> None:
        pass


class CountsFromTheCommit(BallotBox):
    """The wait begins with the step, though the own vote is not there."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        super().hold(source, vote, prefix, 0.0)
        return True


@pytest.mark.parametrize(
    ("mutant", "title"),
    [
        (CountsFromTheDraft, "Nor with a draft that came before its step: it begins with the commit"),
        (CountsFromTheCommit, "The wait begins when the own vote is there, not with the query"),
    ],
)
def test_a_wait_that_begins_at_another_time_is_found(
    mutant: type[Log | BallotBox], title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(mutant)(monkeypatch)
    story = STORIES[f"patience: {title}"]
    assert play(story) != story
