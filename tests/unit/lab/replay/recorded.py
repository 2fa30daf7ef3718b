"""A replay by hand: two answers over a link that loses everything for a second."""

from __future__ import annotations

from math import nan

from tandem.events import DoneEvent, RoundEvent, SessionStatistics
from tandem.topology import Party
from tandem_lab.netlab.lab import Counters
from tandem_lab.netlab.schedule import LinkSchedule, ScheduleRow
from tandem_lab.netlab.shape import Shape
from tandem_lab.replay.records import QuestionRun, Replay, Reply
from tests.unit.lab.test_timeline import token

ROWS = (
    ScheduleRow(0.0, Shape(rtt_s=0.1)),
    ScheduleRow(2.0, Shape(rtt_s=0.3, loss=1.0)),
    ScheduleRow(3.0, Shape(rtt_s=0.1)),
)


def replay() -> Replay:
    """Tokens at 0.5, 0.7 and 2.2 s, and at 3.4 and 3.5 s; replies at 0.2, 1.0 and 3.2 s."""
    first = [
        token(0, 0.3, 0.4, 0.5),
        token(1, 0.6, 0.65, 0.7, cloud_accepted=False),
        token(2, 2.2, nan, 2.2, is_alone=True, cloud_accepted=False),
    ]
    second = [
        token(0, 0.3, 0.3, 0.4, device_accepted=False),
        token(1, 0.4, 0.4, 0.5, device_accepted=False, cloud_accepted=False),
    ]
    statistics = [
        SessionStatistics(num_tokens=3, sent_bytes=300, received_bytes=150, num_resyncs=1, degraded_from=2),
        SessionStatistics(num_tokens=2, sent_bytes=100, received_bytes=50),
    ]
    asked = [
        QuestionRun("One?", 1, 0.0, [*first, DoneEvent(reason="eos", statistics=statistics[0])]),
        QuestionRun("Two?", 2, 3.0, [*second, DoneEvent(reason="eos", statistics=statistics[1])]),
    ]
    counters = Counters(sent_bytes=1000, received_bytes=500, sent_packets=10, received_packets=9)
    return Replay(
        trace=LinkSchedule("by-hand", ROWS),
        asked=asked,
        rows=list(ROWS),
        replies=(Reply(0.1, 1, 0.1), Reply(0.88, 2, 0.12), Reply(3.1, 4, 0.1)),
        num_pings=4,
        counters={Party.DEVICE: counters, Party.CLOUD: counters},
        lost_s={Party.DEVICE: 0.05, Party.CLOUD: 0.0},
        took_s=3.6,
    )


def replay_of_proposals() -> Replay:
    """The same with three judged proposals, over a link of 8 Mbit/s at first."""
    seen = replay()
    rounds = [
        RoundEvent(step=0, length=5, num_accepted=5, judged_s=0.5),
        RoundEvent(step=6, length=3, num_accepted=1, judged_s=2.2),
        RoundEvent(step=0, length=0, num_accepted=0, judged_s=0.4),
    ]
    for asked, judged in zip((seen.asked[0], seen.asked[0], seen.asked[1]), rounds, strict=True):
        asked.events.insert(-1, judged)
    seen.rows[0] = ScheduleRow(0.0, Shape(rtt_s=0.1, rate_bits_per_s=8e6))
    return seen
