"""Where should the aggregator be, by decode time and acceptance? DRAGON Figure 3: Delta Z against c^l.

Lines are Eq. (8) for a cloud that takes 50 ms and a round trip of 100 ms; l is the device, r the cloud. Points are
what the simulator measures over the real protocol: time per token with the aggregator on the device minus that with
it on the cloud.

Prediction: points lie on the lines for c^l <= c^r + rtt where both sides take equally long; elsewhere Eq. (7) counts
a wait in full that the slower side uses to draft ahead, so it should overrate that side's cost: the points lie below
the line where the device is slower, above it where the cloud is. Target: median error at most 10 ms.

Expected run time: 1 minute; `--smoke` 8 s.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from benchmarks._study import COLOURS, axes, parser, save, seconds
from tandem.scheduler.greedy import delta_z
from tandem.topology import Party
from tandem_lab.simulation.acceptance import draw_acceptance, rates
from tandem_lab.simulation.study import link_of, replay

CLOUD_MS, RTT_MS, NUM_TOKENS = 50.0, 100.0, 300
ALPHAS = ((0.9, 0.5), (0.9, 0.9), (0.7, 0.7), (0.5, 0.5), (0.5, 0.9))  # device, cloud
DEVICE_MS = (10, 30, 50, 75, 100, 125, 150, 175)


def point(device_ms: float, alphas: tuple[float, float], num_sequences: int) -> tuple[float, float]:
    """Eq. (8) with the rates that were drawn, and what was measured, both in milliseconds."""
    predicted, measured = [], []
    decode_s, link = seconds(device_ms, CLOUD_MS), link_of(RTT_MS / 1e3)
    for number in range(num_sequences):
        accepted = draw_acceptance(NUM_TOKENS, *alphas, Random(number))
        alpha = rates(accepted[:-1])
        device, cloud = (replay(accepted, decode_s, link, place).token_s for place in ("device", "cloud"))
        measured.append(1e3 * (device - cloud))
        predicted.append(delta_z(device_ms, CLOUD_MS, alpha[Party.DEVICE], alpha[Party.CLOUD], RTT_MS))
    return fmean(predicted), fmean(measured)


def main() -> None:
    """Lines, points, their distance."""
    arguments = parser(__doc__).parse_args()
    num_sequences, device_ms = (1, DEVICE_MS[::3]) if arguments.smoke else (2, DEVICE_MS)
    print(
        "prediction: points on the lines at c^l = c^r, else nearer to the slower side; median error <= 10 ms"
    )
    figure, (plot,) = axes(1, 4.2)
    points, lines = [], [float(value) for value in range(1, 200, 1)]
    for (alpha_l, alpha_r), colour in zip(ALPHAS, COLOURS, strict=True):
        values = [delta_z(c_l, CLOUD_MS, alpha_l, alpha_r, RTT_MS) for c_l in lines]
        label = f"$\\alpha^l$ = {alpha_l}, $\\alpha^r$ = {alpha_r}"
        plot.plot(lines, values, color=colour, label=label)
        found = [point(c_l, (alpha_l, alpha_r), num_sequences) for c_l in device_ms]
        plot.plot(device_ms, [measured for _, measured in found], "o", color=colour, markersize=5)
        for c_l, (predicted, measured) in zip(device_ms, found, strict=True):
            points.append([alpha_l, alpha_r, c_l, round(predicted, 1), round(measured, 1)])
        print(
            label.replace("$", ""),
            [f"{c_l}: {p:.0f}/{m:.0f}" for c_l, (p, m) in zip(device_ms, found, strict=True)],
        )
    errors = [abs(measured - predicted) for *_, predicted, measured in points]
    print(
        f"Eq. (8) against the simulator: median error {median(errors):.1f} ms, largest {max(errors):.1f} ms"
    )
    for edge in (CLOUD_MS, CLOUD_MS + RTT_MS):
        plot.axvline(edge, color="#999999", linewidth=0.8, linestyle=":")
    plot.axhline(0, color="black", linewidth=0.8)
    plot.set(
        xlabel="$c^l$, decode time of the device (ms)",
        ylabel="$\\Delta Z$ (ms): above 0 the cloud should aggregate",
    )
    plot.set_title(f"Eq. (8) and simulated points; $c^r$ = {CLOUD_MS:g} ms, rtt = {RTT_MS:g} ms", fontsize=10)
    plot.legend(fontsize=8)
    path = save(figure, arguments.out, "scheduling_delta_z")
    finish(
        {"points": points, "median_error_ms": median(errors), "largest_error_ms": max(errors), "plot": path}
    )


if __name__ == "__main__":
    main()
