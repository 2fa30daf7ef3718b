"""Pings of a given number and pace; `tandem_lab.netlab.ping` reads what they say."""

from __future__ import annotations

import subprocess

from tandem_lab.netlab.lab import NetLab
from tandem_lab.netlab.ping import replies_in
from tandem_lab.replay.records import Reply


def start(lab: NetLab, count: int, interval_s: float, patience_s: float = 1.0) -> subprocess.Popen[str]:
    """Starts ping from the device to the cloud."""
    options = ["-D", "-n", "-c", str(count), "-i", str(interval_s), "-W", str(patience_s)]
    command = [*lab.enter("device"), "ping", *options, lab.address("cloud")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[Reply, ...]:
    """Waits for it and gives the replies in the order in which they were asked for."""
    output, _ = process.communicate(timeout=60)
    return replies_in(output)
