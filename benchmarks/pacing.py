"""What do three pacings of speculative decoding take, over round trip and rate, against a cloud that streams?

A virtual clock (`tandem_lab.simulation.pacing`) with the times of FlexSpec's setting: 15 ms per draft, 25 + 2 ms per
token for a pass of the cloud. Each pacing has the best fixed length of its proposals, 0 to 16, known in hindsight; the
baselines ask for each token, or stream. A proposal has 111 bytes with all headers and 2 per proposed id, a verdict 107
and 2 for each token after its first.

Prediction: stop-and-wait is slower than the streamed cloud from a round trip of 50 ms on; pipelined is 3.9 times as
fast as asking at 100 ms and 5.1 times at 300 ms where 0.85 are accepted; a cloud that goes on is never more than 5 %
slower than one that streams. At 10 kbit/s a frame takes 87 ms, longer than
three passes: what a stream has to say waits for its turn and goes out as one, at a pass per token.

Expected run time: 3 minutes; `--smoke` 5 s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.scheduler.lengths import MAX_LENGTH
from tandem_lab.bench.plots import LOOK
from tandem_lab.bench.speculative import PROPOSAL_BYTES, VERDICT_BYTES
from tandem_lab.plots import save
from tandem_lab.simulation.pacing import PACINGS, Conditions, Pacing, draw_accepted, play_answer

RTTS_S, RATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3), (1e4, 1e5, 1e6, inf)
ACCEPTANCE = (0.5, 0.7, 0.85, 0.95)
NUM_TOKENS = 1500
LENGTHS = (1, 2, 3, 4, 6, 8, 12, MAX_LENGTH)

Row = dict[str, float]
"""Milliseconds per token by system, and the length that each pacing had."""


def measure(rtt_s: float, bits_per_s: float, acceptance: float) -> Row:
    """Every system in one setting."""
    conditions = Conditions(
        rtt_s=rtt_s, bits_per_s=bits_per_s, up_bytes=PROPOSAL_BYTES, down_bytes=VERDICT_BYTES
    )

    def token_ms(pacing: Pacing, length: int) -> float:
        timing = play_answer(conditions, pacing, length, draw_accepted(acceptance, 1), NUM_TOKENS)
        return 1e3 * timing.token_s

    row = {"asked": token_ms("stop_and_wait", 0), "streamed": token_ms("cloud_goes_on", 0)}
    for pacing in PACINGS:
        lengths = (0, *LENGTHS) if pacing == "cloud_goes_on" else LENGTHS
        row[pacing], row[f"{pacing} K"] = min((token_ms(pacing, length), length) for length in lengths)
    return row


def plot(
    rows: dict[tuple[float, float, float], Row], rates: Sequence[float], rtts_s: Sequence[float], path: Path
) -> None:
    """Tokens per second over the round trip at acceptance 0.85, a plot for each rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * len(rates), 3.8), dpi=120, layout="constrained")
    plots = figure.subplots(1, len(rates), squeeze=False, sharey=True)[0]
    for axes, rate in zip(plots, rates, strict=True):
        for name in ("asked", "streamed", *PACINGS):
            values = [1e3 / rows[rtt_s, rate, 0.85][name] for rtt_s in rtts_s]
            axes.plot([1e3 * rtt_s for rtt_s in rtts_s], values, label=name, **LOOK[name])
        axes.set_title("unlimited" if rate == inf else f"{rate / 1e3:g} kbit/s", fontsize=10, loc="left")
        axes.set_xlabel("round trip (ms)")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    plots[0].set_ylim(bottom=0)  # of all, once everything is drawn
    plots[0].set_ylabel("tokens per second")
    handles, labels = plots[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    save(figure, path)


def main() -> None:
    """Prediction, table, picture."""
    parser = new_parser(__doc__)
    parser.add_argument("--smoke", action="store_true", help="one rate, two round trips")
    parser.add_argument("--out", type=Path, help="draws acceptance 0.85 into this file (.png, .pdf or .svg)")
    arguments = parser.parse_args()
    rtts_s, rates, shares = ((0.1, 0.3), (inf,), (0.85,)) if arguments.smoke else (RTTS_S, RATES, ACCEPTANCE)
    print("prediction: pipelined 3.9 and 5.1 times as fast as asking at 100 and 300 ms, acceptance 0.85")
    print("ms per token (length)      RTT  accepted   asked  streamed  " + "  ".join(PACINGS))
    rows = {}
    for rate, rtt_s, acceptance in product(rates, rtts_s, shares):
        row = rows[rtt_s, rate, acceptance] = measure(rtt_s, rate, acceptance)
        paced = "  ".join(f"{row[name]:6.1f} ({row[f'{name} K']:.0f})" for name in PACINGS)
        link = "unlimited" if rate == inf else f"{rate / 1e3:g} kbit/s"
        print(
            f"{link:>14} {1e3 * rtt_s:9.0f} ms {acceptance:8.2f} {row['asked']:8.1f} {row['streamed']:8.1f}  {paced}"
        )
    slowest = max(row["cloud_goes_on"] / row["streamed"] for row in rows.values())
    gains = {
        f"{1e3 * rtt_s:.0f} ms": row["asked"] / row["pipelined"]
        for (rtt_s, rate, acceptance), row in rows.items()
        if rate == inf and acceptance == 0.85
    }
    print(f"cloud_goes_on takes at most {slowest:.3f} x the streamed cloud")
    print("asked / pipelined: " + ", ".join(f"{rtt} {gain:.1f}" for rtt, gain in gains.items()))
    if arguments.out:
        plot(rows, rates, rtts_s, arguments.out)
    finish({"slowest": slowest, "gains": gains, "rows": {str(key): row for key, row in rows.items()}})


if __name__ == "__main__":
    main()
