"""Traces: reading, values in time, those that come with Tandem, playing on a virtual clock. What a person writes of a
link's shape, what netem is told, and what ping says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.ping import replies_in
from tandem_lab.netlab.schedule import LinkSchedule, ScheduleRow, parse_schedule, play
from tandem_lab.netlab.shape import Shape, parse_duration, parse_rate, parse_share

HEADER = "time_s,delay_ms,jitter_ms,rate_mbit,loss_pct\n"
TEXT = HEADER + "0,100,20,50,1\n2.5,300,0,,0\n4,100,0,50,100\n"


def trace() -> LinkSchedule:
    return parse_schedule(TEXT, "wifi.csv")


def test_a_row_is_a_shape_from_its_time_on_and_the_last_for_good() -> None:
    rows = trace().rows
    assert rows[0] == ScheduleRow(0.0, Shape(rtt_s=0.1, jitter_s=0.02, rate_bits_per_s=50e6, loss=0.01))
    assert (rows[1].shape.rate_bits_per_s, rows[2].shape.loss) == (None, 1)
    found = [trace().value_at(time).rtt_s for time in (0, 2.4, 2.5, 3.9, 4, 1000)]
    assert found == [0.1, 0.1, 0.3, 0.3, 0.1, 0.1]
    assert trace().note_at(4) == ""
    assert (
        trace().note_at(4.1).startswith("The trace wifi.csv ended at 4 s; its last value holds: RTT 100 ms")
    )
    assert LinkSchedule("constant", rows[:1]).note_at(1e6) == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "t.csv, line 1: a trace begins with the header"),
        ("time,delay\n", "but this is 'time,delay'"),
        (HEADER, "t.csv, line 2: a trace has at least one row"),
        (HEADER + "0,1,1,1\n", "t.csv, line 2: a row has 5 fields"),
        (
            HEADER + "0,1,0,1,0\n1,x,0,1,0\n",
            "t.csv, line 3, field delay_ms: expected a number of ms of at least 0",
        ),
        (HEADER + "0,1,0,fast,0\n", "field rate_mbit: expected a number of Mbit/s of at least 0, or nothing"),
        (HEADER + "0,1,nan,1,0\n", "field jitter_ms: expected a number of ms of at least 0, but it is 'nan'"),
        (HEADER + "0,1,0,1,101\n", "t.csv, line 2: A link loses 0 to 100 %"),
        (HEADER + "1,1,0,1,0\n", "line 2, field time_s: expected 0 in the first row, but it is 1"),
        (HEADER + "0,1,0,1,0\n\n0,1,0,1,0\n", "line 4, field time_s: expected more than 0"),
    ],
)
def test_a_malformed_line_is_named_with_its_field(text: str, sentence: str) -> None:
    with pytest.raises(NetLabError) as caught:
        parse_schedule(text, "t.csv")
    assert sentence in str(caught.value)


class Lab:
    """A network on a virtual clock, whose `shape` takes some time."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now_s, self.takes_s = 100.0, takes_s
        self.applied: list[Shape] = []

    def shape(self, shape: Shape) -> None:
        self.now_s += self.takes_s
        self.applied.append(shape)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.1
        self.now_s += seconds

    def play(self, until_s: float = math.inf) -> list[float]:
        rows = play(self, trace(), lambda: self.now_s, self.sleep, is_stopped=lambda: self.now_s > until_s)
        return [row.time_s for row in rows]


def test_a_trace_is_played_in_time_and_what_is_over_is_left_out() -> None:
    shapes = [row.shape for row in trace().rows]
    lab = Lab(takes_s=0.01)
    assert lab.play() == pytest.approx([0.01, 2.51, 4.01])
    assert lab.applied == shapes
    late = Lab(takes_s=5)
    late.play()
    assert late.applied == [shapes[0], shapes[2]]
    stopped = Lab()
    stopped.play(until_s=101)
    assert len(stopped.applied) == 1
    assert stopped.now_s < 101.2


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


SAID = """PING 198.18.0.130 (198.18.0.130) 56(84) bytes of data.
[1700000000.300000] 64 bytes from 198.18.0.130: icmp_seq=1 ttl=63 time=300 ms
[1700000000.900000] 64 bytes from 198.18.0.130: icmp_seq=3 ttl=63 time=100 ms
[1700000000.950000] 64 bytes from 198.18.0.130: icmp_seq=2 ttl=63 time=450.5 ms
[1700000000.960000] 64 bytes from 198.18.0.130: icmp_seq=2 ttl=63 time=460 ms (DUP!)
[1700000001.000000] no answer yet for icmp_seq=4

--- 198.18.0.130 ping statistics ---
4 packets transmitted, 3 received, 25% packet loss, time 601ms
"""


def test_replies_in_the_order_of_the_questions() -> None:
    found = replies_in(SAID)
    assert [reply.number for reply in found] == [1, 2, 3]
    assert [reply.rtt_s for reply in found] == pytest.approx([0.3, 0.4505, 0.1])
    assert found[0].sent_s == pytest.approx(1.7e9, abs=1e-3)
