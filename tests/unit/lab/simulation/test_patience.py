"""A limited wait at each step (`decoding.patience_s`): how long it is, and that the log of it says what the answer is.

`test_fuzz` plays it with faults; `test_mutants` has mutants of what the log says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tandem.events import TokenEvent
from tandem.messages import Local, Vote
from tandem.protocol.ballots import BallotBox
from tandem.protocol.log import Log, Prefix
from tandem.protocol.routes import ActorKind
from tandem.protocol.table import MIN_TICK_S, TICK_S
from tandem.topology import Party
from tandem_lab.simulation.fuzz import LIMIT_S
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.virtual import VirtualRun
from tests.unit.lab.simulation.test_mutants import put
from tests.unit.lab.simulation.world import Case, agree, make_spec

HOPS_S = 1e-3
"""From a decision to wait no longer until the token: two hops within the site."""
SEEDS = range(20)


class TimedDrafts(VirtualRun):
    """Notes when each draft of the device came to its coordinator."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.drafted_s: dict[bytes, float] = {}  # by digest of the prefix

    def receive(self, party: str, to: ActorKind, message: Any) -> None:
        if (party, to) == ("device", "draft_queue") and isinstance(message, Local):
            self.drafted_s.setdefault(message.body.digest, self.now_s)
        super().receive(party, to, message)

    def waits(self) -> Iterator[tuple[float, bool]]:
        """Of each step: from its beginning, with the own vote, to the token; and whether it was decided alone.

        Not of those that began before the first tick, when no query was open.
        """
        tokens = self.outcome.of(TokenEvent)
        digests = Prefix(self.spec.session, [token.token for token in tokens]).digests
        for before, token in pairwise(tokens):
            since_s = max(before.committed_s, self.drafted_s[digests[token.step]])
            if since_s > TICK_S:
                yield token.committed_s - since_s, token.is_alone


def ask(seed: int, patience_s: float, cloud_s: float = 0.1, **changes: object) -> TimedDrafts:
    """cloud_s: mean of its passes."""

    def decode_s(party: Party, rng: random.Random) -> float:
        return cloud_s / 8 if party is Party.DEVICE else rng.expovariate(1 / cloud_s)

    spec = make_spec(seed, placement="mirror", draft_rule="coupled", patience_s=patience_s, **changes)
    run = Case(spec, Link(delay_s=cloud_s / 4)).make(decode_s, kind=TimedDrafts)
    run.run(LIMIT_S)
    return run


def check_waits(patience_s: float) -> None:
    """No step waits for longer, but for a tick; and none is decided alone before."""
    tick_s = max(MIN_TICK_S, min(TICK_S, patience_s / 4))
    num_alone = num_together = 0
    for seed in SEEDS:
        run = ask(seed, patience_s, patience_s, max_new_tokens=16)
        agree(run.outcome)
        for wait_s, is_alone in run.waits():
            assert wait_s <= patience_s + tick_s + HOPS_S
            assert wait_s >= patience_s or not is_alone
            num_alone, num_together = num_alone + is_alone, num_together + (not is_alone)
    assert min(num_alone, num_together) > 10


@pytest.mark.parametrize("patience_s", [0.02, 0.1, 0.3])
def test_a_step_waits_as_long_as_it_may_and_no_longer(patience_s: float) -> None:
    check_waits(patience_s)


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


@pytest.mark.parametrize("mutant", [CountsFromTheDraft, CountsFromTheCommit])
def test_a_wait_that_begins_at_another_time_is_found(
    mutant: type[Log | BallotBox], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(mutant)(monkeypatch)
    with pytest.raises(AssertionError, match=r">= 0\.1 or not True"):
        check_waits(0.1)


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
