"""A fall below half of what was usual is told within 64 tokens and once, and chance tells none."""

from __future__ import annotations

from random import Random

import pytest

from tandem.profiler import rounds as acceptance_alarm
from tandem.profiler.rounds import WINDOW, AcceptanceAlarm, Fall


def judge(
    alarm: AcceptanceAlarm, rng: Random, rate: float, num_tokens: int, length: int = 4
) -> list[tuple[int, Fall]]:
    """Proposals until so many tokens are judged; the falls, with the tokens judged by then."""
    falls, judged = [], 0
    while judged < num_tokens:
        accepted = 0
        while accepted < length and rng.random() < rate:
            accepted += 1
        judged += min(accepted + 1, length)
        if (fall := alarm.observe(length, accepted)) is not None:
            falls.append((judged, fall))
    return falls


@pytest.mark.parametrize(("usual", "low"), [(0.9, 0.2), (0.7, 0.1), (0.6, 0.05), (0.5, 0.0), (0.95, 0.2)])
def test_a_fall_is_told_within_64_tokens_and_once(usual: float, low: float) -> None:
    for seed in range(20):
        alarm, rng = AcceptanceAlarm(), Random(seed)
        assert judge(alarm, rng, usual, 400) == []
        ((judged, fall), *more) = judge(alarm, rng, low, 1000)
        assert judged <= 64
        assert fall.rate < 0.5 * fall.usual_rate
        assert fall.usual_rate == pytest.approx(usual, abs=0.15)
        assert more == []


@pytest.mark.parametrize(
    ("usual", "low", "limit"), [(0.76, 0.3, 200), (0.5, 0.2, 600), (0.4, 0.1, 200), (0.25, 0.0, 200)]
)
def test_a_fall_that_chance_might_explain_is_told_once_it_cannot(
    usual: float, low: float, limit: int
) -> None:
    """The tokens of a fall are not taken for usual meanwhile."""
    for seed in range(20):
        alarm, rng = AcceptanceAlarm(), Random(seed)
        assert judge(alarm, rng, usual, 400) == []
        assert judge(alarm, rng, low, limit)[0][0] <= limit


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.4, 0.7, 0.95, 1.0])
def test_chance_tells_none(rate: float) -> None:
    assert judge(AcceptanceAlarm(), Random(1), rate, 20_000) == []


def test_without_the_standard_error_chance_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance_alarm, "ALARM_SIGMAS", 0.0)
    assert judge(AcceptanceAlarm(), Random(1), 0.1, 20_000)


def test_nothing_is_told_before_anything_is_usual() -> None:
    alarm, rng = AcceptanceAlarm(), Random(2)
    assert judge(alarm, rng, 1.0, WINDOW) == []
    assert judge(alarm, rng, 0.0, WINDOW - 8) == []


def test_a_small_fall_is_not_told() -> None:
    alarm, rng = AcceptanceAlarm(), Random(3)
    assert judge(alarm, rng, 0.9, 400) == judge(alarm, rng, 0.65, 400) == []


def test_a_second_fall_is_told_too() -> None:
    alarm, rng = AcceptanceAlarm(), Random(4)
    judge(alarm, rng, 0.95, 400)
    assert len(judge(alarm, rng, 0.4, 400)) == 1
    assert len(judge(alarm, rng, 0.05, 400)) == 1
