"""From rounds to the length of the next proposals: the profiler's and the scheduler's sessions."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from tandem.messages import (
    ProposalLength,
    Round,
)
from tandem.modes.spec import SessionSpec
from tandem.protocol.estimating import LengthSession, RoundProfilingSession
from tandem.protocol.outbox import Send
from tandem.scheduler.lengths import RoundCosts, best_length, load_length_policy
from tandem_lab.simulation.specs import make_spec


def spec(**changes: Any) -> SessionSpec:
    values = {"mode": "speculative", "pacing": "stop_and_wait", "length_policy": "best", "max_proposal": 16}
    return make_spec(**{**values, **changes})


def round_of(length: int, num_accepted: int, **changes: Any) -> Round:
    """A link of 100 ms, a draft of 15 and a pass of 25 ms."""
    values: dict[str, Any] = {
        "length": length,
        "num_accepted": num_accepted,
        "draft_us": 15_000 * length,
        "num_bytes": 2 * length,
        "waited_s": 0.125,
        "rtt_s": 0.1,
        "bytes_per_s": inf,
    }
    return Round(**(values | changes))


def play(made: SessionSpec, *rounds: Round) -> list[int]:
    """The length that is chosen after each round."""
    profiler, scheduler = RoundProfilingSession(made), LengthSession(made)
    lengths = []
    for each in rounds:
        (profile,) = profiler.observe(each)
        assert profile.to == "scheduler"
        lengths += [send.message.length for send in scheduler.observe(profile.message)]
    return lengths


def test_the_best_length_follows_acceptance() -> None:
    costs = RoundCosts(fixed_s=0.125, token_s=0.015, alone_s=0.125)
    good = play(spec(), *[round_of(4, 4)] * 100)[-1]
    assert good == best_length([0.99] * 16, costs)
    poor = play(spec(), *[round_of(4, 0)] * 100)[-1]
    assert poor <= 1


def test_a_longer_round_trip_makes_longer_proposals() -> None:
    counts = random.Random(1).choices(range(9), weights=[0.85**count for count in range(9)], k=60)
    near, far = (
        play(spec(), *[round_of(8, count, rtt_s=rtt_s, waited_s=rtt_s + 0.025) for count in counts])[-1]
        for rtt_s in (0.01, 0.5)
    )
    assert near < far


def test_an_asked_cloud_is_tried_again_from_time_to_time() -> None:
    """Nothing stands, so nothing is proposed, but for a probe now and then."""
    profiler, scheduler = RoundProfilingSession(spec()), LengthSession(spec())
    lengths = [4]
    for _ in range(400):
        (profile,) = profiler.observe(round_of(lengths[-1], 0))
        (sent,) = scheduler.observe(profile.message)
        lengths.append(sent.message.length)
    assert 0 < sum(length > 0 for length in lengths[200:]) < 10


QS = ("last_accepted", "double_dqn")


@pytest.fixture(autouse=True, scope="module")
def _qs() -> None:
    for policy in QS:
        load_length_policy(policy, {}, "This process")


def test_the_last_accepted_count_is_the_next_length() -> None:
    rounds = [round_of(4, 4), round_of(5, 2), round_of(2, 2), round_of(3, 0)]
    assert play(spec(length_policy=QS[0]), *rounds) == [5, 2, 3, 1]


@pytest.mark.parametrize("policy", ["best", *QS])
def test_no_policy_exceeds_the_limit(policy: str) -> None:
    lengths = play(spec(length_policy=policy, max_proposal=5), *[round_of(5, 5)] * 40)
    assert 1 <= max(lengths) <= 5


class _Wild:
    def choose(self, rates: Any, costs: Any, error: float = 0.0) -> int:
        return 99

    def observe(self, length: int, num_accepted: int, confidences: Any = ()) -> None:
        pass


def test_nor_does_one_of_ones_own() -> None:
    (profile,) = RoundProfilingSession(spec(max_proposal=7)).observe(round_of(4, 4))
    (sent,) = LengthSession(spec(max_proposal=7), _Wild()).observe(profile.message)
    assert sent == Send("decoder", ProposalLength(session=1, length=7))
