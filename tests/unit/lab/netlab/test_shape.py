"""Shapes: what a person writes, what netem is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.shape import Shape, parse_duration, parse_rate, parse_share


def shape_of(values: dict[str, float]) -> Shape:
    return Shape(**values)


@pytest.mark.parametrize(
    ("make", "value", "sentence"),
    [
        (parse_duration, "100", "such as 100ms, 0.1s or 250us, but it is '100'"),
        (parse_duration, "-1ms", "but it is '-1ms'"),
        (parse_duration, "1 ms", "but it is '1 ms'"),
        (parse_duration, "infs", "but it is 'infs'"),
        (parse_duration, "", "but it is ''"),
        (parse_rate, "50", "such as 50mbit, 500kbit or 1gbit, or `unlimited`, but it is '50'"),
        (parse_rate, "0mbit", "but it is '0mbit'"),
        (parse_rate, "50mb", "but it is '50mb'"),
        (parse_share, "101%", "from 0% to 100%, such as 1%, but it is '101%'"),
        (parse_share, "0.5", "but it is '0.5'"),
        (shape_of, {"rtt_s": -1.0}, "from 0 to 60 s, but it is -1 s"),
        (shape_of, {"rtt_s": float("nan")}, "but it is nan s"),
        (shape_of, {"rtt_s": 0.01, "jitter_s": 0.02}, "it is 20 ms at an RTT of 10 ms"),
        (shape_of, {"rate_bits_per_s": 1.0}, "but it is 1 bit"),
        (shape_of, {"loss": 1.5}, "but it is 150 %"),
        (shape_of, {"rate_port": 0}, "but it is 0"),
    ],
)
def test_what_cannot_be_read_or_is_out_of_range_is_one_sentence(
    make: Callable[[Any], object], value: Any, sentence: str
) -> None:
    with pytest.raises(NetLabError) as caught:
        make(value)
    assert sentence in str(caught.value)


def test_each_way_has_half_of_rtt_and_jitter_and_all_of_rate_and_loss() -> None:
    shape = Shape(rtt_s=0.1, jitter_s=0.02, rate_bits_per_s=50e6, loss=0.01)
    assert " ".join(shape.netem()) == "limit 1250 delay 50000us 10000us loss 1% rate 50000000bit"


def test_a_slow_long_link_has_room_for_what_is_on_the_way() -> None:
    shape = Shape(rtt_s=0.3, rate_bits_per_s=300e6)
    assert shape.limit_packets - 1000 == pytest.approx(0.15 * 300e6 / 12000, abs=1)


def test_what_a_person_writes_is_read() -> None:
    durations = {"100ms": 0.1, "0.1s": 0.1, "250us": 0.00025, ".5S": 0.5, "0": 0.0, " 20ms ": 0.02}
    assert [parse_duration(text) for text in durations] == pytest.approx([*durations.values()])
    rates = {"50mbit": 50e6, "500kbit": 5e5, "1Gbit": 1e9, "1.5mbit": 1.5e6, "unlimited": None}
    assert {text: parse_rate(text) for text in rates} == rates
    shares = {"1%": 0.01, "100%": 1.0, "0": 0.0, "0.5%": 0.005}
    assert [parse_share(text) for text in shares] == pytest.approx([*shares.values()])
