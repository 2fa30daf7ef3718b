"""What does the framework itself cost per token, when the network costs nothing?

In the synchronous loop a token costs the larger of the two decode times, which run side by side, plus everything
else: hops between actors, pairing, aggregation, commit. That rest is the framework's. Target: at most 3 ms at the
median with `socket` on 2 cores. Prediction: 6 hops of about 0.09 ms (half of the 0.18 ms round trip measured for an
asyncio socket) plus about 0.3 ms of Python in five actors: 0.9 ms on an idle machine. The speculative loop is
measured beside it, where decoding overlaps with all of this.

Expected run time: 3 minutes for both data planes; `--smoke` 1 minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import itertools

from benchmarks._common import finish, summary
from tandem import Answer, Config, Tandem
from tandem.lab.training.bundle import read_bundled_questions

PREDICTED_MS = 0.9
TARGET_MS = 3.0


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


def measure(rag: Tandem, num_rounds: int, *, synchronous: bool) -> dict[str, Any]:
    """Ask all bundled questions `num_rounds` times."""
    questions = [question.question for question in read_bundled_questions()][:12]
    for question in questions[:3]:
        rag.query(question, seed=0, synchronous=synchronous)
    before = {actor["name"]: actor["cpu_s"] for actor in rag.status()["actors"]}
    answers = [
        rag.query(question, seed=number, synchronous=synchronous)
        for number in range(num_rounds)
        for question in questions
    ]
    after = {actor["name"]: actor["cpu_s"] for actor in rag.status()["actors"]}
    num_tokens = sum(answer.statistics.num_tokens for answer in answers)
    counts = [answer.statistics for answer in answers]
    return {
        "num_tokens": num_tokens,
        "overhead_ms": summary([value for answer in answers for value in overheads_ms(answer)]),
        "commit_to_commit_ms": summary([value for answer in answers for value in paces_ms(answer)]),
        "decode_ms": {
            party: summary([1e3 * getattr(token, f"{party}_decode_s") for a in answers for token in a.tokens])
            for party in ("device", "cloud")
        },
        "acceptance": {
            "device": sum(c.num_device_accepted for c in counts) / num_tokens,
            "cloud": sum(c.num_cloud_accepted for c in counts) / num_tokens,
        },
        "device_to_cloud_bytes_per_token": sum(c.sent_bytes for c in counts) / num_tokens,
        "cloud_to_device_bytes_per_token": sum(c.received_bytes for c in counts) / num_tokens,
        "cpu_ms_per_token": {
            name: round(1e3 * (after[name] - before[name]) / num_tokens, 3) for name in after
        },
        "first_token_ms": 1e3 * statistics.median(c.first_token_s for c in counts),
    }


def main() -> None:
    """Measure `socket` and `ray`, the synchronous and the speculative loop."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="times that each of 12 questions is asked")
    parser.add_argument("--planes", nargs="+", choices=("socket", "ray"), default=("socket", "ray"))
    parser.add_argument("--smoke", action="store_true", help="one round, socket only")
    arguments = parser.parse_args()
    print(f"prediction: {PREDICTED_MS} ms a token on an idle machine; target: {TARGET_MS} ms at the median")
    result: dict[str, Any] = {"predicted_ms": PREDICTED_MS, "target_ms": TARGET_MS}
    for plane in ("socket",) if arguments.smoke else tuple(arguments.planes):
        settings = (f"link.data_plane={plane}", "link.on_peer_loss=wait")
        with Tandem.launch(Config.load(None, settings)) as rag:
            time.sleep(2)  # let Ray's own start-up work die down
            for loop in ("synchronous", "speculative"):
                rounds = 1 if arguments.smoke else arguments.rounds
                found = measure(rag, rounds, synchronous=loop == "synchronous")
                result[f"{plane}/{loop}"] = found
                _show(plane, loop, found)
    finish(result)


def _show(plane: str, loop: str, found: dict[str, Any]) -> None:
    overhead, pace = found["overhead_ms"], found["commit_to_commit_ms"]
    print(
        f"{plane:6} {loop:11}  overhead p50 {overhead['p50']:5.2f} p95 {overhead['p95']:6.2f} ms"
        f" ({overhead['p50'] / TARGET_MS:.0%} of target)  commit to commit p50 {pace['p50']:6.2f} ms"
        f"  bytes/token {found['device_to_cloud_bytes_per_token']:.0f} up"
        f" {found['cloud_to_device_bytes_per_token']:.0f} down  ({found['num_tokens']} tokens)"
    )
    print(
        "       CPU ms/token: " + ", ".join(f"{name} {ms}" for name, ms in found["cpu_ms_per_token"].items())
    )


if __name__ == "__main__":
    main()
