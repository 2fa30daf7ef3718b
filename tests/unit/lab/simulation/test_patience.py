"""A limited wait at each step (`decoding.patience_s`) by the clock.

`protocol/transcripts/patience` tells when it begins. `test_fuzz` plays it with faults; `test_mutants` has mutants of
what the log says.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandem.events import TokenEvent
from tandem.messages import Vote
from tandem.protocol.ballots import BallotBox
from tandem.protocol.log import Log, Prefix
from tandem.topology import Party
from tandem_lab.simulation.fuzz import LIMIT_S
from tandem_lab.simulation.link import Link
from tests.unit.lab.simulation.planted import put
from tests.unit.lab.simulation.world import Case, make_spec
from tests.unit.protocol.test_transcripts import STORIES
from tests.unit.protocol.transcript import play

HOPS_S = 1e-3
"""From a decision to wait no longer until the token: two hops within the site."""


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


def test_a_cloud_that_never_answers_in_time_costs_its_patience_at_each_step() -> None:
    """It is not lost, for it is heard; and the answer is that of the device alone."""
    spec = make_spec(3, draft_rule="coupled", on_peer_loss="continue", max_new_tokens=16, patience_s=0.1)
    run = Case(spec, Link(delay_s=0.03)).make(lambda party, rng: 0.01 if party is Party.DEVICE else 9.0)
    tokens = run.run(LIMIT_S).of(TokenEvent)
    assert all(token.is_alone and token.shares == {"device": 1.0} for token in tokens)
    between_s = [after.committed_s - before.committed_s for before, after in pairwise(tokens)]
    assert all(0.1 <= gap_s <= 0.1 + 0.025 + 0.01 + HOPS_S for gap_s in between_s)
    done = run.outcome.done
    assert done is not None
    assert (done.statistics.num_late_votes, done.statistics.degraded_from) == (len(tokens), None)
