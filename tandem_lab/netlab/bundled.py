"""The traces that come with Tandem. Computed, not stored; the random one is the same for the same seed.

Knows the papers' networks; plays nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

from tandem.errors import nearest
from tandem_lab.errors import NetLabError
from tandem_lab.netlab.schedule import LinkSchedule, ScheduleRow
from tandem_lab.netlab.shape import Shape

RTTS_MS = (50, 100, 200, 300)
"""The RTTs of DRAGON's Figures 6 and 7, besides 0."""
SHARE = 0.2
"""Jitter and amplitude as a share of the RTT: 1/5, DRAGON 7.3 and 7.4."""
PERIOD_S = 20 * math.pi
"""Of the sinusoid, DRAGON 7.4."""
NUM_PERIODS = 4
SINUSOID_STEP_S = 0.5
RANDOM_S = 300
OUTAGE_S = (20.0, 30.0, 60.0)
"""When the link goes away, when it is back, when the trace ends."""

RATES_BITS_PER_S = {"5g": 300e6, "4g": 50e6, "weak-wifi": 10e6}
"""FlexSpec, Table I: 5G mid-band, 4G LTE, public WiFi."""
# NOT in the paper: FlexSpec's Table I has rates only; RTT, jitter and loss are set to what such links usually show.
_MOBILE = {
    "5g": Shape(rtt_s=0.020, jitter_s=0.004, rate_bits_per_s=RATES_BITS_PER_S["5g"]),
    "4g": Shape(rtt_s=0.050, jitter_s=0.010, rate_bits_per_s=RATES_BITS_PER_S["4g"]),
    "weak-wifi": Shape(rtt_s=0.100, jitter_s=0.020, rate_bits_per_s=RATES_BITS_PER_S["weak-wifi"], loss=0.01),
}
_WALK = ("5g", "4g", "weak-wifi", "4g", "5g")
_WALK_STEP_S = 20.0


def constant(rtt_ms: float) -> LinkSchedule:
    """One RTT without end."""
    return LinkSchedule(f"constant-{rtt_ms:g}", (ScheduleRow(0.0, Shape(rtt_s=rtt_ms / 1e3)),))


def jitter(rtt_ms: float) -> LinkSchedule:
    """One RTT, each packet with its own jitter of 1/5, as DRAGON 7.3 injects it."""
    return LinkSchedule(
        f"jitter-{rtt_ms:g}", (ScheduleRow(0.0, Shape(rtt_s=rtt_ms / 1e3, jitter_s=SHARE * rtt_ms / 1e3)),)
    )


def redrawn(rtt_ms: float, seed: int = 1) -> LinkSchedule:
    """Every second a new RTT, uniform within 1/5 of the middle one."""
    rng = random.Random(seed)
    rtts_s = [rtt_ms / 1e3 * (1 + SHARE * rng.uniform(-1, 1)) for _ in range(RANDOM_S)]
    return LinkSchedule(
        f"random-{rtt_ms:g}", _rows((float(second), Shape(rtt_s=rtt)) for second, rtt in enumerate(rtts_s))
    )


def sinusoid(rtt_ms: float) -> LinkSchedule:
    """RTT (1 + sin(2 pi t / T) / 5) with T = 20 pi s, over four periods; DRAGON 7.4."""
    num_rows = math.ceil(NUM_PERIODS * PERIOD_S / SINUSOID_STEP_S) + 1
    times_s = [row * SINUSOID_STEP_S for row in range(num_rows)]
    return LinkSchedule(
        f"sinusoid-{rtt_ms:g}",
        _rows(
            (time, Shape(rtt_s=rtt_ms / 1e3 * (1 + SHARE * math.sin(2 * math.pi * time / PERIOD_S))))
            for time in times_s
        ),
    )


def outage(rtt_ms: float) -> LinkSchedule:
    """The link goes away after 20 s, loses everything for 10 s, and returns."""
    there, gone = Shape(rtt_s=rtt_ms / 1e3), Shape(rtt_s=rtt_ms / 1e3, loss=1.0)
    away_s, back_s, end_s = OUTAGE_S
    return LinkSchedule(
        f"outage-{rtt_ms:g}", _rows([(0.0, there), (away_s, gone), (back_s, there), (end_s, there)])
    )


def mobile(name: str) -> LinkSchedule:
    """One of 5g, 4g and weak-wifi without end, with FlexSpec's rate."""
    return LinkSchedule(name, (ScheduleRow(0.0, _MOBILE[name]),))


def walk() -> LinkSchedule:
    """Out of a 5G cell through 4G into a weak WiFi and back, 20 s each."""
    steps = [(_WALK_STEP_S * index, _MOBILE[name]) for index, name in enumerate(_WALK)]
    return LinkSchedule("walk", _rows([*steps, (_WALK_STEP_S * len(_WALK), _MOBILE[_WALK[-1]])]))


_FAMILIES: dict[str, Callable[[float], LinkSchedule]] = {
    "constant": constant,
    "jitter": jitter,
    "random": redrawn,
    "sinusoid": sinusoid,
    "outage": outage,
}


def bundled_names() -> list[str]:
    """The names that `bundled` takes."""
    families = [f"{family}-{rtt}" for family in _FAMILIES for rtt in RTTS_MS]
    return ["constant-0", *families, *_MOBILE, "walk"]


def bundled(name: str) -> LinkSchedule:
    """A trace by its name. Raises NetLabError that names the nearest."""
    if name not in bundled_names():
        raise NetLabError(
            f"{name!r} is neither a bundled trace nor a file; the nearest bundled one is "
            f"{nearest(name, bundled_names())!r}, of {', '.join(bundled_names())}."
        )
    if name in _MOBILE:
        return mobile(name)
    family, _, rtt_ms = name.partition("-")
    return _FAMILIES[family](float(rtt_ms)) if rtt_ms else walk()


def _rows(pairs: Iterable[tuple[float, Shape]]) -> tuple[ScheduleRow, ...]:
    return tuple(ScheduleRow(time_s, shape) for time_s, shape in pairs)
