"""The draft-free loop and the token-wise loop of the real machines give the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.oracle import has_oracle
from tests.unit.lab.simulation.world import Case, agree, answer, make_spec


def test_the_token_wise_loop_over_a_perfect_link_is_the_reference() -> None:
    num_compared = 0
    for seed in range(60):
        spec = make_spec(seed, placement="device", max_window=1)
        if has_oracle(spec):
            assert agree(Case(spec, Link()).run()) == answer(spec)
            num_compared += 1
    assert num_compared > 30


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_that_answers_solo_is_the_reference(party: Party) -> None:
    for seed in range(20):
        spec = replace(make_spec(seed), only=party)
        if has_oracle(spec):
            outcome = Case(spec, Link()).run()
            assert tuple(outcome.tokens[party]) == answer(spec)
