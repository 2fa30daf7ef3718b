"""Peers that know the protocol and forge frames: no token is committed without a reason by right.

More frames: `tandem lab fuzz --roles hostile-mirror --runs 1000`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tandem.errors import ProtocolError
from tandem.messages import Ballot, Cancel, LinkBody, Resync, Verdict, Vote, registry
from tandem.protocol.ballots import BallotBox
from tandem.protocol.routes import Routes
from tandem.protocol.services import AggregatorSession
from tandem.protocol.session import Session
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.fuzz import fuzz
from tandem_lab.simulation.hostile import CASES, KINDS, count_items, play_hostile
from tandem_lab.simulation.virtual import InvariantError
from tests.unit.protocol.test_rights import rights_by_role, without_turns

NUM_RUNS = 10
BY_RIGHT = {
    **dict.fromkeys(("hostile-cloud", "hostile-greedy", "hostile-speculative-cloud", "hostile-server"), True),
    **dict.fromkeys(
        ("hostile-mirror", "hostile-device", "hostile-worker", "hostile-speculative-device"), False
    ),
}
"""Where a peer may decide, its verdicts count; elsewhere none of all that are forged does."""


def test_every_kind_of_body_is_forged() -> None:
    assert {kind for kind, _ in KINDS} == {*registry.body_classes} - {Cancel}, (
        "it ends a run, so it is forged rarely"
    )


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Refusals are logged by design, thousands of them here."""
    logging.getLogger("tandem").setLevel(logging.ERROR)
    yield
    logging.getLogger("tandem").setLevel(logging.NOTSET)


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_peer_bends_no_answer_and_decides_by_design_alone(case: str) -> None:
    report = fuzz(0, NUM_RUNS, roles=case)
    assert not report.failures, "\n".join([*map(str, report.failures), *report.failures[0].trace])
    counts = report.counts
    assert counts["hostile frames"] > 1200
    assert counts["hostile frames refused"] > 500, "they are counted"
    assert counts["hostile frames refused"] < counts["hostile frames"], "and some are legal"
    assert report.num_tokens > 5, "answers get somewhere all the same"
    assert (counts["tokens by a peer's right"] > 0) == BY_RIGHT.get(
        case, counts["tokens by a peer's right"] > 0
    )


@pytest.mark.parametrize(
    ("case", "seed"),
    [
        ("hostile-greedy", 500028),
        ("hostile-greedy", 500140),
        ("hostile-speculative-cloud", 500041),
        ("hostile-speculative-device", 500092),
    ],
)
def test_a_prefix_that_is_decided_more_than_once_gives_no_false_alarm(case: str, seed: int) -> None:
    """Alone and again with the peer, which hand over to different parties; for five tokens, and later for more; or
    after other tokens had been adopted in between."""
    play_hostile(case, seed, EventLog(0))


def test_what_a_coordinator_holds_is_counted_through_everything() -> None:
    assert count_items([1, (2, {3: b"x" * 640})]) == 1 + 1 + 1 + 1 + 1 + 1 + 11


# ---- defects -------------------------------------------------------------------------------------------------------


def found(case: str, num_runs: int = 60) -> bool:
    for seed in range(num_runs):
        try:
            play_hostile(case, seed, EventLog(0))
        except InvariantError:
            return True
    return False


def early_verdicts_are_not_checked_again(patch: pytest.MonkeyPatch) -> None:
    """The turn is checked on arrival alone."""
    original = Routes.check_turn

    def on_arrival(self: Routes, source: str, body: LinkBody, num_committed: int, decider: str) -> None:
        is_late = isinstance(body, Verdict) and id(body) in held
        held.add(id(body))
        keep.append(body)
        if not is_late:
            original(self, source, body, num_committed, decider)

    held: set[int] = set()
    keep: list[LinkBody] = []
    patch.setattr(Routes, "check_turn", on_arrival)


def whose_vote_does_not_matter(patch: pytest.MonkeyPatch) -> None:
    """A vote is of a party that has none on its prefix yet."""
    hold = BallotBox.hold

    def hold_anywhere(self: BallotBox, source: str, vote: Vote, *args: Any) -> bool:
        without = [party for party, held in self.entries.items() if vote.digest not in held]
        return hold(self, without[0] if without else source, vote, *args)

    patch.setattr(BallotBox, "hold", hold_anywhere)


def latest_weight_counts(patch: pytest.MonkeyPatch) -> None:
    """A vote keeps its place and takes the weight of another."""
    hold = BallotBox.hold

    def hold_weight(self: BallotBox, source: str, vote: Vote, *args: Any) -> bool:
        is_held = hold(self, source, vote, *args)
        entry = self.entries[source].get(vote.digest)
        if entry is not None and vote.log_weights:
            self.entries[source][vote.digest] = replace(entry, log_weight=vote.log_weights[0])
        return is_held

    patch.setattr(BallotBox, "hold", hold_weight)


def resyncs_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """A Resync is adopted whoever sends it, at home too."""
    original = Routes.rights.func
    patch.setattr(
        Routes, "rights", property(lambda self: {**original(self), Resync: self.topology.peers(self.party)})
    )
    patch.setattr(Session, "receive_frame", _without_views)
    patch.setattr(Routes, "is_home", property(lambda self: False))


_receive_frame = Session.receive_frame


def _without_views(self: Session, frame: Any, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(frame.body, Resync):
            patch.setattr(Routes, "is_authority", property(lambda routes: False))
        return _receive_frame(self, frame, *args)


MUTANTS = {
    "rights_by_role": (rights_by_role, "hostile-mirror"),
    "no_turns": (without_turns, "hostile-greedy"),
    "early_verdicts_are_not_checked_again": (early_verdicts_are_not_checked_again, "hostile-greedy"),
    "whose_vote_does_not_matter": (whose_vote_does_not_matter, "hostile-mirror"),
    "latest_weight_counts": (latest_weight_counts, "hostile-mirror"),
    "resyncs_of_anybody": (resyncs_of_anybody, "hostile-mirror"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_witness_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, case = MUTANTS[name]
    plant(monkeypatch)
    assert found(case)


def test_a_vote_that_ends_the_query_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aggregator that fails on bytes that are no vote, as it once did."""
    decide = AggregatorSession.decide

    def fail(self: AggregatorSession, ballot: Ballot) -> Any:
        result = decide(self, ballot)
        if result.unreadable:
            raise ProtocolError(result.problem)
        return result

    monkeypatch.setattr(AggregatorSession, "decide", fail)
    with pytest.raises(ProtocolError, match="cannot be read"):
        found("hostile-mirror")
