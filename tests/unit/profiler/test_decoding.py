"""Which of line and average predicts, and what an outlier does to both."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from tandem.profiler.decoding import MIN_SEEN, OUTLIER, DecodeTime
from tandem.profiler.line import DecodeLine

LINE = DecodeLine.fit([100, 200, 300], [0.010, 0.012, 0.014])


def test_nothing_is_known_at_first() -> None:
    assert isnan(DecodeTime().predict(0))
    assert DecodeTime(LINE).predict(50) == pytest.approx(0.011)


def test_the_line_predicts_while_it_is_right() -> None:
    """It sees the growth with the context, the average lags behind."""
    found = DecodeTime(LINE)
    for step in range(100):
        assert found.predict(step) == pytest.approx(LINE.predict(100 + step), rel=1e-9)
        assert found.add(step, LINE.predict(100 + step)) is None


def test_the_average_predicts_where_the_machine_has_another_speed() -> None:
    found = DecodeTime(LINE)
    for step in range(10):
        found.add(step, 0.060)
    assert found.predict(10) == pytest.approx(0.060, rel=0.01)


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf])
def test_what_is_no_time_is_ignored_and_said_so(wrong: float) -> None:
    found = DecodeTime()
    note = found.add(3, wrong)
    assert note == f"A decode time of {wrong:g} s at step 3 was ignored: it must be finite and above 0."
    assert isnan(found.predict(4))
    assert found.add(4, nan) is None


def test_one_outlier_is_doubted_and_a_new_speed_is_believed() -> None:
    found = DecodeTime()
    for step in range(MIN_SEEN):
        assert found.add(step, 0.01) is None
    assert found.add(MIN_SEEN, 1.0) == (
        "A decode time of 1 s at step 3 was taken as 0.03 s: 0.01 s were expected."
    )
    assert found.predict(9) == pytest.approx(0.01 * (0.8 + 0.2 * OUTLIER))
    for step in range(20):
        found.add(step, 1.0)
    assert found.predict(9) == pytest.approx(1.0, rel=0.2)
