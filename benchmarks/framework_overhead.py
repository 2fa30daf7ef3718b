"""What does the framework itself cost per token, when the network costs nothing?

In the synchronous loop a token costs the larger of the two decode times, which run side by side, plus everything
else: hops between actors, pairing, aggregation, commit. That rest is the framework's. Targets on 2 idle
cores: at most 3 ms at the median, 1.5 ms in the speculative loop, where decoding overlaps with all of this, and 6 ms
at the 95th percentile. Prediction for actors apart: 6 hops of about 0.09 ms (half of the 0.18 ms round trip measured
for an asyncio socket) plus about 0.3 ms of Python in five actors: 0.9 ms; without Ray there is no hop: 0.35 ms, with a
target of 1 ms in the speculative loop. `joined` is a device
that is one process and has joined a cloud by a link, which is another process; `inline` has both parties in one.

The loop `alone` is the device by itself, whose pace is compared with its decode time alone: at most 1.3 of it with
`--models half`, random models of 50,000 tokens, where what is done with a distribution costs most.

The shapes are measured in turn, each in clusters of its own, and compared turn by turn. Expected run time: 6 minutes;
`--smoke` 1 minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

import itertools

from benchmarks._common import finish, new_parser, summary
from tandem import Answer, Config, Tandem
from tandem.topology import PARTIES
from tandem_lab.bench.models import half_accepted
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.reliability.processes import child, cloud_arguments

PREDICTED_MS = {"apart": 0.9, "inline": 0.35, "joined": 0.35}
TARGET_MS = {"synchronous": 3.0, "speculative": 1.5, "alone": 3.0}
OPTIONS: dict[str, dict[str, Any]] = {
    "synchronous": {"max_window": 1},
    "speculative": {"max_window": 16},
    "alone": {"only": "device"},
}
TARGET_PACE_BY_DECODE = 1.3
WITHOUT_RAY = {"inline", "joined"}
TARGET_WITHOUT_RAY_MS = TARGET_MS | {"speculative": 1.0}
TARGET_P95_MS = 6.0
MAX_NEW_TOKENS = 48
SETTLE_S = 3.0
"""Ray's own start-up work dies down."""


def overheads_ms(answer: Answer) -> list[float]:
    """Commit to commit, minus the larger decode time of that step, in milliseconds."""
    tokens = answer.tokens
    return [
        1e3 * (token.committed_s - before.committed_s - max(token.device_decode_s, token.cloud_decode_s))
        for before, token in itertools.pairwise(tokens)
    ]


def paces_ms(answer: Answer) -> list[float]:
    """Commit to commit, in milliseconds."""
    times = [token.committed_s for token in answer.tokens]
    return [1e3 * (after - before) for before, after in itertools.pairwise(times)]


def cpu_s(rag: Tandem) -> dict[str, float]:
    """CPU time so far of each process, which is named after its actors; without Ray of each thread of this one.

    The thread "tandem" is the event loop: all that is neither model nor index.
    """
    if not rag.nodes:
        spent = {each.id: each.user_time + each.system_time for each in psutil.Process().threads()}
        return {thread.name: spent.get(thread.native_id or 0, 0.0) for thread in threading.enumerate()}
    return {actor["process"]: actor["cpu_s"] for actor in rag.status()["actors"]}


@contextlib.contextmanager
def models_of(name: str) -> Iterator[tuple[str, ...]]:
    """The settings of the parties' models, which exist within the block."""
    if name == "bundled":
        yield tuple(f'{party}.model="bundled"' for party in PARTIES)
        return
    with half_accepted(Config()) as config:
        yield tuple(
            f"{party}.{key}={value}"
            for party in PARTIES
            for key, value in (
                ("model", json.dumps(config.party(party).model)),
                ("template", '"plain"'),
                ("index", '"bundled"'),
                ("kv_store", '"memory"'),
                ("num_documents", config.party(party).num_documents),
            )
        )


@contextlib.contextmanager
def running(shape: str, models: tuple[str, ...]) -> Iterator[Tandem]:
    """Both parties in a shape."""
    settings = ("link.on_peer_loss=wait", *models)
    if shape == "joined":
        with (
            tempfile.TemporaryDirectory(prefix="tandem-overhead-") as keys,
            child(*cloud_arguments(Path(keys), 0, settings)) as cloud,
            Tandem.join(cloud.hello["link"], Config.load(None, settings)) as rag,
        ):
            yield rag
        return
    runtime = "inline" if shape == "inline" else "ray"
    with Tandem.launch(Config.load(None, (*settings, f"cluster.runtime={runtime}"))) as rag:
        yield rag


def target_ms(shape: str, loop: str) -> float:
    """At the median."""
    return (TARGET_WITHOUT_RAY_MS if shape in WITHOUT_RAY else TARGET_MS)[loop]


class Tally:
    """All answers of one shape and loop, over several clusters."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.cpu_s: dict[str, float] = {}
        self.medians_ms: list[float] = []  # of each turn
        self.loads: list[float] = []

    def measure(self, rag: Tandem, num_rounds: int, options: dict[str, Any]) -> None:
        """Ask 12 bundled questions `num_rounds` times."""
        questions = [question.question for question in read_bundled_questions()][:12]
        for question in questions[:3]:
            rag.query(question, seed=0, max_new_tokens=MAX_NEW_TOKENS, **options)
        before = cpu_s(rag)
        answers = [
            rag.query(question, seed=number, max_new_tokens=MAX_NEW_TOKENS, **options)
            for number in range(num_rounds)
            for question in questions
        ]
        for name, after_s in cpu_s(rag).items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + after_s - before.get(name, 0.0)
        self.answers += answers
        self.medians_ms.append(statistics.median(value for each in answers for value in overheads_ms(each)))
        self.loads.append(os.getloadavg()[0])

    def result(self) -> dict[str, Any]:
        """Everything that was measured."""
        answers, counts = self.answers, [answer.statistics for answer in self.answers]
        num_tokens = sum(count.num_tokens for count in counts)
        return {
            "num_tokens": num_tokens,
            "overhead_ms": summary([value for answer in answers for value in overheads_ms(answer)]),
            "medians_ms_by_turn": self.medians_ms,
            "load_by_turn": self.loads,
            "commit_to_commit_ms": summary([value for answer in answers for value in paces_ms(answer)]),
            "decode_ms": {
                party: summary(
                    [1e3 * getattr(token, f"{party}_decode_s") for a in answers for token in a.tokens]
                )
                for party in ("device", "cloud")
            },
            "acceptance": {
                "device": sum(c.num_device_accepted for c in counts) / num_tokens,
                "cloud": sum(c.num_cloud_accepted for c in counts) / num_tokens,
            },
            "device_to_cloud_bytes_per_token": sum(c.sent_bytes for c in counts) / num_tokens,
            "cloud_to_device_bytes_per_token": sum(c.received_bytes for c in counts) / num_tokens,
            "cpu_ms_per_token": {name: round(1e3 * s / num_tokens, 3) for name, s in self.cpu_s.items()},
            "first_token_ms": 1e3 * statistics.median(c.first_token_s for c in counts),
        }


def main() -> None:
    """Measure the shapes in turn, the synchronous and the speculative loop in each."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="times that each of 12 questions is asked in a turn"
    )
    parser.add_argument("--turns", type=int, default=3, help="clusters of each shape")
    parser.add_argument("--shapes", nargs="+", choices=tuple(PREDICTED_MS), default=tuple(PREDICTED_MS))
    parser.add_argument("--models", choices=("bundled", "half"), default="bundled")
    parser.add_argument("--smoke", action="store_true", help="one turn and round of each shape")
    arguments = parser.parse_args()
    num_turns, num_rounds = (1, 1) if arguments.smoke else (arguments.turns, arguments.rounds)
    print(
        f"prediction: {PREDICTED_MS} ms per token on an idle machine; targets: {TARGET_MS} ms at the median"
    )
    tallies: dict[tuple[str, str], Tally] = {}
    with models_of(arguments.models) as models:
        for turn, shape in itertools.product(range(num_turns), arguments.shapes):
            with running(shape, models) as rag:
                time.sleep(SETTLE_S)
                for loop, options in OPTIONS.items():
                    tally = tallies.setdefault((shape, loop), Tally())
                    tally.measure(rag, num_rounds, options)
                    print(
                        f"turn {turn + 1}: {shape} {loop}: overhead p50 {tally.medians_ms[-1]:.2f} ms, "
                        f"load {tally.loads[-1]:.1f}",
                        flush=True,
                    )
    results = {key: tally.result() for key, tally in tallies.items()}
    for key, measured in results.items():
        _show(*key, measured)
    finish(
        {"predicted_ms": PREDICTED_MS, "target_ms": TARGET_MS, "target_p95_ms": TARGET_P95_MS}
        | {"/".join(key): measured for key, measured in results.items()}
        | {f"{shape}_by_apart": _compare(tallies, shape) for shape in arguments.shapes if shape != "apart"}
    )


def _compare(tallies: dict[tuple[str, str], Tally], wanted: str) -> dict[str, dict[str, float]]:
    """Median overhead of a shape by that of actors apart, turn by turn."""
    ratios = {}
    for (shape, loop), tally in tallies.items():
        other = tallies.get(("apart", loop))
        if shape == wanted and other is not None:
            values = [own / apart for own, apart in zip(tally.medians_ms, other.medians_ms, strict=True)]
            ratios[loop] = summary(values)
            print(f"{loop}: {shape} by apart {', '.join(f'{value:.2f}' for value in values)}")
    return ratios


def _show(shape: str, loop: str, measured: dict[str, Any]) -> None:
    overhead, pace = measured["overhead_ms"], measured["commit_to_commit_ms"]
    print(
        f"{shape:8} {loop:11}  overhead p50 {overhead['p50']:5.2f} [{overhead['p25']:.2f}, "
        f"{overhead['p75']:.2f}] p95 {overhead['p95']:6.2f} ms ({overhead['p50'] / target_ms(shape, loop):.0%} and "
        f"{overhead['p95'] / TARGET_P95_MS:.0%} of target)  commit to commit p50 {pace['p50']:6.2f} ms"
        f"  bytes/token {measured['device_to_cloud_bytes_per_token']:.0f} up"
        f" {measured['cloud_to_device_bytes_per_token']:.0f} down  ({measured['num_tokens']} tokens)"
    )
    if loop == "alone":
        ratio = pace["p50"] / measured["decode_ms"]["device"]["p50"]
        print(f"       pace by decode time {ratio:.2f} (target {TARGET_PACE_BY_DECODE})")
    cpu = measured["cpu_ms_per_token"]
    print(
        f"       CPU ms/token: {', '.join(f'{name} {ms}' for name, ms in cpu.items())}; sum {sum(cpu.values()):.1f}"
    )


if __name__ == "__main__":
    main()
