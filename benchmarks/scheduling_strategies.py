"""Which strategy needs least time? DRAGON Figure 8, and a table over decode times, acceptance and round trips.

Figure: total time for 100 tokens, 50 acceptance sequences recorded from the bundled model at temperatures 0 and 1, its
recorded decode times, extra latency of 0 to 1000 ms (round trip) with a sinusoidal jitter of 1/5, period 20 pi s.
Table: mean time per token for decode times (60,60), (60,20), (20,60) ms, several acceptances, round trips of 20, 100,
300, 1000 ms; stationary ones are drawn independently, "exclusive" ones reject at most one side at a step, "phases"
favour a side for 25 tokens and then the other. Every run begins without any estimate, on the device.

Prediction: mirror is never behind greedy, and 1.0 to 1.3 times faster; greedy is at most 3 % behind the better of
device and cloud, and clearly ahead of both in phases. Rows where that fails are listed with the error of Eq. (7):
predicted by simulated time per token, minus 1, of each fixed placement.

Expected run time: 4 minutes for the figure (measured on a busy machine), 6 for the table; `--smoke` 20 s.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from benchmarks._study import LOOK, RECORDED, axes, parser, save, seconds
from tandem.scheduler.greedy import Situation
from tandem.topology import PARTIES
from tandem_lab.simulation.acceptance import (
    draw_acceptance,
    phases,
    rates,
    read_acceptance,
    read_decode_times,
)
from tandem_lab.simulation.scripted import Accepted
from tandem_lab.simulation.study import STRATEGIES, Summary, compare, link_of

NUM_TOKENS, BASE_RTT_MS, WAVE = 100, 1.0, 0.2
EXTRA_MS = (0, 250, 500, 750, 1000)
PAIRS = ((60, 60), (60, 20), (20, 60))
RTTS_MS = (20, 100, 300, 1000)
Sequences = list[list[Accepted]]


def acceptances(count: int) -> dict[str, Sequences]:
    """What the table replays, by name."""
    made: dict[str, Sequences] = {}
    for alphas in ((0.9, 0.9), (0.7, 0.7), (0.9, 0.6), (0.6, 0.9)):
        made["{} {}".format(*alphas)] = [
            draw_acceptance(NUM_TOKENS, *alphas, Random(n)) for n in range(count)
        ]
    made["exclusive 0.7 0.7"] = [
        draw_acceptance(NUM_TOKENS, 0.7, 0.7, Random(n), "exclusive") for n in range(count)
    ]
    made["phases 0.95 0.5"] = [phases(NUM_TOKENS, 0.95, 0.5, 25, Random(n)) for n in range(count)]
    for temperature, sequences in read_acceptance(RECORDED).items():
        made[f"recorded T={temperature}"] = sequences[:count]
    return made


def row(name: str, sequences: Sequences, pair: tuple[int, int], rtt_ms: float) -> dict[str, Any]:
    """One setting: time per token of each strategy, and what Eq. (7) says of the fixed ones."""
    decode_s = seconds(*pair)
    found = compare(sequences, decode_s, link_of(rtt_ms / 1e3))
    totals = {strategy: [1e3 * one.total_s / NUM_TOKENS for one in runs] for strategy, runs in found.items()}
    means = {strategy: fmean(values) for strategy, values in totals.items()}
    alpha = {party: fmean(rates(one)[party] for one in sequences) for party in PARTIES}
    situation = Situation(decode_s=decode_s, acceptance=alpha, rtt_s=rtt_ms / 1e3)
    best = min(means["device"], means["cloud"])
    return {
        "acceptance": name,
        "decode_ms": pair,
        "rtt_ms": rtt_ms,
        "token_ms": {strategy: asdict(Summary.of(values)) for strategy, values in totals.items()},
        "greedy_to_best": means["greedy"] / best - 1,
        "mirror_to_greedy": means["mirror"] / means["greedy"] - 1,
        "switches": fmean(one.num_switches for one in found["greedy"]),
        "eq7_error": {
            party.value: situation.token_s(party) / fmean(one.token_s for one in found[party.value]) - 1
            for party in PARTIES
        },
    }


def table(count: int, pairs: Sequence[tuple[int, int]], rtts_ms: Sequence[int]) -> list[dict[str, Any]]:
    """All settings, printed as they come."""
    print(f"\n{'acceptance':18} {'decode':7} {'rtt':>4} | ms per token: " + "  ".join(f"{s:>6}" for s in STRATEGIES)
          + " | greedy to best, mirror to greedy, switches | Eq. (7) error device, cloud")  # fmt: skip
    rows = []
    for pair, (name, sequences), rtt_ms in itertools.product(pairs, acceptances(count).items(), rtts_ms):
        rows.append(found := row(name, sequences, pair, rtt_ms))
        times = "  ".join(f"{found['token_ms'][strategy]['mean']:6.1f}" for strategy in STRATEGIES)
        print(f"{name:18} {pair[0]}/{pair[1]:<4} {rtt_ms:4} |             {times} | {found['greedy_to_best']:+7.1%} "
              f"{found['mirror_to_greedy']:+7.1%} {found['switches']:5.1f} | {found['eq7_error']['device']:+7.1%} "
              f"{found['eq7_error']['cloud']:+7.1%}", flush=True)  # fmt: skip
    _show_exceptions(rows)
    return rows


def _show_exceptions(rows: list[dict[str, Any]]) -> None:
    late = [one for one in rows if one["greedy_to_best"] > 0.03]
    behind = [one for one in rows if one["mirror_to_greedy"] > 0]
    gains = [one["greedy_to_best"] for one in rows]
    print(f"greedy more than 3 % behind the better of device and cloud: {len(late)} of {len(rows)} settings; "
          f"median {sorted(gains)[len(gains) // 2]:+.1%}, {min(gains):+.1%} to {max(gains):+.1%}")  # fmt: skip
    print(f"mirror behind greedy: {len(behind)} of {len(rows)} settings")
    for one in [*late, *behind]:
        errors = ", ".join(f"{party} {error:+.1%}" for party, error in one["eq7_error"].items())
        print(f"  {one['acceptance']} {one['decode_ms']} ms, rtt {one['rtt_ms']} ms: "
              f"greedy {one['greedy_to_best']:+.1%}, mirror to greedy {one['mirror_to_greedy']:+.1%}; "
              f"Eq. (7): {errors}")  # fmt: skip


def figure(count: int, extra_ms: Sequence[int], folder: Path) -> dict[str, Any]:
    """DRAGON Figure 8, one plot for each temperature."""
    decode_s = read_decode_times(RECORDED)
    drawing, plots = axes(2)
    result: dict[str, Any] = {}
    for plot, (temperature, sequences) in zip(plots, read_acceptance(RECORDED).items(), strict=True):
        found: dict[str, list[Summary]] = {strategy: [] for strategy in STRATEGIES}
        for extra in extra_ms:
            link = link_of((BASE_RTT_MS + extra) / 1e3, wave=WAVE)
            for strategy, runs in compare(sequences[:count], decode_s, link).items():
                found[strategy].append(Summary.of(one.total_s for one in runs))
            totals = "  ".join(f"{strategy} {seen[-1].mean:6.2f}" for strategy, seen in found.items())
            print(f"T={temperature} extra latency {extra:4} ms, total s: {totals}", flush=True)
        for strategy, seen in found.items():
            plot.plot(extra_ms, [one.mean for one in seen], label=strategy, markersize=5, **LOOK[strategy])
            low, high = [one.p25 for one in seen], [one.p75 for one in seen]
            plot.fill_between(extra_ms, low, high, color=LOOK[strategy]["color"], alpha=0.10, linewidth=0)
        plot.set(
            xlabel="extra latency, round trip (ms)",
            ylabel=f"time for {NUM_TOKENS} tokens (s)",
            ylim=(0, None),
        )
        plot.set_title(f"recorded at temperature {temperature}; mean, 25 to 75 %", fontsize=10)
        result[f"T={temperature}"] = {
            strategy: [asdict(one) for one in seen] for strategy, seen in found.items()
        }
    plots[0].legend(fontsize=8)
    return result | {"extra_ms": list(extra_ms), "plot": save(drawing, folder, "scheduling_strategies")}


def main() -> None:
    """Figure and table, or one of them."""
    options = parser(__doc__)
    options.add_argument("--only", choices=("figure", "table"))
    options.add_argument(
        "--sequences", type=int, default=6, help="of each row of the table; the figure has 50"
    )
    options.add_argument(
        "--pairs", nargs="+", default=[f"{d},{c}" for d, c in PAIRS], help="decode times: DEVICE,CLOUD in ms"
    )
    arguments = options.parse_args()
    print(
        "prediction: mirror <= greedy everywhere; greedy <= 1.03 x the better of device and cloud; ahead in phases"
    )
    pairs = [(int(d), int(c)) for d, c in (pair.split(",") for pair in arguments.pairs)]
    result: dict[str, Any] = {}
    if arguments.only != "table":
        few = (4, EXTRA_MS[::4]) if arguments.smoke else (50, EXTRA_MS)
        result["figure"] = figure(*few, arguments.out)
    if arguments.only != "figure":
        count, rtts_ms = (1, RTTS_MS[2:3]) if arguments.smoke else (arguments.sequences, RTTS_MS)
        result["table"] = table(count, pairs, rtts_ms)
    finish(result)


if __name__ == "__main__":
    main()
