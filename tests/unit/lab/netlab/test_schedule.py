"""Traces: reading, writing, values in time, playing on a virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem_lab.errors import NetLabError
from tandem_lab.netlab.schedule import (
    LinkSchedule,
    ScheduleRow,
    format_schedule,
    parse_schedule,
    play,
    read_schedule,
    write_schedule,
)
from tandem_lab.netlab.shape import Shape

HEADER = "time_s,delay_ms,jitter_ms,rate_mbit,loss_pct\n"
TEXT = HEADER + "0,100,20,50,1\n2.5,300,0,,0\n4,100,0,50,100\n"


def trace() -> LinkSchedule:
    return parse_schedule(TEXT, "wifi.csv")


def test_a_row_is_a_shape_from_its_time_on() -> None:
    rows = trace().rows
    assert rows[0] == ScheduleRow(0.0, Shape(rtt_s=0.1, jitter_s=0.02, rate_bits_per_s=50e6, loss=0.01))
    assert rows[1].shape.rate_bits_per_s is None
    assert rows[2].shape.loss == 1


def test_a_value_holds_until_the_next_and_the_last_for_good() -> None:
    assert [trace().value_at(time).rtt_s for time in (0, 2.4, 2.5, 3.9, 4, 1000)] == [
        0.1,
        0.1,
        0.3,
        0.3,
        0.1,
        0.1,
    ]


def test_it_says_when_it_has_ended() -> None:
    assert trace().note_at(4) == ""
    assert (
        trace().note_at(4.1).startswith("The trace wifi.csv ended at 4 s; its last value holds: RTT 100 ms")
    )
    assert LinkSchedule("constant", trace().rows[:1]).note_at(1e6) == ""


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
        (
            HEADER + "0,1,0,fast,0\n",
            "field rate_mbit: expected a number of Mbit/s of at least 0, or nothing for no limit",
        ),
        (HEADER + "0,1,nan,1,0\n", "field jitter_ms: expected a number of ms of at least 0, but it is 'nan'"),
        (HEADER + "0,-5,0,1,0\n", "field delay_ms: expected a number of ms of at least 0, but it is '-5'"),
        (HEADER + "0,1,,1,0\n", "field jitter_ms: expected a number of ms of at least 0, but it is ''"),
        (HEADER + "0,1,0,1,101\n", "t.csv, line 2: A link loses 0 to 100 %"),
        (HEADER + "0,1,0,0,0\n", "t.csv, line 2: A link's rate is from"),
        (HEADER + "0,1,2,1,0\n", "t.csv, line 2: A link's jitter is from 0 to its RTT"),
        (HEADER + "1,1,0,1,0\n", "line 2, field time_s: expected 0 in the first row, but it is 1"),
        (HEADER + "0,1,0,1,0\n\n0,1,0,1,0\n", "line 4, field time_s: expected more than 0"),
    ],
)
def test_a_malformed_line_is_named_with_its_field(text: str, sentence: str) -> None:
    with pytest.raises(NetLabError) as caught:
        parse_schedule(text, "t.csv")
    assert sentence in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NetLabError, match="cannot be read"):
        read_schedule(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NetLabError, match="cannot be read"):
        read_schedule(tmp_path / "binary.csv")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write_schedule(trace(), tmp_path / "t.csv")
    assert read_schedule(tmp_path / "t.csv").rows == trace().rows
    assert format_schedule(trace()) == TEXT


def test_a_trace_begins_at_0_and_ascends() -> None:
    for times in ((), (1.0,), (0.0, 2.0, 2.0)):
        with pytest.raises(NetLabError, match="begins at 0 s and its times ascend"):
            LinkSchedule("bad", tuple(ScheduleRow(time, Shape()) for time in times))


class Lab:
    """A network on a virtual clock, whose `shape` takes some time."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.takes_s = takes_s
        self.applied: list[tuple[float, Shape]] = []

    def shape(self, shape: Shape) -> None:
        self.now_s += self.takes_s
        self.applied.append((self.now_s - 100, shape))

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.1
        self.now_s += seconds


def test_a_trace_is_played_in_time() -> None:
    lab = Lab(takes_s=0.01)
    played = list(play(lab, trace(), lab.clock, lab.sleep))
    assert [time for time, _ in lab.applied] == pytest.approx([0.01, 2.51, 4.01])
    assert [shape for _, shape in lab.applied] == [row.shape for row in trace().rows]
    assert [row.time_s for row in played] == pytest.approx([0.01, 2.51, 4.01])


def test_a_late_player_leaves_out_what_is_over() -> None:
    lab = Lab(takes_s=3)
    assert [row.shape for row in play(lab, trace(), lab.clock, lab.sleep)] == [
        trace().rows[0].shape,
        trace().rows[1].shape,
        trace().rows[2].shape,
    ]
    lab = Lab(takes_s=5)
    assert [row.shape for row in play(lab, trace(), lab.clock, lab.sleep)] == [
        trace().rows[0].shape,
        trace().rows[2].shape,
    ]


def test_playing_can_be_stopped() -> None:
    lab = Lab()
    list(play(lab, trace(), lab.clock, lab.sleep, is_stopped=lambda: lab.now_s > 101))
    assert len(lab.applied) == 1
    assert lab.now_s < 101.2
