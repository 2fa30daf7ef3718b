"""The aggregator moves after every token, and the output does not change.

A handover rides in the verdict. The mutant at the end hands over twice: the old aggregator goes on deciding.
"""

from __future__ import annotations

import pytest

from tandem.events import PlacementEvent, TokenEvent
from tandem.protocol.session import Session
from tandem.scheduler.policies import Greedy
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.virtual import Outcome
from tests.unit.lab.simulation.world import ENDLESS, Case, make_spec

NUM_TOKENS = 200
LINKS = (
    Link(),
    Link(delay_s=0.05),
    Link(delay_s=0.02, jitter_s=0.2),
    Link(delay_s=0.02, jitter_s=0.05, drop=0.1, duplicate=0.1),
)


def after_every_token(patch: pytest.MonkeyPatch) -> None:
    """Instead of the scheduler's advice: the other party, always."""
    patch.setattr(Greedy, "choose_next", lambda self, step, aggregator, **_: aggregator.other)


def run(seed: int, link: Link, **changes: object) -> Outcome:
    documents = {"device_documents": 2, "cloud_documents": 3}
    spec = make_spec(seed, max_new_tokens=NUM_TOKENS, eos_token_ids=(), **documents, **changes)
    return Case(spec, link).make(first_end=ENDLESS).run(2000)


def check(seed: int, link: Link) -> None:
    with pytest.MonkeyPatch.context() as patch:
        after_every_token(patch)
        outcome = run(seed, link, placement="greedy")
    expected = run(seed, Link(), placement="device", max_window=1)
    assert outcome.done is not None
    assert outcome.done.reason == "length"
    assert outcome.tokens[Party.DEVICE] == outcome.tokens[Party.CLOUD] == expected.tokens[Party.DEVICE]
    tokens = outcome.of(TokenEvent)
    assert [event.step for event in tokens] == list(range(NUM_TOKENS))
    assert [event.aggregator for event in tokens] == [PARTIES[step % 2] for step in range(NUM_TOKENS)]
    handovers = outcome.of(PlacementEvent)
    assert len(handovers) == NUM_TOKENS
    assert outcome.done.statistics.num_divergences == 0


@pytest.mark.parametrize("seed", range(12))
def test_handover_at_every_token_changes_nothing(seed: int) -> None:
    check(seed, LINKS[seed % len(LINKS)])


def test_random_placement_hands_over_about_half_the_time() -> None:
    outcome = run(3, Link(delay_s=0.05), placement="random")
    tokens = outcome.of(TokenEvent)
    by_cloud = sum(event.aggregator is Party.CLOUD for event in tokens)
    assert 60 <= by_cloud <= 140  # 200 fair coins: outside with probability 1e-8
    assert outcome.tokens[Party.DEVICE] == run(3, Link(), max_window=1).tokens[Party.DEVICE]


def test_an_old_aggregator_that_goes_on_deciding_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hand-over both sides decide: harmless for coupled targets, but not one decision a step."""
    monkeypatch.setattr(Session, "decides_here", property(lambda self: True))
    with pytest.raises(AssertionError):
        check(0, LINKS[1])


def test_the_runs_hold_rollbacks_of_both_parties() -> None:
    """Else they would show nothing."""
    outcome = run(5, LINKS[1], placement="random")
    assert outcome.done is not None
    statistics = outcome.done.statistics
    assert NUM_TOKENS - statistics.num_device_accepted > 20
    assert NUM_TOKENS - statistics.num_cloud_accepted > 20
