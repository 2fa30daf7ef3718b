"""Which of line and average predicts, and what an outlier does to both."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from tandem.profiler.estimates import MIN_VALUES, OUTLIER, DecodeLine, DecodeTime

LINE = DecodeLine.fit([100, 200, 300], [0.010, 0.012, 0.014])


def test_the_line_predicts_while_it_is_right() -> None:
    """It sees the growth with the context, the average lags behind."""
    decode_time = DecodeTime(LINE)
    for step in range(100):
        assert decode_time.predict(step) == pytest.approx(LINE.predict(100 + step), rel=1e-9)
        assert decode_time.add(step, LINE.predict(100 + step)) is None


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf])
def test_an_impossible_time_is_ignored_and_reported(wrong: float) -> None:
    decode_time = DecodeTime()
    note = decode_time.add(3, wrong)
    assert note == f"A decode time of {wrong:g} s at step 3 was ignored: it must be finite and above 0."
    assert isnan(decode_time.predict(4))
    assert decode_time.add(4, nan) is None


def test_one_outlier_is_clamped_and_a_new_speed_is_learnt() -> None:
    decode_time = DecodeTime()
    for step in range(MIN_VALUES):
        assert decode_time.add(step, 0.01) is None
    assert decode_time.add(MIN_VALUES, 1.0) == (
        "A decode time of 1 s at step 3 was clamped to 0.03 s: 0.01 s was expected."
    )
    assert decode_time.predict(9) == pytest.approx(0.01 * (0.8 + 0.2 * OUTLIER))
    for step in range(20):
        decode_time.add(step, 1.0)
    assert decode_time.predict(9) == pytest.approx(1.0, rel=0.2)
