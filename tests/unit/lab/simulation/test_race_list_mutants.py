"""Defects of race lists, planted one at a time: the fuzz property finds each in queries whose votes are lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.aggregation import race_lists
from tandem.aggregation.race_lists import RaceList, RaceResult
from tandem.aggregation.rules import Step
from tandem.codecs.votes import WHOLE, vote_depth
from tandem.messages import Heartbeat, LinkFrame, ListRequest, Vote, encode
from tandem.modes.tally import Tally
from tandem.protocol import ballots
from tandem.protocol.ballots import BallotBox, RaceVotes
from tandem.protocol.log import Prefix
from tandem.protocol.peer import Deliveries
from tandem.protocol.routes import Send
from tandem.protocol.session import Session
from tandem_lab.simulation import virtual
from tandem_lab.simulation.fuzz import play
from tandem_lab.simulation.scenario import make_scenario
from tests.unit.lab.simulation.planted import Planted, both_tests_of, put

SEEDS = [seed for seed in range(150) if make_scenario(seed).spec.rules.has_race_lists]


def without_certificate(patch: pytest.MonkeyPatch) -> None:
    """The token that is ahead in the lists is committed, certain or not."""
    decide_race = Tally.decide_race

    def accept(*args: Any, **options: Any) -> RaceResult:
        return RaceResult(decide_race(*args, **options).winner, True)

    patch.setattr(Tally, "decide_race", accept)


def bound_left_out(patch: pytest.MonkeyPatch) -> None:
    """What a list lacks counts as nothing."""
    certify = race_lists.certify

    def certify_loosely(lists: Sequence[RaceList], shares: Sequence[float], **options: Any) -> RaceResult:
        whole = [RaceList(found.ids, found.values, found.ids.size + 1) for found in lists]
        return certify(whole, shares, **options)

    patch.setattr(race_lists, "certify", certify_loosely)


def noise_of_another_step(patch: pytest.MonkeyPatch) -> None:
    """Lists are cut by the scores of the step before."""
    cut = ballots.cut_vote

    def cut_early(payload: bytes, depth: int, vocab_size: int, *, step: int, **options: Any) -> bytes:
        return cut(payload, depth, vocab_size, step=step + 1, **options)

    patch.setattr(ballots, "cut_vote", cut_early)


class AnswersForAnotherPrefix(RaceVotes):
    """The longer list is that of the vote computed last, whatever prefix was asked for."""

    latest: Any = None

    def cut(self, body: Any, *others: Any) -> Any:
        if self.latest is None or body.step >= self.latest.step:
            self.latest = body
        return super().cut(body, *others)

    def answer(self, request: ListRequest, view: int) -> Any:
        longer = super().answer(request, view)
        if longer is None or not longer.tokens:
            return longer
        return replace(longer, payloads=self.latest.payloads)


class ForgetsWithTheCommit(Session):
    """A vote is forgotten once its own party has committed the step; under mirror the peer may still need it."""

    def receive_frame(self, frame: LinkFrame, *others: Any) -> list[Send]:
        if isinstance(frame.body, ListRequest) and frame.body.step < len(self.prefix):
            frame = replace(frame, body=Heartbeat())
        return super().receive_frame(frame, *others)


class AsksOnce(Deliveries):
    """A request is not sent again if it gets lost."""

    def take_overdue(self, now_s: float, timeout_s: float) -> dict[int, Any]:
        overdue = super().take_overdue(now_s, timeout_s)
        return {number: body for number, body in overdue.items() if not isinstance(body, ListRequest)}


class LongerListIsKeptAside(BallotBox):
    """A longer list replaces the shorter one, but the step is not put to the vote again."""

    def reopen(self) -> None:
        pass


class FirstListStays(BallotBox):
    """The first list of a vote stays, as the first vote does."""

    def hold(self, source: str, vote: Vote, prefix: Prefix, arrived_s: float) -> bool:
        held: Step | None = self.entries[source].get(vote.digest)
        if held is not None and held.payload is not None:
            vote = replace(vote, payloads=(held.payload,))
        return super().hold(source, vote, prefix, arrived_s)


MUTANTS = {
    "a_winner_without_certificate": Planted(without_certificate, SEEDS[:30], 8),
    "a_bound_left_out": Planted(bound_left_out, SEEDS[:30], 8),
    "noise_of_another_step": Planted(noise_of_another_step, SEEDS[:30], 0),
    "an_answer_for_another_prefix": Planted(put(AnswersForAnotherPrefix), SEEDS[:30], 1),
    "a_vote_forgotten_with_the_commit": Planted(put(ForgetsWithTheCommit), SEEDS[:30], 1),
    "a_request_is_not_resent": Planted(put(AsksOnce), SEEDS[:30], 1),
    "a_longer_list_is_not_put_to_the_vote": Planted(put(LongerListIsKeptAside), SEEDS[:30], 1),
    "the_first_list_stays": Planted(put(FirstListStays), SEEDS[:30], 1),
}
test_the_property_finds, test_the_witness_is_among_the_seeds_that_find = both_tests_of(MUTANTS)


def test_votes_in_full_cross_the_link_where_no_list_may_be_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    num_whole = 0

    def count(message: Any) -> bytes:
        nonlocal num_whole
        is_vote = isinstance(message, LinkFrame) and isinstance(message.body, Vote)
        num_whole += is_vote and vote_depth(message.body.payloads[0]) == WHOLE
        return encode(message)

    monkeypatch.setattr(virtual, "encode", count)
    monkeypatch.setattr("tandem.codecs.votes.MAX_LISTED", 3)
    for seed in SEEDS[:10]:
        play(seed)
    assert num_whole > 10
