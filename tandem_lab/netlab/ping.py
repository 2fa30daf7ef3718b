"""Round trips as ping sees them, from the device to the cloud, while something else goes on.

Knows one program and how it writes. Times are by the clock of `time.time()`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from typing import IO

from tandem.topology import Party
from tandem_lab.netlab import NetLab, tools
from tandem_lab.replay.records import Reply

INTERVAL_S = 0.2
_REPLY = re.compile(r"^\[(\d+\.\d+)\].*icmp_seq=(\d+) .*time=([\d.]+) ms", re.MULTILINE)
_SENT = re.compile(r"^(\d+) packets transmitted", re.MULTILINE)


class Ping:
    """A ping that runs from `start` to `stop`. Raises NetLabError where there is no such program."""

    def __init__(self, lab: NetLab, interval_s: float = INTERVAL_S) -> None:
        # -D: the time of each reply. Without -W a reply counts however late it comes.
        options = ["-D", "-n", "-i", f"{interval_s:g}"]
        address = lab.address(Party.CLOUD)
        self._command = [*lab.enter(Party.DEVICE), tools.which("ping"), *options, address]
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.num_sent = 0  # up to the last reply: what is on its way at the end is not lost

    def start(self) -> None:
        """Begins; its output goes to a file, so that it never waits for a reader."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.DEVNULL
        )

    def stop(self) -> tuple[Reply, ...]:
        """Ends it; the replies in the order in which they were asked for."""
        if self._process is None:
            return ()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(5)
        self._process = None
        with self._output:
            self._output.seek(0)
            text = self._output.read().decode()
        replies, sent = replies_in(text), _SENT.search(text)
        self.num_sent = replies[-1].number if replies else int(sent[1]) if sent else 0
        return replies


def replies_in(text: str) -> tuple[Reply, ...]:
    """The replies in what `ping -D` wrote; those that a network doubled count once."""
    found: dict[int, Reply] = {}
    for at, number, rtt_ms in _REPLY.findall(text):
        rtt_s = float(rtt_ms) / 1e3
        found.setdefault(int(number), Reply(float(at) - rtt_s, int(number), rtt_s))
    return tuple(found[number] for number in sorted(found))
