"""What a link does to packets: delay, jitter, rate, loss; as a person writes it and as `tc netem` takes it.

Knows no link: it turns texts into a `Shape` and a `Shape` into arguments.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from tandem_lab.errors import NetLabError

LONGEST_RTT_S = 60.0
QUEUE_PACKETS = 1000
"""Packets that may wait for a rate limit, besides those that are on the way; Linux gives an interface as many."""
UNLIMITED_QUEUE_PACKETS = 10_000
PACKET_BITS = 1500 * 8
UNLIMITED = "unlimited"

_DURATIONS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)([a-z%]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The link in both directions. Raises NetLabError for a value out of range.

    A round trip is split evenly: each way delays a packet by rtt_s / 2, give or take a uniform jitter_s / 2, so that
    a round trip takes rtt_s within jitter_s. Rate and loss hold for each way by itself: a ping is lost with
    probability 1 - (1 - loss)^2. Without a rate, jitter lets packets overtake each other, as netem does.
    """

    rtt_s: float = 0.0  # added to what the link takes by itself
    jitter_s: float = 0.0
    rate_bits_per_s: float | None = None  # None: as fast as the machine can
    loss: float = 0.0  # share of packets, 0 to 1
    rate_port: int | None = (
        None  # the rate holds for the packets from and to this TCP port only; None: for all
    )

    def __post_init__(self) -> None:
        if not 0 <= self.rtt_s <= LONGEST_RTT_S:
            raise NetLabError(
                f"A link's RTT is from 0 to {LONGEST_RTT_S:g} s, but it is {self.rtt_s:g} s; give 100ms, say."
            )
        if not 0 <= self.jitter_s <= self.rtt_s:
            raise NetLabError(
                f"A link's jitter is from 0 to its RTT, because no packet arrives before it is sent, but it is "
                f"{1e3 * self.jitter_s:g} ms at an RTT of {1e3 * self.rtt_s:g} ms; give a smaller one."
            )
        rate = self.rate_bits_per_s
        if rate is not None and not 1e3 <= rate <= 1e12:
            raise NetLabError(
                f"A link's rate is from 1 kbit to 1000 gbit a second, but it is {rate:g} bit; "
                f"give another, such as 50mbit, or `{UNLIMITED}`."
            )
        if not 0 <= self.loss <= 1:
            raise NetLabError(
                f"A link loses 0 to 100 % of the packets, but it is {100 * self.loss:g} %; give another."
            )
        if self.rate_port is not None and not 1 <= self.rate_port <= 65_535:
            raise NetLabError(f"A port is from 1 to 65535, but it is {self.rate_port}; give another.")

    @property
    def limit_packets(self) -> int:
        """How many packets netem holds for one way: those on the way at the full rate, and a queue."""
        if self.rate_bits_per_s is None:
            return UNLIMITED_QUEUE_PACKETS
        one_way_s = (self.rtt_s + self.jitter_s) / 2
        return QUEUE_PACKETS + math.ceil(round(one_way_s * self.rate_bits_per_s / PACKET_BITS, 6))

    def commands(self, device: str) -> list[list[str]]:
        """The arguments of `tc` for one direction, call by call.

        A rate for one port needs two queues, and filters that know the port. The plain queue before them removes those
        of an earlier shape.
        """
        qdisc = ["qdisc", "replace", "dev", device]
        if self.rate_port is None or self.rate_bits_per_s is None:
            return [[*qdisc, "root", "netem", *self.netem()]]
        others = replace(self, rate_bits_per_s=None, rate_port=None)
        match = [
            "filter",
            "add",
            "dev",
            device,
            "parent",
            "1:",
            "protocol",
            "ip",
            "prio",
            "1",
            "u32",
            "match",
            "ip",
        ]
        return [
            [*qdisc, "root", "netem", *others.netem()],
            [*qdisc, "root", "handle", "1:", "prio", "bands", "2", "priomap", *["0"] * 16],
            [*qdisc, "parent", "1:1", "netem", *others.netem()],
            [*qdisc, "parent", "1:2", "netem", *self.netem()],
            *([*match, side, str(self.rate_port), "0xffff", "flowid", "1:2"] for side in ("sport", "dport")),
        ]

    def netem(self) -> list[str]:
        """The arguments of netem for one direction.

        Every part is named each time, because netem keeps the rate that it has where none is named.
        """
        rate = 0 if self.rate_bits_per_s is None else round(self.rate_bits_per_s)
        delay = [_microseconds(self.rtt_s / 2), _microseconds(self.jitter_s / 2)]
        return [
            *("limit", str(self.limit_packets)),
            *("delay", *delay),
            *("loss", f"{100 * self.loss:.6g}%"),
            *("rate", f"{rate}bit"),
        ]

    def __str__(self) -> str:
        rate = (
            "no rate limit"
            if self.rate_bits_per_s is None
            else f"{self.rate_bits_per_s / 1e6:g} Mbit/s each way"
            + ("" if self.rate_port is None else f" for port {self.rate_port}")
        )
        return f"RTT {1e3 * self.rtt_s:g} ms, jitter {1e3 * self.jitter_s:g} ms, {rate}, loss {100 * self.loss:g} %"


def parse_duration(text: str) -> float:
    """Seconds of `100ms`, `0.1s`, `250us` or `0`. Raises NetLabError."""
    found = _parsed(text, _DURATIONS_S)
    if found is None:
        raise NetLabError(
            f"A duration is a number with its unit, such as 100ms, 0.1s or 250us, but it is {text!r}; write it so."
        )
    return found


def parse_rate(text: str) -> float | None:
    """Bits per second of `50mbit`, `500kbit` or `1gbit`; None of `unlimited`. Raises NetLabError."""
    if text.strip().lower() == UNLIMITED:
        return None
    found = _parsed(text, _RATES)
    if not found:
        raise NetLabError(
            f"A rate is a number with its unit, such as 50mbit, 500kbit or 1gbit, or `{UNLIMITED}`, "
            f"but it is {text!r}; write it so."
        )
    return found


def parse_share(text: str) -> float:
    """A share from 0 to 1 of a percentage from `0%` to `100%`. Raises NetLabError."""
    found = _parsed(text, {"%": 0.01})
    if found is None or found > 1:
        raise NetLabError(
            f"A loss is a percentage from 0% to 100%, such as 1%, but it is {text!r}; write it so."
        )
    return found


def _parsed(text: str, units: dict[str, float]) -> float | None:
    """A number times its unit; only 0 may stand alone. None if it is something else."""
    found = _NUMBER.fullmatch(text.strip().lower())
    if found is None:
        return None
    number, unit = float(found[1]), found[2]
    if unit in units:
        return number * units[unit]
    return 0.0 if number == 0 and not unit else None


def _microseconds(seconds: float) -> str:
    return f"{round(1e6 * seconds)}us"
