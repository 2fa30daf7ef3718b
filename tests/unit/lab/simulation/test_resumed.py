"""A query that begins with the tokens of an earlier run gives the answer of that run, whatever breaks on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.topology import Party
from tandem_lab.simulation.fuzz import LIMIT_S, expected, scenario_of
from tandem_lab.simulation.scenario import Scenario, expected_answer
from tandem_lab.simulation.virtual import InvariantError, Outcome
from tandem_lab.simulation.watched import WatchedRun

SEEDS = range(40)
CHAIN_SEEDS = range(20)


def resume(seed: int, tokens: tuple[int, ...]) -> None:
    """Play a scenario with all its faults from these tokens on. Raises InvariantError."""
    run, outcome = play_from(scenario_of(seed, "dual"), tokens)
    run.check_end(expected(seed))
    told = [event.token for event in run.tokens]
    assert outcome.done is not None
    statistics = outcome.done.statistics
    is_by_both = statistics.degraded_from is None and not statistics.num_late_votes
    assert tuple(told) == expected(seed) or not is_by_both
    assert (statistics.num_resumed, statistics.num_tokens) == (len(tokens), len(told))


def play_from(scenario: Scenario, tokens: tuple[int, ...]) -> tuple[WatchedRun, Outcome]:
    spec = replace(scenario.spec, session=scenario.seed + 77, committed=tokens)
    run = WatchedRun(replace(scenario, spec=spec))
    return run, run.run(LIMIT_S)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_parties_with_faults(seed: int) -> None:
    tokens = expected(seed)
    for count in {1, seed % len(tokens), len(tokens) - 1} - {0}:
        resume(seed, tokens[:count])


@pytest.mark.parametrize("roles", ["speculative", "federated-3"])
@pytest.mark.parametrize("seed", CHAIN_SEEDS)
def test_modes_whose_drafter_has_no_vote(seed: int, roles: str) -> None:
    """Losses of parties decide what is expected of the steps behind them."""
    scenario = scenario_of(seed, roles)
    tokens = expected_answer(scenario)
    run, _ = play_from(scenario, tuple(tokens[: 1 + seed % (len(tokens) - 1)]))
    run.check_end()


@pytest.mark.parametrize("seed", [3, 4])
def test_one_party_alone(seed: int) -> None:
    scenario = scenario_of(seed, "solo")
    _, whole = play_from(scenario, ())
    _, resumed = play_from(scenario, tuple(whole.tokens[Party.DEVICE][:5]))
    assert resumed.tokens == whole.tokens


def test_another_prefix_is_noticed() -> None:
    """The control: with one token of the prefix changed, the comparison above fails."""
    tokens = expected(1)
    with pytest.raises(InvariantError):
        resume(1, (*tokens[:4], tokens[4] + 1))
