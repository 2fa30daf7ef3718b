"""A replay of many questions, over a link whose round trip rises and falls."""

from __future__ import annotations

import math
import random

from tandem.events import DoneEvent, SessionStatistics
from tandem_lab.netlab.schedule import LinkSchedule, ScheduleRow
from tandem_lab.netlab.shape import Shape
from tandem_lab.replay.records import QuestionRun, Replay, Reply
from tests.unit.lab.timeline.timelines import token

NUM_TOKENS = 14


def rtt_s(at_s: float) -> float:
    """Between 20 and 180 ms, with a period of 60 s."""
    return 0.1 + 0.08 * math.sin(2 * math.pi * at_s / 60)


def many_questions(count: int) -> Replay:
    """Answers of 14 tokens, one after the other; every fourth token waits for the link."""
    rng, now_s, asked = random.Random(4), 0.0, list[QuestionRun]()
    for seed in range(count):
        opened_s, at_s, events = now_s, 0.3 + rtt_s(now_s), []
        for step in range(NUM_TOKENS):
            is_accepted = rng.random() < 0.75
            events.append(token(step, at_s - 0.02, at_s - 0.01, at_s, cloud_accepted=is_accepted))
            at_s += rng.uniform(0.015, 0.03) + (0.0 if is_accepted else rtt_s(opened_s + at_s))
        asked.append(
            QuestionRun(
                "Why?", seed, opened_s, [*events, DoneEvent(reason="eos", statistics=SessionStatistics())]
            )
        )
        now_s = opened_s + at_s
    rows = [ScheduleRow(float(at_s), Shape(rtt_s=rtt_s(at_s))) for at_s in range(0, int(now_s), 2)]
    replies = tuple(Reply(float(at_s), at_s, rtt_s(at_s) + 0.001) for at_s in range(int(now_s)))
    return Replay(
        trace=LinkSchedule("sinusoid-100", tuple(rows)),
        asked=asked,
        rows=rows,
        replies=replies,
        num_pings=len(replies),
        took_s=now_s,
    )
