"""Pictures of speculative decoding: throughput over the link, proposal lengths along a trace, bits and acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from tandem.lab.latency.records import Cell
from tandem.lab.netlab.schedule import LinkSchedule
from tandem.lab.plots import save
from tandem.lab.simulation.pacing import Timing
from tandem.lab.speculative.rows import rows_of, settings_of

# Okabe and Ito's colours, told apart by the colour-blind; marker and dash say the same once more.
LOOK: dict[str, dict[str, Any]] = {
    "device": {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    "asked": {"color": "#000000", "marker": "X", "linestyle": ":"},
    "streamed": {"color": "#d55e00", "marker": "^", "linestyle": "--"},
    "stop_and_wait": {"color": "#56b4e9", "marker": "v", "linestyle": "-"},
    "pipelined": {"color": "#009e73", "marker": "o", "linestyle": "-"},
    "cloud_goes_on": {"color": "#cc3377", "marker": "D", "linestyle": "-", "lw": 2.4, "zorder": 5},
    "stop_and_wait/rejection": {"color": "#56b4e9", "marker": "v", "linestyle": ":", "mfc": "white"},
    "pipelined/rejection": {"color": "#009e73", "marker": "o", "linestyle": ":", "mfc": "white"},
    "cloud_goes_on/rejection": {"color": "#cc3377", "marker": "D", "linestyle": ":", "mfc": "white"},
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


def plot_throughput(cells: Sequence[Cell], path: Path) -> None:
    """Tokens per second over the round trip: a plot for each rate and temperature, measured, predicted as thin lines.

    Raises TandemError if it cannot be written.
    """
    from matplotlib.figure import Figure

    rates, temperatures = settings_of(cells, "bits_per_s"), settings_of(cells, "temperature")
    size = (3.8 * len(rates), 3.4 * len(temperatures) + 0.8)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    plots = figure.subplots(len(temperatures), len(rates), squeeze=False)
    handles: dict[str, Any] = {}
    for row, temperature in zip(plots, temperatures, strict=True):
        for plot, rate in zip(row, rates, strict=True):
            members = [
                cell
                for cell in cells
                if (cell.setting.bits_per_s, cell.setting.temperature) == (rate, temperature)
            ]
            _draw(plot, members, handles)
            title = "unlimited" if rate is None else f"{rate / 1e3:g} kbit/s"
            plot.set_title(f"{title}, T {temperature:g}", fontsize=10, loc="left")
    columns = min(5, 2 * len(rates))  # what fits below the plots
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    save(figure, path)


def _draw(plot: Any, cells: Sequence[Cell], handles: dict[str, Any]) -> None:
    for name, look in LOOK.items():
        rows = [(1e3 * cell.setting.rtt_s, rows_of(cell)[name]) for cell in cells if cell.of(name)]
        rows.sort(key=lambda each: each[0])
        if not rows:
            continue
        at_ms = [rtt_ms for rtt_ms, _ in rows]
        handles[name] = plot.plot(at_ms, [1 / row.token_s for _, row in rows], label=name, **look)[0]
        predicted = [1 / row.predicted_s if isfinite(row.predicted_s) else None for _, row in rows]
        plot.plot(at_ms, predicted, color=look["color"], lw=0.6, alpha=0.6)
    plot.set(xlabel="injected round trip (ms)", ylabel="tokens per second")
    plot.set_ylim(bottom=0)
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
    end_s = max(timing.committed_s[-1] for timing in timings.values())
    points = [(row.time_s, 1e3 * row.shape.rtt_s) for row in link.rows]
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
    """Colour and marker by the codec, filled where zeros are not sent."""
    family = scheme.split()[0]
    color, marker = PLANE_LOOK.get(family, ("#777777", "o"))
    size = 8 if family == "ids" else 6
    face = "white" if scheme.endswith("paper") else color
    return {"color": color, "marker": marker, "linestyle": "none", "markersize": size, "mfc": face}
