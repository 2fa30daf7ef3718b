"""Traces: reading, values in time, those that come with Tandem, playing on a virtual clock."""

from __future__ import annotations

import math

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.schedule import LinkSchedule, ScheduleRow, parse_schedule, play
from tandem_lab.netlab.shape import Shape

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
