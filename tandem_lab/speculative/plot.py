"""Pictures of speculative decoding: throughput over the link, proposal lengths along a trace, bits and acceptance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from tandem_lab.latency.plot import VARIANTS, label_of
from tandem_lab.latency.records import Cell
from tandem_lab.netlab.schedule import LinkSchedule
from tandem_lab.plots import save
from tandem_lab.simulation.conditions import Timing
from tandem_lab.speculative.rows import rows_of, settings_of

# Okabe and Ito's colours, told apart by the colour-blind; marker and dash say the same once more.
LOOK: dict[str, dict[str, Any]] = {
    "device": {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    "asked": {"color": "#000000", "marker": "X", "linestyle": ":"},
    "streamed": {"color": "#d55e00", "marker": "^", "linestyle": "--"},
    "stop_and_wait": {"color": "#56b4e9", "marker": "v", "linestyle": "-"},
    "pipelined": {"color": "#009e73", "marker": "o", "linestyle": "-"},
    "cloud_goes_on": {"color": "#cc3377", "marker": "D", "linestyle": "-", "lw": 2.4, "zorder": 5},
    "stop_and_wait/best": {"color": "#56b4e9", "marker": "v", "linestyle": "--"},
    "pipelined/best": {"color": "#009e73", "marker": "o", "linestyle": "--"},
    "cloud_goes_on/best": {"color": "#cc3377", "marker": "D", "linestyle": "--"},
    "stop_and_wait/rejection": {"color": "#56b4e9", "marker": "v", "linestyle": ":", "mfc": "white"},
    "pipelined/rejection": {"color": "#009e73", "marker": "o", "linestyle": ":", "mfc": "white"},
    "cloud_goes_on/rejection": {"color": "#cc3377", "marker": "D", "linestyle": ":", "mfc": "white"},
    "preset/sqs": {"color": "#e69f00", "marker": "<", "linestyle": ":", "mfc": "white"},
    "preset/qs": {"color": "#e69f00", "marker": ">", "linestyle": ":", "mfc": "white"},
}

PLANE_LOOK = {
    "ids": ("#cc3377", "D"),
    "k_sqs": ("#0072b2", "o"),
    "c_sqs": ("#56b4e9", "s"),
    "lattice": ("#009e73", "^"),
    "top_k": ("#e69f00", "v"),
    "top_p": ("#000000", "x"),
}
"""Colour and marker of a codec."""
PLANE_SIZES = {"4": 4.0, "64": 9.0, "24": 5.0, "100": 8.0, "0.8": 5.0, "0.95": 8.0}
"""Size of the marker for a codec's parameter, in points, where it is not 6."""


def plot_throughput(cells: Sequence[Cell], path: Path) -> None:
    """Tokens per second over the round trip: a plot for each rate and temperature, measured, predicted as thin lines.

    Raises TandemError if it cannot be written.
    """
    from matplotlib.figure import Figure

    rates, temperatures = settings_of(cells, "bits_per_s"), settings_of(cells, "temperature")
    width = max(3.8 * len(rates), 8.0)
    columns = min(5, int(width / 2.6))  # of names such as "stop_and_wait/rejection, join link"
    num_lines = len({(cell.setting.variant, name) for cell in cells for name in rows_of(cell)})
    height = 3.4 * len(temperatures) + 0.2 + 0.2 * ceil(num_lines / columns)
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    plots = figure.subplots(len(temperatures), len(rates), squeeze=False)
    handles: dict[str, Any] = {}
    for row, temperature in zip(plots, temperatures, strict=True):
        for plot, rate in zip(row, rates, strict=True):
            members = [
                cell
                for cell in cells
                if (cell.setting.bits_per_s, cell.setting.temperature) == (rate, temperature)
            ]
            for variant in dict.fromkeys(cell.setting.variant for cell in members):
                own = [cell for cell in members if cell.setting.variant == variant]
                look = {name: style | VARIANTS[variant] for name, style in LOOK.items()}
                draw_over_round_trips(plot, own, rows_of, look, lambda token_s: 1 / token_s, handles, variant)
            plot.set(ylabel="tokens per second", ylim=(0, None))
            title = "unlimited" if rate is None else f"{rate / 1e3:g} kbit/s"
            plot.set_title(f"{title}, T {temperature:g}", fontsize=10, loc="left")
            plot.set_xticks(sorted({1e3 * cell.setting.rtt_s for cell in members}))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    save(figure, path)


def draw_over_round_trips(
    plot: Any,
    cells: Sequence[Cell],
    rows: Callable[[Cell], Mapping[str, Any]],
    look: Mapping[str, dict[str, Any]],
    shown: Callable[[float], float],
    handles: dict[str, Any],
    variant: str = "",
) -> None:
    """A line of each system over the round trip, and a thin one of what was predicted.

    rows: of a cell, by system, with `token_s` and `predicted_s`. shown: a time per token in seconds as the plot has it.
    handles: for the legend, by system; those that are drawn are added. variant: of all cells, see `Setting.variant`.
    """
    for name, style in look.items():
        points = [(1e3 * cell.setting.rtt_s, rows(cell)[name]) for cell in cells if cell.of(name)]
        points.sort(key=lambda each: each[0])
        if not points:
            continue
        at_ms = [rtt_ms for rtt_ms, _ in points]
        label = label_of(name, variant)
        handles[label] = plot.plot(at_ms, [shown(row.token_s) for _, row in points], label=label, **style)[0]
        predicted = [shown(row.predicted_s) if isfinite(row.predicted_s) else None for _, row in points]
        plot.plot(at_ms, predicted, color=style["color"], lw=0.6, alpha=0.6)
    plot.set(xlabel="injected round trip (ms)")
    plot.grid(alpha=0.3)
    plot.spines[["top", "right"]].set_visible(False)


def plot_lengths(timings: Mapping[str, Timing], link: LinkSchedule, path: Path) -> None:
    """Proposal lengths over time, one plot for each policy, above the link's trace. Raises TandemError.

    timings: by the policy's name. link: what they were played on.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 1.6 * (len(timings) + 1) + 0.6), dpi=120, layout="constrained")
    plots = figure.subplots(len(timings) + 1, 1, sharex=True)
    for plot, (name, timing) in zip(plots, timings.items(), strict=False):
        at_s, lengths = zip(*timing.lengths, strict=True)
        plot.step(at_s, lengths, where="post", color="#009e73", lw=1.0)
        title = f"{name}: {timing.num_tokens / timing.committed_s[-1]:.1f} tokens per second"
        plot.set_title(title, fontsize=10, loc="left")
        plot.set(ylabel="K", ylim=(-0.5, 16.5))
    points = [(row.time_s, 1e3 * row.shape.rtt_s) for row in link.rows]
    end_s = max(points[-1][0], *(timing.committed_s[-1] for timing in timings.values()))
    at_s, rtts_ms = zip(*points, (end_s, points[-1][1]), strict=True)
    plots[-1].step(at_s, rtts_ms, where="post", color="#000000", lw=1.0)
    plots[-1].set(xlabel="seconds", ylabel="RTT (ms)", ylim=(0, None))
    for plot in plots:
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def plot_plane(rows: Mapping[float, Mapping[str, tuple[float, float]]], path: Path, what: str) -> None:
    """The plane of bits and acceptance, one plot for each temperature. Raises TandemError.

    rows: mean bits of a draft and the probability that it stands, by temperature and scheme; what: the distributions.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(rows), 4.6), dpi=120, layout="constrained")
    plots = figure.subplots(1, len(rows), squeeze=False, sharex=True, sharey=True)[0]
    handles: dict[str, Any] = {}
    for plot, (temperature, schemes) in zip(plots, rows.items(), strict=True):
        for name, (bits, acceptance) in schemes.items():
            if bits:
                handles[name] = plot.plot(bits, acceptance, label=name, **_plane_look(name))[0]
            else:
                handles[name] = plot.axhline(acceptance, label=name, color="#777777", lw=0.8, ls=":")
        plot.set_xscale("log")
        plot.set_xlabel("bits per draft")
        plot.set_title(f"T {temperature:g}", fontsize=10, loc="left")
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
    plots[0].set_ylabel("probability that the draft stands")
    figure.suptitle(what, fontsize=10)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8
    )
    save(figure, path)


def _plane_look(scheme: str) -> dict[str, Any]:
    """Colour and marker by the codec, size by its parameter, hollow for the variants that send more."""
    family, *parameters = scheme.split()
    color, marker = PLANE_LOOK.get(family, ("#777777", "o"))
    size = (
        8.0
        if family == "ids"
        else next((PLANE_SIZES[each] for each in parameters if each in PLANE_SIZES), 6.0)
    )
    face = "white" if scheme.endswith(("paper", "residual")) else color
    return {"color": color, "marker": marker, "linestyle": "none", "markersize": size, "mfc": face}
