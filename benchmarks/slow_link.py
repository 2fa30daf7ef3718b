"""What do the pacings of speculative decoding take over links of any round trip and rate, headers and waits included?

The protocol's own state machines under the virtual clock, where `benchmarks/pacing.py` has a model of them: openings,
receipts, heartbeats and resends cross the same link, whose frames go out one after the other with 100 bytes of headers
each. 15 ms per draft, 27 ms per pass, proposals of 4 tokens, 0.86 of them right, answers of 48 tokens; medians over
seeds.

Prediction: a cloud that goes on is never more than 5 % slower than one that streams, at no round trip and rate.

Expected run time: 4 minutes; `--smoke` 10 s.
"""

from __future__ import annotations

import argparse
import random
import sys
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from tandem_lab.simulation.timed import Times, Timing, play_timed

SYSTEMS: dict[str, dict[str, Any]] = {
    "asked": {"pacing": "stop_and_wait", "max_proposal": 0},
    "streamed": {"pacing": "cloud_goes_on", "max_proposal": 0},
    "stop_and_wait": {"pacing": "stop_and_wait", "max_proposal": 4},
    "pipelined": {"pacing": "pipelined", "max_proposal": 4},
    "cloud_goes_on": {"pacing": "cloud_goes_on", "max_proposal": 4},
}
RTTS_S, RATES = (0.0, 0.05, 0.1, 0.3), (1e4, 1e5, 1e6, inf)
PASSES_S = {"device": 0.015, "cloud": 0.027}
HEADER_BYTES = 100
NUM_TOKENS = 48
ACCEPTED = 0.86
AIM = 1.05


def play(name: str, rtt_s: float, bits_per_s: float, seed: int) -> Timing:
    """One answer."""
    rng = random.Random(seed)
    times = Times(passes_s=PASSES_S, rtt_s=rtt_s, bits_per_s=bits_per_s, header_bytes=HEADER_BYTES)
    accepted = [rng.random() < ACCEPTED for _ in range(NUM_TOKENS)]
    return play_timed({"mode": "speculative", **SYSTEMS[name]}, times, accepted, seed=seed)


def measure(rtt_s: float, bits_per_s: float, num_seeds: int) -> dict[str, dict[str, float]]:
    """Medians by system: milliseconds per token and to the first one, and bytes per token each way."""
    row = {}
    for name in SYSTEMS:
        timings = [play(name, rtt_s, bits_per_s, seed) for seed in range(num_seeds)]
        row[name] = {
            "token_ms": median(pace_ms(timing) for timing in timings),
            "first_ms": median(1e3 * timing.committed_s[0] for timing in timings),
            "last_ms": median(1e3 * timing.committed_s[-1] for timing in timings),
            "up_bytes": median(timing.num_bytes["device"] / NUM_TOKENS for timing in timings),
            "down_bytes": median(timing.num_bytes["cloud"] / NUM_TOKENS for timing in timings),
        }
    return row


def pace_ms(timing: Timing) -> float:
    """Milliseconds per token behind the first."""
    first_s, *_, last_s = timing.committed_s
    return 1e3 * (last_s - first_s) / (len(timing.committed_s) - 1)


def main() -> None:
    """Prediction, table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="one rate, one round trip, two seeds")
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    rtts_s, rates, num_seeds = ((0.3,), (1e4,), 2) if arguments.smoke else (RTTS_S, RATES, arguments.seeds)
    print(f"prediction: cloud_goes_on takes at most {AIM} x the time of streamed in every cell")
    print("ms per token, ms to the first and to the last one")
    rows = {}
    for rate, rtt_s in product(rates, rtts_s):
        row = rows[rate, rtt_s] = measure(rtt_s, rate, num_seeds)
        link = "unlimited" if rate == inf else f"{rate / 1e3:g} kbit/s"
        cells = "  ".join(
            f"{name} {values['token_ms']:.0f} ({values['first_ms']:.0f}, {values['last_ms']:.0f})"
            for name, values in row.items()
        )
        ratio = row["cloud_goes_on"]["token_ms"] / row["streamed"]["token_ms"]
        print(f"{link:>11} {1e3 * rtt_s:4.0f} ms  {cells}  ratio {ratio:.2f}", flush=True)
    worst = max(row["cloud_goes_on"]["token_ms"] / row["streamed"]["token_ms"] for row in rows.values())
    print(f"cloud_goes_on takes at most {worst:.3f} x the time of streamed (aim {AIM})")
    finish({"worst": worst, "rows": {str(key): row for key, row in rows.items()}})


if __name__ == "__main__":
    main()
