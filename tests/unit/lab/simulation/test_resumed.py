"""A query that begins with the tokens of an earlier run gives the answer of that run, whatever breaks on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.events import TokenEvent
from tandem.topology import Party
from tandem_lab.simulation.chain import ChainRun
from tandem_lab.simulation.chain_scenario import expected_chain, make_chain_scenario
from tandem_lab.simulation.event_log import EventLog
from tandem_lab.simulation.fuzz import LIMIT_S, expected, make_run, make_scenario
from tandem_lab.simulation.invariants import InvariantError

SEEDS = range(40)
CHAIN_SEEDS = range(20)


def resume(seed: int, tokens: tuple[int, ...]) -> None:
    """Play a scenario with all its faults from these tokens on. Raises InvariantError."""
    scenario = make_scenario(seed)
    spec = replace(scenario.spec, session=seed + 77, committed=tokens)
    run = make_run(replace(scenario, spec=spec), EventLog(0))
    outcome = run.run(LIMIT_S)
    run.check_end(outcome, expected(seed))
    told = [event.token for event in outcome.events if isinstance(event, TokenEvent)]
    assert outcome.done is not None
    statistics = outcome.done.statistics
    assert tuple(told) == expected(seed) or statistics.degraded_from is not None
    assert (statistics.num_resumed, statistics.num_tokens) == (len(tokens), len(told))


@pytest.mark.parametrize("seed", SEEDS)
def test_two_parties_with_faults(seed: int) -> None:
    tokens = expected(seed)
    for count in {1, seed % len(tokens), len(tokens) - 1} - {0}:
        resume(seed, tokens[:count])


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("seed", CHAIN_SEEDS)
def test_modes_whose_drafter_has_no_vote(seed: int, num_workers: int) -> None:
    """Speculative (no workers), and federated. Losses of parties decide what is expected of the steps behind them."""
    scenario = make_chain_scenario(seed, num_workers)
    tokens = expected_chain(scenario)
    committed = tuple(tokens[: 1 + seed % (len(tokens) - 1)])
    run = ChainRun(replace(scenario, spec=replace(scenario.spec, session=seed + 77, committed=committed)))
    run.run()
    run.check_end()


@pytest.mark.parametrize("seed", [3, 4])
def test_one_party_alone(seed: int) -> None:
    scenario = make_scenario(seed)
    spec = replace(scenario.spec, only=Party.DEVICE)
    scenario = replace(scenario, spec=spec, faults=(), slips={})
    whole = make_run(scenario, EventLog(0)).run(LIMIT_S).tokens[Party.DEVICE]
    resumed = replace(spec, session=seed + 77, committed=tuple(whole[:5]))
    assert make_run(replace(scenario, spec=resumed), EventLog(0)).run(LIMIT_S).tokens[Party.DEVICE] == whole


def test_another_prefix_is_noticed() -> None:
    """The control: with one token of the prefix changed, the comparison above fails."""
    tokens = expected(1)
    with pytest.raises(InvariantError):
        resume(1, (*tokens[:4], tokens[4] + 1))
