"""What does a user of a Ray cluster on two machines get when the link between them is cut in the middle of an answer?

Two nodes as `tandem up` starts them, in the two hosts of a test network, and this process, which asks on the device's.
At a random token of an answer the link is cut for --seconds: for the parties' connection and for all of Ray's own. In
turn the policy is "continue" and "wait", and for two cuts each packets are lost or connections reset. Each answer is
compared with the undisturbed one. Needs root, iproute2, nftables, and netem or User-Mode Linux.

Predictions: no answer is wrong; the gap in a stream is at most 1.5 s and two decode steps under `continue`; the parties
are together again within 2 s of the link's return, for the same answer and for the next one; no node and no actor is
lost to the cut.

Expected run time: 20 minutes for 50 cuts of 10 s; `--smoke`: 3 minutes. Exit code 1 if an answer is wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from benchmarks.reliability import run_outages
from tandem_lab.netlab import NetLab, Shape
from tandem_lab.netlab.inside import run_inside
from tandem_lab.netlab.shape import parse_duration
from tandem_lab.reliability.cluster import connected

PREDICTION = (
    "0 wrong, gap <= 1.5 s + 2 steps, together again <= 2 s after the link's return, 0 nodes or actors lost"
)


def cut_inside(lab: NetLab, count: int, seconds: float, seed: int) -> dict[str, Any]:
    """Run in the device's host of a network that is up."""
    with connected(lab) as trial:
        before = _processes(trial.clients["wait"].status())
        result = run_outages(trial, count, seconds, Random(seed))
        status = trial.clients["wait"].status()
    after = _processes(status)
    lost = sorted(name for name, pid in before.items() if after.get(name) != pid)
    return result | {"lost": lost, "nodes_alive": [node["alive"] for node in status["nodes"]]}


def _processes(status: dict[str, Any]) -> dict[str, int]:
    """By name, of actors and supervisors."""
    actors = {actor["name"]: actor["pid"] for actor in status["actors"] if actor["state"] == "alive"}
    return actors | {f"{party}/supervisor": each["pid"] for party, each in status["supervisors"].items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Build the network, and run this again within it."""
    parser = new_parser(__doc__)
    parser.add_argument("--count", type=int, default=50, help="of cuts")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a cut")
    parser.add_argument("--rtt", default="50ms", help="of the link")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="4 cuts")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    count = 4 if arguments.smoke else arguments.count
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left
    if arguments.within is None:
        print(f"prediction: {PREDICTION}", flush=True)
        lab, again = NetLab(f"cuts-{os.getpid()}"), sys.argv[1:] if argv is None else list(argv)
        command = [sys.executable, __file__, *again, "--within", lab.name]
        sys.exit(run_inside(lab, command, Shape(rtt_s=parse_duration(arguments.rtt))))
    result = cut_inside(NetLab(arguments.within), count, arguments.seconds, arguments.seed)
    finish({"seed": arguments.seed, "rtt": arguments.rtt, "load": os.getloadavg()[0], "results": result})
    if result["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
