"""Where should the aggregator be, how much does speculation gain, which strategy is fastest? DRAGON Figures 3, 4, 8.

The real protocol under a virtual clock (`tandem_lab.simulation.study`); l is the device, r the cloud.

- delta_z (3): lines are Eq. (8), c^r = 50 ms, rtt = 100 ms; points the simulated time per token with the aggregator on
  the device minus that with it on the cloud. Prediction: points lie on the lines where both take equally long for
  c^l <= c^r + rtt; elsewhere Eq. (7) counts a wait in full that the slower side uses to draft ahead, and overrates that
  side's cost. Median error at most 10 ms.
- speedup (4): lines are Eq. (9), points the token-wise loop's time per token divided by the speculative one's, with
  the same acceptance. Prediction: within 5 % where the device is no slower than the cloud, up to 1.5 times else.
- strategies (8): total time for 100 tokens, 50 acceptance sequences and decode times recorded from the bundled model,
  extra latency of 0 to 1000 ms with a sinusoidal jitter of 1/5; and a table over decode times, acceptances and round
  trips. "exclusive" sequences reject at most one side at a step, "phases" favour a side for 25 tokens, then the other.
  Prediction: mirror is never behind greedy; greedy is at most 3 % behind the better of device and cloud, and ahead of
  both in phases. Rows where that fails are listed with the error of Eq. (7).

Expected run time: 1 minute, 1 minute, 10 minutes; `--smoke` 8, 10, 20 s.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import axes, finish, new_parser, save
from tandem.scheduler import Situation, delta_z, speedup
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.study import (
    STRATEGIES,
    Accepted,
    Strategy,
    Summary,
    compare,
    draw_acceptance,
    link_of,
    phases,
    rates,
    read_acceptance,
    read_decode_times,
    replay,
)

RECORDED = Path(__file__).parent / "data" / "acceptance.json"
LOOK: dict[Strategy, dict[str, Any]] = {
    # Colours that stay apart for colour-blind readers; marker and dash say the same once more.
    "device": {"color": "#0072B2", "marker": "s", "linestyle": "--"},
    "cloud": {"color": "#E69F00", "marker": "^", "linestyle": "--"},
    "random": {"color": "#777777", "marker": "x", "linestyle": ":"},
    "greedy": {"color": "#009E73", "marker": "o", "linestyle": "-"},
    "mirror": {"color": "#CC3377", "marker": "D", "linestyle": "-"},
}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC3377", "#56B4E9")
CLOUD_MS, WAVE = 50.0, 0.2
Sequences = list[list[Accepted]]


def seconds(device_ms: float, cloud_ms: float) -> dict[Party, float]:
    """Decode times."""
    return {Party.DEVICE: device_ms / 1e3, Party.CLOUD: cloud_ms / 1e3}


# ---- Figures 3 and 4: an equation's lines, and simulated points --------------------------------------------


def draw_points(
    plot: Any,
    equation: Callable[[float, float, float, float], float],
    measure: Callable[[float, float], float],
    places: tuple[Strategy, Strategy],
    alphas: Sequence[tuple[float, float]],
    device_ms: Sequence[float],
    rtt_ms: float,
    num_sequences: int,
) -> list[tuple[float, float, float, float, float]]:
    """Lines of `equation(c^l, alpha^l, alpha^r, rtt)`, and points: `measure` of the seconds per token at both places.

    Returns alpha^l, alpha^r, c^l, predicted and measured of each point.
    """
    rows, line = [], [float(value) for value in range(5, int(1.1 * device_ms[-1]), 5)]
    for (alpha_l, alpha_r), colour in zip(alphas, COLOURS, strict=False):
        label = f"$\\alpha^l$ = {alpha_l}, $\\alpha^r$ = {alpha_r}"
        plot.plot(line, [equation(c_l, alpha_l, alpha_r, rtt_ms) for c_l in line], color=colour, label=label)
        for c_l in device_ms:
            predicted, times_s = [], []
            for number in range(num_sequences):
                accepted = draw_acceptance(300, alpha_l, alpha_r, Random(number))
                alpha = rates(accepted[:-1])
                predicted.append(equation(c_l, alpha[Party.DEVICE], alpha[Party.CLOUD], rtt_ms))
                link, decode_s = link_of(rtt_ms / 1e3), seconds(c_l, CLOUD_MS)
                times_s.append([replay(accepted, decode_s, link, place).token_s for place in places])
            first_s, second_s = (fmean(times) for times in zip(*times_s, strict=True))
            row = (alpha_l, alpha_r, c_l, fmean(predicted), measure(first_s, second_s))
            rows.append(row)
            print(f"rtt {rtt_ms:3.0f}  alpha {alpha_l} {alpha_r}  c^l {c_l:3}  predicted {row[3]:7.2f}  simulated "
                  f"{row[4]:7.2f}")  # fmt: skip
        plot.plot(device_ms, [one[4] for one in rows[-len(device_ms) :]], "o", color=colour, markersize=5)
    plot.set_xlabel("$c^l$, decode time of the device (ms)")
    plot.set_title(f"$c^r$ = {CLOUD_MS:g} ms, rtt = {rtt_ms:g} ms", fontsize=10)
    plot.legend(fontsize=8)
    return rows


def figure_delta_z(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figure 3."""
    print("prediction: points on the lines at c^l = c^r, else nearer to the slower side; median <= 10 ms")
    alphas = ((0.9, 0.5), (0.9, 0.9), (0.7, 0.7), (0.5, 0.5), (0.5, 0.9))
    device_ms = (10, 30, 50, 75, 100, 125, 150, 175)
    figure, (plot,) = axes(1, 4.2)
    rows = draw_points(
        plot,
        lambda c_l, alpha_l, alpha_r, rtt_ms: delta_z(c_l, CLOUD_MS, alpha_l, alpha_r, rtt_ms),
        lambda device_s, cloud_s: 1e3 * (device_s - cloud_s),
        ("device", "cloud"),
        alphas,
        device_ms[:: 3 if arguments.smoke else 1],
        100.0,
        1 if arguments.smoke else 2,
    )
    errors = [abs(measured - predicted) for *_, predicted, measured in rows]
    print(f"Eq. (8): median error {median(errors):.1f} ms, largest {max(errors):.1f} ms")
    plot.axhline(0, color="black", linewidth=0.8)
    plot.set_ylabel("$\\Delta Z$ (ms): above 0 the cloud should aggregate")
    return {"points": rows, "median_error_ms": median(errors), "plot": save(figure, arguments.out, "delta_z")}


def figure_speedup(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figure 4, one plot for each round trip."""
    print(
        "prediction: within 5 % of Eq. (9) where the device is no slower than the cloud; above it elsewhere"
    )
    figure, plots = axes(2)
    rows = []
    for plot, rtt_ms in zip(plots, (100.0, 300.0), strict=True):
        rows += draw_points(
            plot,
            lambda c_l, alpha_l, alpha_r, rtt_ms: speedup(c_l, CLOUD_MS, alpha_r, rtt_ms),
            lambda token_wise_s, speculative_s: token_wise_s / speculative_s,
            ("token-wise", "device"),
            [(0.8, alpha_r) for alpha_r in (0.3, 0.6, 0.9)],
            (10, 30, 50, 80, 120, 180, 260, 360)[:: 3 if arguments.smoke else 1],
            rtt_ms,
            1 if arguments.smoke else 2,
        )
        plot.set_ylabel("speed-up over the token-wise loop")
    errors = [(c_l, measured / predicted - 1) for _, _, c_l, predicted, measured in rows]
    largest = max(abs(error) for c_l, error in errors if c_l <= CLOUD_MS)
    slower = [error for c_l, error in errors if c_l > CLOUD_MS]
    print(f"device no slower: largest error {largest:.1%} (target 5 %); slower: median {median(slower):+.1%}, "
          f"{min(slower):+.1%} to {max(slower):+.1%}")  # fmt: skip
    return {"rows": rows, "largest_error_no_slower": largest, "plot": save(figure, arguments.out, "speedup")}


# ---- Figure 8 ----------------------------------------------------------------------------------------------


def acceptances(count: int) -> dict[str, Sequences]:
    """What the table replays, by name."""
    numbers = range(count)
    made: dict[str, Sequences] = {
        f"{device} {cloud}": [draw_acceptance(100, device, cloud, Random(n)) for n in numbers]
        for device, cloud in ((0.9, 0.9), (0.7, 0.7), (0.9, 0.6), (0.6, 0.9))
    }
    made["exclusive 0.7 0.7"] = [draw_acceptance(100, 0.7, 0.7, Random(n), "exclusive") for n in numbers]
    made["phases 0.95 0.5"] = [phases(100, 0.95, 0.5, 25, Random(n)) for n in numbers]
    for temperature, sequences in read_acceptance(RECORDED).items():
        made[f"recorded T={temperature}"] = sequences[:count]
    return made


def row_of(name: str, sequences: Sequences, pair: tuple[int, int], rtt_ms: float) -> dict[str, Any]:
    """One setting: time per token of each strategy, and what Eq. (7) says of the fixed ones."""
    decode_s = seconds(*pair)
    found = compare(sequences, decode_s, link_of(rtt_ms / 1e3))
    totals = {strategy: [1e3 * one.total_s / 100 for one in runs] for strategy, runs in found.items()}
    means = {strategy: fmean(values) for strategy, values in totals.items()}
    alpha = {party: fmean(rates(one)[party] for one in sequences) for party in PARTIES}
    situation = Situation(decode_s=decode_s, acceptance=alpha, rtt_s=rtt_ms / 1e3)
    return {
        "acceptance": name,
        "decode_ms": pair,
        "rtt_ms": rtt_ms,
        "token_ms": {strategy: asdict(Summary.of(values)) for strategy, values in totals.items()},
        "greedy_to_best": means["greedy"] / min(means["device"], means["cloud"]) - 1,
        "mirror_to_greedy": means["mirror"] / means["greedy"] - 1,
        "switches": fmean(one.num_switches for one in found["greedy"]),
        "eq7_error": {
            party.value: situation.token_s(party) / fmean(one.token_s for one in found[party.value]) - 1
            for party in PARTIES
        },
    }


def table(count: int, rtts_ms: Sequence[int]) -> list[dict[str, Any]]:
    """All settings, printed as they come."""
    print("acceptance, decode times, round trip | ms per token: " + "  ".join(STRATEGIES))
    rows: list[dict[str, Any]] = []
    pairs = ((60, 60), (60, 20), (20, 60))
    for pair, (name, sequences), rtt_ms in itertools.product(pairs, acceptances(count).items(), rtts_ms):
        rows.append(row := row_of(name, sequences, pair, rtt_ms))
        times = "  ".join(f"{row['token_ms'][strategy]['mean']:6.1f}" for strategy in STRATEGIES)
        print(f"{_described(row)} | {times}", flush=True)
    late = [row for row in rows if row["greedy_to_best"] > 0.03]
    behind = [row for row in rows if row["mirror_to_greedy"] > 0]
    print(f"of {len(rows)} settings: greedy more than 3 % behind the better of device and cloud in {len(late)}, "
          f"mirror behind greedy in {len(behind)}")  # fmt: skip
    for row in [*late, *behind]:
        errors = ", ".join(f"{party} {error:+.1%}" for party, error in row["eq7_error"].items())
        print(f"  {_described(row)}: greedy {row['greedy_to_best']:+.1%}, mirror to greedy "
              f"{row['mirror_to_greedy']:+.1%}; Eq. (7): {errors}")  # fmt: skip
    return rows


def _described(row: dict[str, Any]) -> str:
    device_ms, cloud_ms = row["decode_ms"]
    return f"{row['acceptance']:18} {device_ms}/{cloud_ms:<4} {row['rtt_ms']:4} ms"


def figure_strategies(arguments: argparse.Namespace) -> dict[str, Any]:
    """Figure 8, one plot for each temperature, and the table."""
    print("prediction: mirror <= greedy; greedy <= 1.03 x the better of device and cloud, ahead in phases")
    decode_s, extra_ms = read_decode_times(RECORDED), (0, 250, 500, 750, 1000)[:: 4 if arguments.smoke else 1]
    drawing, plots = axes(2)
    result: dict[str, Any] = {"extra_ms": extra_ms}
    for plot, (temperature, sequences) in zip(plots, read_acceptance(RECORDED).items(), strict=True):
        found: dict[str, list[Summary]] = {strategy: [] for strategy in STRATEGIES}
        for extra in extra_ms:
            link = link_of((1.0 + extra) / 1e3, wave=WAVE)
            for strategy, runs in compare(sequences[: 4 if arguments.smoke else 50], decode_s, link).items():
                found[strategy].append(Summary.of(one.total_s for one in runs))
            totals = "  ".join(f"{strategy} {seen[-1].mean:6.2f}" for strategy, seen in found.items())
            print(f"T={temperature} extra latency {extra:4} ms, total s: {totals}", flush=True)
        for strategy, seen in found.items():
            plot.plot(extra_ms, [one.mean for one in seen], label=strategy, markersize=5, **LOOK[strategy])
            low, high = [one.p25 for one in seen], [one.p75 for one in seen]
            plot.fill_between(extra_ms, low, high, color=LOOK[strategy]["color"], alpha=0.10, linewidth=0)
        plot.set(xlabel="extra latency, round trip (ms)", ylabel="time for 100 tokens (s)", ylim=(0, None))
        plot.set_title(f"recorded at temperature {temperature}; mean, 25 to 75 %", fontsize=10)
        result[f"T={temperature}"] = {name: [asdict(one) for one in seen] for name, seen in found.items()}
    plots[0].legend(fontsize=8)
    result["plot"] = save(drawing, arguments.out, "strategies")
    few = (1, (300,)) if arguments.smoke else (arguments.sequences, (20, 100, 300, 1000))
    return result | {"table": table(*few)}


FIGURES = {
    "delta_z": figure_delta_z,
    "speedup": figure_speedup,
    "strategies": figure_strategies,
}


def main() -> None:
    """The figures that are named, by default all."""
    options = new_parser(__doc__)
    options.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)} (default: all)"
    )
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "out", help="folder for plots")
    options.add_argument("--sequences", type=int, default=6, help="of each row of the table of strategies")
    options.add_argument("--smoke", action="store_true", help="few runs")
    arguments = options.parse_args()
    if unknown := set(arguments.figures) - FIGURES.keys():
        options.error(f"there is no figure {min(unknown)!r}; name some of {', '.join(FIGURES)}")
    finish({name: FIGURES[name](arguments) for name in arguments.figures or FIGURES})


if __name__ == "__main__":
    main()
