"""What a replay amounts to: a value for JSON, and a table for a person.

Knows what was recorded; measures nothing and writes no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite, nan
from typing import Any

from tandem.config.schema import Config
from tandem_lab.netlab.shape import Shape
from tandem_lab.numbers import mean, median_of, percentile
from tandem_lab.replay.records import QuestionRun, Replay, TokenRecord

FORMAT = 1
"""Version of `as_dict`."""


def as_dict(replay: Replay, config: Config) -> dict[str, Any]:
    """All of it, for JSON; values that are not known are nan here."""
    tokens = replay.tokens()
    return {
        "format": FORMAT,
        "clock": "seconds since the trace began, by the device's clock; null: not known",
        "trace": {
            "name": replay.trace.name,
            "end_s": replay.trace.end_s,
            "note": replay.note,
            "applied": [{"time_s": row.time_s, **_shape(row.shape)} for row in replay.rows],
        },
        "took_s": replay.took_s,
        "summary": summary(replay),
        "interfaces": {party.value: asdict(counters) for party, counters in replay.counters.items()},
        "questions": [
            _question(asked, [token for token in tokens if token.question == number])
            for number, asked in enumerate(replay.asked)
        ],
        "pings": {"num_sent": replay.num_pings, "replies": [asdict(reply) for reply in replay.replies]},
        "settings": asdict(config),
    }


def summary(replay: Replay) -> dict[str, Any]:
    """Medians and sums. Latency is from token to token: first tokens are told apart."""
    tokens = replay.tokens()
    later = [token.latency_s for token in tokens if token.step]
    pairs = [token for token in tokens if not token.is_alone]
    busy_s = sum(asked.tokens[-1].committed_s for asked in replay.asked if asked.tokens)
    each = [asked.statistics for asked in replay.asked]
    return {
        "num_questions": len(replay.asked),
        "num_complete": sum(
            asked.done is not None and asked.done.reason != "failed" for asked in replay.asked
        ),
        "num_tokens": len(tokens),
        "num_alone": len(tokens) - len(pairs),
        "median_latency_s": median_of(later),
        "p95_latency_s": percentile(later, 0.95),
        "median_first_token_s": median_of([token.latency_s for token in tokens if not token.step]),
        "tokens_per_s": len(tokens) / busy_s if busy_s else nan,
        "device_acceptance": mean([token.device_accepted for token in pairs]),
        "cloud_acceptance": mean([token.cloud_accepted for token in pairs]),
        "median_ping_s": median_of([reply.rtt_s for reply in replay.replies]),
        "num_pings_lost": replay.num_pings - len(replay.replies),
        "frames_sent_bytes": sum(one.sent_bytes for one in each),
        "frames_received_bytes": sum(one.received_bytes for one in each),
        "lost_s": {party.value: lost_s for party, lost_s in replay.lost_s.items()},
        "num_resyncs": sum(one.num_resyncs for one in each),
        "num_degraded": sum(one.degraded_from is not None for one in each),
    }


def table(replay: Replay) -> list[str]:
    """The summary for a person."""
    found = summary(replay)
    tokens = found["num_tokens"]
    alone = f", {found['num_alone']} of them by the device alone" if found["num_alone"] else ""
    asked = f"{found['num_questions']} asked, {found['num_complete']} answered in {replay.took_s:.1f} s"
    rows = [
        ("questions", asked),
        ("tokens", f"{tokens}{alone}; {found['tokens_per_s']:.1f} a second while answering"),
        ("latency", f"median {_ms(found['median_latency_s'])}, p95 {_ms(found['p95_latency_s'])} per token"),
        ("first", f"median {_ms(found['median_first_token_s'])} to the first token"),
        ("accepted", f"device {_percent(found['device_acceptance'])}, cloud {_percent(found['cloud_acceptance'])}"),
        ("ping", f"median {_ms(found['median_ping_s'])}; {found['num_pings_lost']} of {replay.num_pings} lost"),
        ("frames", f"{_each(found['frames_sent_bytes'], tokens)} bytes out and "
                   f"{_each(found['frames_received_bytes'], tokens)} in per token"),
        ("link", _link(replay, tokens)),
        ("lost", _lost(replay, tokens)),
        ("resyncs", f"{found['num_resyncs']}; {found['num_degraded']} answers degraded"),
    ]  # fmt: skip
    notes = [f"  {replay.note}"] if replay.note else []
    return [f"  {name:<9}  {value}" for name, value in rows] + notes


def _question(asked: QuestionRun, tokens: Sequence[TokenRecord]) -> dict[str, Any]:
    done = asked.done
    return {
        "question": asked.question,
        "seed": asked.seed,
        "opened_s": asked.opened_s,
        "answer": asked.answer,
        "reason": done.reason if done else None,
        "error": asked.error,
        "is_degraded": asked.statistics.degraded_from is not None,
        "statistics": asdict(asked.statistics),
        "tokens": [asdict(token) for token in tokens],
    }


def _shape(shape: Shape) -> dict[str, Any]:
    return {
        "rtt_s": shape.rtt_s,
        "jitter_s": shape.jitter_s,
        "rate_bits_per_s": shape.rate_bits_per_s,
        "loss": shape.loss,
    }


def _link(replay: Replay, num_tokens: int) -> str:
    """What the device's interface carried, with all that is Ray's, ping's and TCP's own."""
    if not replay.counters:
        return "not measured"
    device = next(iter(replay.counters.values()))
    sent, received = _each(device.sent_bytes, num_tokens), _each(device.received_bytes, num_tokens)
    return f"{sent} bytes out and {received} in per token with all of Ray's and ping's own"


def _lost(replay: Replay, num_tokens: int) -> str:
    """What rollback cost each side."""
    if not replay.lost_s or not num_tokens:
        return "not measured"
    paces = " and ".join(f"{party} {_ms(lost_s / num_tokens)}" for party, lost_s in replay.lost_s.items())
    return f"{paces} per token for drafts that were thrown away"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if isfinite(seconds) else "unknown"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if isfinite(share) else "unknown"


def _each(total: int, count: int) -> str:
    return f"{total / count:.0f}" if count else "-"
