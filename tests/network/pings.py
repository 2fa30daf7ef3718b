"""What ping saw, reply by reply."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from tandem.netlab.lab import NetLab

_REPLY = re.compile(r"^\[(\d+\.\d+)\].*icmp_seq=(\d+) .*time=([\d.]+) ms", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reply:
    """One echo."""

    sent_s: float  # by the clock of time.time()
    number: int
    rtt_s: float


def start(lab: NetLab, count: int, interval_s: float, patience_s: float = 1.0) -> subprocess.Popen[str]:
    """Starts ping from the device to the cloud."""
    options = ["-D", "-n", "-c", str(count), "-i", str(interval_s), "-W", str(patience_s)]
    command = [*lab.enter("device"), "ping", *options, lab.address("cloud")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[Reply]:
    """Waits for it and gives the replies in the order in which they were asked for."""
    output, _ = process.communicate(timeout=60)
    found = []
    for at, number, rtt_ms in _REPLY.findall(output):
        rtt_s = float(rtt_ms) / 1e3
        found.append(Reply(float(at) - rtt_s, int(number), rtt_s))
    return sorted(found, key=lambda reply: reply.number)
