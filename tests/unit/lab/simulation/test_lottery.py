"""The rule `lottery` under every fault: each run gives the draft-free answer, and each planted defect is found.

`tests/laws/test_law_lottery.py` says that the loop's own law is that of the mixture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.aggregation import rules
from tandem.aggregation.coupling import Purpose
from tandem.messages import Ballot, Vote
from tandem.modes import mode, tally
from tandem.modes.mode import Mode
from tandem.modes.tally import Tally
from tandem.topology import Party
from tandem_lab.simulation.fuzz import play, scenario_of
from tests.unit.lab.simulation.planted import Planted, both_tests_of, put
from tests.unit.lab.simulation.test_chain import PairedByStep
from tests.unit.lab.simulation.test_logprobs import Listening
from tests.unit.lab.simulation.world import played

DUAL = "dual-lottery"
NUM_RUNS = {DUAL: 40, "federated-2-lottery": 12, "federated-3-lottery": 8, "federated-5-lottery": 3}


@pytest.mark.parametrize("roles", NUM_RUNS)
def test_every_run_gives_the_tokens_of_the_draft_free_loop(roles: str) -> None:
    counts, weighed, limits = Counter[str](), set(), set()
    for seed in range(NUM_RUNS[roles]):
        report = play(seed, roles=roles)
        spec = scenario_of(seed, roles).spec
        assert report.num_tokens > 0 or report.counts["cancelled"]
        assert not spec.rules.has_race_lists
        counts += report.counts
        weighed.add(spec.roles.weighs_by_documents)
        limits.add(spec.max_peer_share)
    assert len(limits) > 1
    assert weighed == ({True} if roles == DUAL else {True, False})
    assert counts["tokens accepted"] > 0
    assert (counts["late votes"] > 10) == (roles == DUAL)
    assert any(counts[name] for name in ("host crashes", "cuts", "stalls", "crashes"))


# ---- what crosses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("roles", [DUAL, "federated-3-lottery"])
def test_a_vote_is_an_id_and_a_weight(roles: str) -> None:
    """At most ten bytes of it, however many tokens the vocabulary has below a million."""
    for seed in range(6):
        run = played(scenario_of(seed, roles), Listening)
        for party, vote in run.crossed:
            if isinstance(vote, Vote) and party in run.spec.roles.voters:
                assert all(len(payload) <= 3 for payload in vote.payloads)
                assert len(vote.payloads) == (0 if roles == DUAL else vote.num_prefixes)
                assert len(vote.log_weights) in (0, vote.num_prefixes)


# ---- mutants -----------------------------------------------------------------------------------------------


def noise_of_the_race(patch: pytest.MonkeyPatch) -> None:
    """The owner is drawn by the race's own noise."""
    uniform = rules.uniform
    patch.setattr(rules, "uniform", lambda seed, purpose, step: uniform(seed, Purpose.COUPLED, step))


def number_used_twice(patch: pytest.MonkeyPatch) -> None:
    """The next step has the same owner's number."""
    draw = rules.draw_owner

    def again(shares: Sequence[float], *, seed: int, step: int) -> int:
        return draw(shares, seed=seed, step=step // 2)

    for module in (tally, mode):
        patch.setattr(module, "draw_owner", again)


def other_order_at_the_cloud(patch: pytest.MonkeyPatch) -> None:
    """One party lays the shares in the opposite order."""
    owner = Tally.owner

    def turned(self: Tally, position: int = 0) -> int:
        if self.party != Party.CLOUD or len(self.voters) == 1:
            return owner(self, position)
        shares = self.shares(position)[::-1]
        return (
            len(shares) - 1 - rules.draw_owner(shares, seed=self.spec.seed, step=self.ballot.step + position)
        )

    patch.setattr(Tally, "owner", turned)


def rounded_at_the_cloud(patch: pytest.MonkeyPatch) -> None:
    """One party rounds the log weights that it computes with, to whole numbers."""
    init = Tally.__init__

    def rounding(
        self: Tally, spec: Any, roles: Any, party: str, codec: Any, ballot: Ballot, *more: Any
    ) -> None:
        if party == Party.CLOUD:
            weights = tuple(round(weight, 0) for weight in ballot.log_weights)
            ballot = replace(ballot, log_weights=weights)
        init(self, spec, roles, party, codec, ballot, *more)

    patch.setattr(Tally, "__init__", rounding)


def the_others_where_both_are_equal(patch: pytest.MonkeyPatch) -> None:
    """Where two count the same, up to a tie, the token of the one that does not own the step is committed."""
    owner = Tally.owner

    def swapped(self: Tally, position: int = 0) -> int:
        place = owner(self, position)
        is_tie = len(self.voters) == 2 and abs(self.shares(position)[0] - 0.5) < 1e-3
        return 1 - place if is_tie else place

    patch.setattr(Tally, "owner", swapped)


def certain_beyond_the_limit(patch: pytest.MonkeyPatch) -> None:
    """The home takes more steps for its own than the limit leaves it."""
    needed = Mode.needed

    def greedy(self: Mode, step: int, voters: Sequence[str]) -> tuple[str, ...]:
        limit = self.spec.max_peer_share
        looser = replace(self.spec, max_peer_share=limit / 2) if limit < 1 else self.spec
        return needed(type(self)(looser), step, voters)

    patch.setattr(Mode, "needed", greedy)


SEEDS = range(150)
MUTANTS = {
    "noise_of_the_race": Planted(noise_of_the_race, SEEDS, 1, DUAL),
    "number_used_twice": Planted(number_used_twice, SEEDS, 1, DUAL),
    "other_order_at_the_cloud": Planted(other_order_at_the_cloud, SEEDS, 1, DUAL),
    "rounded_at_the_cloud": Planted(rounded_at_the_cloud, SEEDS, 13, DUAL),
    "the_others_where_both_are_equal": Planted(the_others_where_both_are_equal, SEEDS, 5, DUAL),
    "draft_of_another_prefix": Planted(put(PairedByStep), SEEDS, 0, DUAL),
    "certain_beyond_the_limit": Planted(certain_beyond_the_limit, SEEDS, 5, DUAL),
    "noise_of_the_race_federated": Planted(noise_of_the_race, SEEDS, 0, "federated-3-lottery"),
    "number_used_twice_federated": Planted(number_used_twice, SEEDS, 1, "federated-3-lottery"),
}
test_the_comparison_finds, test_the_witness_is_among_the_seeds_that_find = both_tests_of(MUTANTS)
