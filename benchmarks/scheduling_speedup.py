"""How much faster than the token-wise loop is speculation? DRAGON Figure 4: Eq. (9) against the simulator.

The aggregator is on the device. Lines are Eq. (9); points divide the time per token of the token-wise loop by that of
the speculative one, both simulated over the real protocol with the same acceptance sequences.

Prediction: within 5 % of Eq. (9) where the device is no slower than the cloud. Where it is slower it drafts ahead while
it waits, which Eq. (9) leaves out, so it gains more: up to 1.5 times what the equation says.

Expected run time: 60 s; `--smoke` 10 s.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from benchmarks._study import COLOURS, axes, parser, save, seconds
from tandem.scheduler.greedy import speedup
from tandem.topology import Party
from tandem_lab.simulation.acceptance import draw_acceptance, rates
from tandem_lab.simulation.study import link_of, replay

CLOUD_MS, ALPHA_DEVICE, NUM_TOKENS = 50.0, 0.8, 300
ALPHAS = (0.3, 0.6, 0.9)
RTTS_MS = (100.0, 300.0)
DEVICE_MS = (10, 30, 50, 80, 120, 180, 260, 360)


def point(device_ms: float, alpha_r: float, rtt_ms: float, num_sequences: int) -> tuple[float, float]:
    """Eq. (9) with the rates that were drawn, and the measured speed-up."""
    predicted, loops = [], []
    decode_s, link = seconds(device_ms, CLOUD_MS), link_of(rtt_ms / 1e3)
    for number in range(num_sequences):
        accepted = draw_acceptance(NUM_TOKENS, ALPHA_DEVICE, alpha_r, Random(number))
        alpha = rates(accepted[:-1])[Party.CLOUD]
        predicted.append(speedup(device_ms, CLOUD_MS, alpha, rtt_ms))
        loops.append([replay(accepted, decode_s, link, loop).token_s for loop in ("token-wise", "device")])
    token_wise, speculative = zip(*loops, strict=True)
    return fmean(predicted), fmean(token_wise) / fmean(speculative)


def main() -> None:
    """One plot for each round trip."""
    arguments = parser(__doc__).parse_args()
    num_sequences, device_ms = (1, DEVICE_MS[::3]) if arguments.smoke else (2, DEVICE_MS)
    print(
        "prediction: within 5 % of Eq. (9) where the device is no slower than the cloud; above it elsewhere"
    )
    figure, plots = axes(len(RTTS_MS))
    rows: list[dict[str, Any]] = []
    for plot, rtt_ms in zip(plots, RTTS_MS, strict=True):
        for alpha_r, colour in zip(ALPHAS, COLOURS, strict=False):
            line = [float(value) for value in range(5, 400, 5)]
            values = [speedup(c_l, CLOUD_MS, alpha_r, rtt_ms) for c_l in line]
            plot.plot(line, values, color=colour, label=f"$\\alpha^r$ = {alpha_r}")
            found = [point(c_l, alpha_r, rtt_ms, num_sequences) for c_l in device_ms]
            plot.plot(device_ms, [measured for _, measured in found], "o", color=colour, markersize=5)
            for c_l, (predicted, measured) in zip(device_ms, found, strict=True):
                error = measured / predicted - 1
                rows.append({"rtt_ms": rtt_ms, "alpha_r": alpha_r, "device_ms": c_l, "eq9": predicted,
                             "simulated": measured, "error": error})  # fmt: skip
                print(f"rtt {rtt_ms:3.0f}  alpha^r {alpha_r}  c^l {c_l:3}  Eq. (9) {predicted:5.2f}  simulated "
                      f"{measured:5.2f}  {error:+.1%}")  # fmt: skip
        plot.set(xlabel="$c^l$, decode time of the device (ms)", ylabel="speed-up over the token-wise loop")
        plot.set_title(f"$c^r$ = {CLOUD_MS:g} ms, rtt = {rtt_ms:g} ms", fontsize=10)
        plot.legend(fontsize=8)
    faster = [abs(row["error"]) for row in rows if row["device_ms"] <= CLOUD_MS]
    slower = [row["error"] for row in rows if row["device_ms"] > CLOUD_MS]
    print(f"device no slower: largest error {max(faster):.1%} (target 5 %); slower: median {median(slower):+.1%},"
          f" {min(slower):+.1%} to {max(slower):+.1%}")  # fmt: skip
    path = save(figure, arguments.out, "scheduling_speedup")
    finish({"rows": rows, "largest_error_no_slower": max(faster), "plot": path})


if __name__ == "__main__":
    main()
