"""How many bytes does a round of speculative decoding put on the connection, each way?

Two Ray nodes across the test network at 100 ms. Two random models of 50,000 tokens that mostly agree write 48 tokens a
question, with coupled drafts, one proposal of four ids at a time, drafts padded to 15 ms and passes to 27 ms as in
`tandem lab bench speculative`. Every packet of the data connection is captured on the device. A round goes from one
proposal to the next; those that open or end an answer are left out. Of each round: bytes of frames, of IP packets (with
the headers of TCP and IP, 52 bytes each), and on the wire (14 more for Ethernet), acknowledgements included; and which
frames they were.

Prediction: 130 bytes up and 80 down at most, with the headers of TCP and IP (a proposal of 59 bytes, a verdict of 48,
one packet each way, and what only acknowledges).

Needs root. Expected run time: 2 minutes; `--smoke` 1 minute.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import inet_aton
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from tandem import Config, Tandem
from tandem.messages import LinkFrame, Proposal, decode
from tandem.topology import PARTIES, Party
from tandem.transport.port import FrameSplitter
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.latency.cluster import DATA_PORT, launch
from tandem_lab.latency.half import close_to_each_other
from tandem_lab.netlab import NetLab, Shape
from tandem_lab.netlab.capture import capturing
from tandem_lab.netlab.inside import run_inside
from tandem_lab.netlab.pcap import reading
from tandem_lab.training.bundle import read_bundled_questions

RTT_S = 0.1
NUM_TOKENS, NUM_QUESTIONS, SMOKE_QUESTIONS = 48, 10, 2
PADDED = Experiments(min_decode_time_s={Party.DEVICE: 0.015, Party.CLOUD: 0.027})
OPTIONS: dict[str, Any] = {
    "mode": "speculative",
    "pacing": "stop_and_wait",
    "max_proposal": 4,
    "max_new_tokens": NUM_TOKENS,
    "temperature": 1.0,
}
AIMS = {"up": 130, "down": 80}
ETHERNET_BYTES = 14


@dataclass(slots=True)
class Sent:
    """What one party sent in one round."""

    frame_bytes: int = 0  # with the length of each
    ip_bytes: int = 0
    num_packets: int = 0
    bodies: Counter[str] = field(default_factory=Counter)

    @property
    def wire_bytes(self) -> int:
        """With the headers of Ethernet."""
        return self.ip_bytes + ETHERNET_BYTES * self.num_packets


Round = dict[Party, Sent]


def packets(path: Path, device: str) -> Iterator[tuple[Party, int, bytes]]:
    """Sender, bytes of the IP packet, and what TCP carried, of each packet of the data connection in order."""
    with reading(path) as captured:
        import dpkt  # type: ignore[import-untyped, unused-ignore]

        for _, packet in captured:
            ip = dpkt.ethernet.Ethernet(packet).data
            is_tcp = isinstance(ip, dpkt.ip.IP) and isinstance(ip.data, dpkt.tcp.TCP)
            if is_tcp and DATA_PORT in (ip.data.sport, ip.data.dport):
                sender = Party.DEVICE if ip.src == inet_aton(device) else Party.CLOUD
                yield sender, ip.len, bytes(ip.data.data)


def rounds_of(seen: Iterator[tuple[Party, int, bytes]]) -> list[Round]:
    """The rounds of one answer, without the one before its first proposal and the one of its last."""
    splitters = {party: FrameSplitter() for party in PARTIES}
    found: list[Round] = [{party: Sent() for party in PARTIES}]
    for sender, ip_bytes, carried in seen:
        frames = [decode(frame) for frame in splitters[sender].feed(carried)]
        bodies = [frame.body for frame in frames if isinstance(frame, LinkFrame)]
        if any(isinstance(body, Proposal) for body in bodies):
            found.append({party: Sent() for party in PARTIES})
        sent = found[-1][sender]
        sent.ip_bytes += ip_bytes
        sent.num_packets += 1
        sent.frame_bytes += len(carried)
        sent.bodies.update(type(body).__name__ for body in bodies)
    return found[2:-1]  # the first proposal travels with what opens the query


def ask(tandem: Tandem, lab: NetLab, folder: Path, questions: Sequence[str]) -> list[Round]:
    """The rounds of all answers."""
    found: list[Round] = []
    tandem.query(questions[0], seed=0, **OPTIONS)  # what is measured of the link first
    for seed, question in enumerate(questions):
        file = folder / "captured.pcap"
        with capturing(lab, file, Party.DEVICE):
            tandem.query(question, seed=seed, **OPTIONS)
        found += rounds_of(packets(file, lab.address(Party.DEVICE)))
        file.unlink()
    return found


def show(rounds: Sequence[Round]) -> dict[str, Any]:
    """Medians and means, printed and returned."""
    result: dict[str, Any] = {"rounds": len(rounds)}
    for way, party in (("up", Party.DEVICE), ("down", Party.CLOUD)):
        sent = [each[party] for each in rounds]
        bodies = sum((each.bodies for each in sent), Counter[str]())
        result[way] = {
            name: {"median": median(values), "mean": round(mean(values), 1)}
            for name, values in (
                ("frames", [each.frame_bytes for each in sent]),
                ("with TCP and IP", [each.ip_bytes for each in sent]),
                ("on the wire", [each.wire_bytes for each in sent]),
                ("packets", [each.num_packets for each in sent]),
            )
        } | {"frames per round": {name: round(count / len(rounds), 2) for name, count in bodies.items()}}
        print(f"{way:5} (aim {AIMS[way]}) {result[way]}", flush=True)
    return result


def measure(lab: NetLab, num_questions: int) -> dict[str, Any]:
    """In the device's host."""
    lab.shape(Shape(rtt_s=RTT_S))
    questions = [bundled.question for bundled in read_bundled_questions()][:num_questions]
    basis = Config.load(None, ("weights.evidence=0", "cluster.start_timeout_s=300"))
    with close_to_each_other(basis) as config, tempfile.TemporaryDirectory() as folder:
        settings = replace(config, link=replace(config.link, on_peer_loss="wait"))
        with launch(lab, settings, None, PADDED) as tandem:
            return show(ask(tandem, lab, Path(folder), questions))


def main() -> int:
    """The network outside, the measurement in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.within is None:
        print(f"prediction: at most {AIMS['up']} bytes up and {AIMS['down']} down in a round", flush=True)
        name = f"round-{os.getpid()}"
        return run_inside(NetLab(name), [sys.executable, __file__, *sys.argv[1:], "--within", name])
    finish(measure(NetLab(arguments.within), SMOKE_QUESTIONS if arguments.smoke else NUM_QUESTIONS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
