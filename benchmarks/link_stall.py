"""What does a link that goes away for some seconds cost, on either data plane, and what does a hop cost?

Two Ray nodes across the test network at 100 ms. In the middle of an answer the link loses every packet for 2, 5 or 10 s
and comes back; the sides wait for each other (`on_peer_loss = wait`). Measured: from the return of the link to the next
committed token, bytes and frames that were sent again, resyncs, and whether the tokens are those of an answer
without a stall. And of undisturbed answers: bytes and CPU of the draft queues for each message, and the round trip that
the sides measure beside that of ping (half the difference is what a hop takes beyond the link).

Bytes for each message: on the `socket` plane all that its connection carries; on the `ray` plane what Ray's connections
carry beyond what they do on the `socket` plane for the same questions. Exit code 1 if a token is another.

Prediction: the socket plane opens a new connection every 0.5 s while the peer is silent, so the next token comes within
0.5 s and three round trips of the return. TCP's own timer doubles from 0.2 s (RFC 6298), so the ray plane, which keeps
Ray's connections, waits for up to as long again as the stall lasted.

Needs root. Expected run time: 6 minutes; `--smoke` 1.5 minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, summary
from tandem import Config, Tandem
from tandem.events import DoneEvent, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.experiments import Experiments
from tandem_lab.latency.cluster import DATA_PORT, launch
from tandem_lab.netlab import NetLab, Shape
from tandem_lab.netlab.capture import capturing
from tandem_lab.netlab.inside import run_inside
from tandem_lab.netlab.ping import Ping
from tandem_lab.netlab.traffic import HEADER_BYTES, LinkTraffic, read_packets
from tandem_lab.training.bundle import read_bundled_questions

RTT_S = 0.1
STALLS_S = (2.0, 5.0, 10.0)
PLANES = ("socket", "ray")
AT_TOKEN = 3
PADDED = Experiments(min_decode_time_s={Party.DEVICE: 0.06, Party.CLOUD: 0.025})


def stalled(tandem: Tandem, lab: NetLab, question: str, stall_s: float, wanted: list[int]) -> dict[str, Any]:
    """One answer whose link goes away at a token."""
    back_at_s: list[float] = []

    def back() -> None:
        lab.shape(Shape(rtt_s=RTT_S))
        back_at_s.append(time.monotonic())

    timer = threading.Timer(stall_s, back)
    seen: list[tuple[float, TokenEvent]] = []
    done: DoneEvent | None = None
    try:
        for event in tandem.stream(question, seed=0, timeout_s=120 + 10 * stall_s):
            if isinstance(event, TokenEvent):
                seen.append((time.monotonic(), event))
                if event.step == AT_TOKEN:
                    lab.shape(Shape(rtt_s=RTT_S, loss=1.0))
                    timer.start()
            elif isinstance(event, DoneEvent):
                done = event
    finally:
        timer.cancel()
        lab.shape(Shape(rtt_s=RTT_S))
    assert done is not None
    after = [at_s for at_s, _ in seen if back_at_s and at_s > back_at_s[0]]
    return {
        "stall_s": stall_s,
        "next_token_s": after[0] - back_at_s[0] if after else None,  # None: the answer was complete before
        "num_resent_frames": done.statistics.num_resent_frames,
        "num_resyncs": done.statistics.num_resyncs,
        "sent_bytes": done.statistics.sent_bytes,
        "received_bytes": done.statistics.received_bytes,
        "same_tokens": [event.token for _, event in seen] == wanted,
    }


def hops(
    tandem: Tandem, lab: NetLab, questions: list[str], folder: str, rays_own_bytes: float
) -> tuple[dict[str, Any], list[int]]:
    """What messages cost while nothing is wrong, and the tokens of the first answer.

    rays_own_bytes: of Ray's connections while the same was asked over the socket plane.
    """
    path, ping = Path(folder) / "link.pcap", Ping(lab)
    before = _queues(tandem)
    with capturing(lab, path, Party.DEVICE, packet_bytes=HEADER_BYTES):
        ping.start()
        begun_s = time.time()
        answers = [tandem.query(question, seed=number) for number, question in enumerate(questions)]
        ended_s = time.time()
        replies = ping.stop()
    after = _queues(tandem)
    used = {name: after[name] - value for name, value in before.items()}
    wire = LinkTraffic(read_packets(path, lab.address(Party.DEVICE), DATA_PORT)).of(begun_s, ended_s, ended_s)
    rtts_s = [event.rtt_s for answer in answers for event in answer.tokens if event.rtt_s == event.rtt_s]
    num_messages = used["device writes"] + used["cloud writes"]
    found = {
        "num_messages": num_messages,
        "ray_bytes": sum(wire[party]["ray"] for party in PARTIES),
        "bytes_per_message": plane_bytes(wire, tandem.config.link.data_plane, rays_own_bytes) / num_messages,
        "cpu_ms_per_message": 1e3 * (used["device cpu_s"] + used["cloud cpu_s"]) / num_messages,
        "rtt_ms": summary([1e3 * rtt_s for rtt_s in rtts_s]),
        "ping_ms": 1e3 * median(reply.rtt_s for reply in replies),
    }
    found["hop_ms_beyond_link"] = (found["rtt_ms"]["p50"] - found["ping_ms"]) / 2
    return found, list(answers[0].token_ids)


def plane_bytes(wire: Mapping[str, Mapping[str, int]], plane: str, rays_own_bytes: float) -> float:
    """What a data plane's messages put on the link, both ways together. wire: bytes by sender and port.

    Opening queries, events and Ray's background cross Ray's connections on either plane, so what they carried with the
    socket plane is not the messages'.
    """
    if plane == "socket":
        return sum(wire[party]["data"] for party in PARTIES)
    return sum(wire[party]["ray"] for party in PARTIES) - rays_own_bytes


def _queues(tandem: Tandem) -> dict[str, float]:
    """CPU time and messages of both draft queues so far."""
    actors = {actor["name"]: actor for actor in tandem.status()["actors"]}
    found: dict[str, float] = {}
    for party in PARTIES:
        queue = actors[f"{party}/draft_queue"]
        found[f"{party} cpu_s"] = queue["cpu_s"]
        found[f"{party} writes"] = queue["links"].get(f"{party.other}/draft_queue", {}).get("writes", 0)
    return found


def measure(lab: NetLab, stalls_s: tuple[float, ...], runs: int, num_questions: int) -> bool:
    """In the device's host: both planes, one after the other. Whether no stall changed a token."""
    questions = [each.question for each in read_bundled_questions()][:num_questions]
    result: dict[str, Any] = {"rtt_s": RTT_S, "floors_s": [0.06, 0.025], "planes": {}}
    cores = os.sched_getaffinity(0)
    rays_own_bytes = 0.0
    for plane in PLANES:
        os.sched_setaffinity(0, cores)
        config = Config.load(None, [f"link.data_plane={plane}", "link.on_peer_loss=wait"])
        lab.shape(Shape(rtt_s=RTT_S))
        with launch(lab, config, experiments=PADDED) as tandem, tempfile.TemporaryDirectory() as folder:
            tandem.query(questions[0], seed=0)
            undisturbed, wanted = hops(tandem, lab, questions, folder, rays_own_bytes)
            if plane == "socket":
                rays_own_bytes = undisturbed["ray_bytes"]
            print(f"{plane:6}  {undisturbed['bytes_per_message']:.0f} bytes and "
                  f"{undisturbed['cpu_ms_per_message']:.2f} ms CPU a message; a hop takes "
                  f"{undisturbed['hop_ms_beyond_link']:.2f} ms beyond the link", flush=True)  # fmt: skip
            rows = []
            for stall_s in stalls_s:
                for _ in range(runs):
                    rows.append(stalled(tandem, lab, questions[0], stall_s, wanted))
                    print(f"{plane:6}  {_told(rows[-1])}", flush=True)
            result["planes"][plane] = {"undisturbed": undisturbed, "stalls": rows}
    finish(result)
    return all(row["same_tokens"] for plane in result["planes"].values() for row in plane["stalls"])


def _told(row: dict[str, Any]) -> str:
    waited = "-" if row["next_token_s"] is None else f"{row['next_token_s']:.2f} s"
    return (
        f"stall {row['stall_s']:4g} s: next token {waited} after the return, {row['num_resent_frames']} frames again, "
        f"{row['num_resyncs']} resyncs, {row['sent_bytes']} + {row['received_bytes']} bytes, same tokens: "
        f"{'yes' if row['same_tokens'] else 'NO'}"
    )


def main() -> None:
    """Builds the network, and measures inside of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of each stall")
    parser.add_argument("--smoke", action="store_true", help="one stall of 2 s on each plane")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    stalls_s, runs, num_questions = STALLS_S, arguments.runs, 4
    if arguments.smoke:
        stalls_s, runs, num_questions = STALLS_S[:1], 1, 1
    if arguments.within:
        sys.exit(0 if measure(NetLab(arguments.within), stalls_s, runs, num_questions) else 1)
    print(
        f"prediction: socket within {0.5 + 3 * RTT_S:g} s of the return; ray up to as long as the stall lasted"
    )
    lab = NetLab(f"stall-{os.getpid()}")
    command = [sys.executable, __file__, *sys.argv[1:], "--within", lab.name]
    sys.stdout.flush()
    sys.exit(run_inside(lab, command))


if __name__ == "__main__":
    main()
