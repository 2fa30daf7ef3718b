"""Time per token and time to first token over the round trip, as in DRAGON's Figures 6 and 7: one line a system.

Draws rows of `tandem_lab.quality`; knows nothing of how they were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from tandem_lab.latency.checks import rows_of
from tandem_lab.latency.records import Cell, Setting, floors_text
from tandem_lab.latency.rows import Row
from tandem_lab.plots import save

# Okabe and Ito's colours, told apart by the colour-blind; marker and dash say the same once more.
LOOK: dict[str, dict[str, Any]] = {
    "CRCG/device": {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    "CRCG/cloud": {"color": "#d55e00", "marker": "^", "linestyle": "--"},
    "DRCG/Text": {"color": "#56b4e9", "marker": "v", "linestyle": ":"},
    "DRCG/KV": {"color": "#56b4e9", "marker": "P", "linestyle": "-."},
    "DRDG/TW": {"color": "#000000", "marker": "X", "linestyle": ":"},
    "DRDG/SW-dense": {"color": "#777777", "marker": "<", "linestyle": ":"},
    "DRDG/SW": {"color": "#777777", "marker": ">", "linestyle": "-."},
    "Tandem/mirror": {"color": "#cc3377", "marker": "D", "linestyle": "-", "lw": 2.4, "zorder": 5},
    "Tandem/device": {"color": "#009e73", "marker": "o", "linestyle": "-"},
    "Tandem/cloud": {"color": "#e69f00", "marker": "o", "linestyle": "-"},
    "Tandem/greedy": {"color": "#8856a7", "marker": "*", "linestyle": "-"},
    "Tandem/random": {"color": "#999999", "marker": "x", "linestyle": ":"},
    "Tandem/device/algorithm1": {"color": "#009e73", "marker": "o", "linestyle": "--", "mfc": "white"},
    "Tandem/cloud/algorithm1": {"color": "#e69f00", "marker": "o", "linestyle": "--", "mfc": "white"},
    "Tandem/greedy/algorithm1": {"color": "#8856a7", "marker": "*", "linestyle": "--", "mfc": "white"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "ray plane": {"linestyle": "none", "markeredgecolor": "black", "markeredgewidth": 1.4, "markersize": 9},
    "join link": {"linestyle": "none", "mfc": "none", "markeredgewidth": 1.4, "markersize": 10},
}
"""How a system differs in its look, by `Setting.variant`."""
DODGE_MS = 1.2
"""Systems stand this far beside each other at the same round trip, since many take the same time."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What stands on the vertical axis."""

    name: str
    of: Callable[[Row], float]  # in seconds
    span: Callable[[Row], tuple[float, float]] | None = None


TOKEN = Quantity(
    "time per token (ms)", lambda row: row.token_s, lambda row: (row.token_s_p25, row.token_s_p75)
)
FIRST = Quantity("time to first token (ms)", lambda row: row.ttft_s)


def plot_latency(cells: Sequence[Cell], path: Path, quantity: Quantity) -> None:
    """A plot for each decode pace and temperature, side by side. Raises TandemError if it cannot be written.

    cells: one at least; with a single round trip they are bars. The vertical axis is logarithmic where values lie more
    than eight-fold apart.
    """
    from matplotlib.figure import Figure

    panels = _panels(cells)
    if len({cell.setting.rtt_s for cell in cells}) == 1:
        _plot_bars(panels, path, quantity)
        return
    figure = Figure(figsize=(max(7.5, 5.0 * len(panels)), 5.8), dpi=130, layout="constrained")
    plots = figure.subplots(1, len(panels), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for plot, (title, members) in zip(plots, panels.items(), strict=True):
        _draw(plot, members, quantity, handles)
        plot.set_title(title, fontsize=10, loc="left")
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3 if len(panels) == 1 else 5,
        frameon=False,
        fontsize=9,
    )
    save(figure, path)


def _plot_bars(panels: dict[str, list[Cell]], path: Path, quantity: Quantity) -> None:
    """A bar for each system, the first of the table on top, with the quartiles of its runs."""
    from matplotlib.figure import Figure

    num_bars = max(len(_lines(members)) for members in panels.values())
    size = (max(7.5, 5.5 * len(panels)), 1.6 + 0.42 * num_bars)
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    plots = figure.subplots(1, len(panels), squeeze=False)[0]
    for plot, (title, members) in zip(plots, panels.items(), strict=True):
        _draw_bars(plot, members, quantity)
        plot.set_title(f"{title}, RTT {1e3 * members[0].setting.rtt_s:g} ms", fontsize=10, loc="left")
    save(figure, path)


def _draw_bars(plot: Any, cells: Sequence[Cell], quantity: Quantity) -> None:
    lines = _lines(cells)
    for place, ((variant, system), points) in enumerate(lines.items()):
        row = points[-1][1]
        value_ms = 1e3 * quantity.of(row)
        plot.barh(place, value_ms, 0.7, color=LOOK[system]["color"], alpha=0.5 if variant else 1.0)
        end_ms = value_ms
        if quantity.span is not None and row.num_runs > 1:
            low_ms, end_ms = (1e3 * each for each in quantity.span(row))
            plot.hlines(place, low_ms, end_ms, color="black", lw=1.2)
        if isfinite(value_ms):
            plot.annotate(f"{value_ms:.1f}", (max(value_ms, end_ms), place), (4, 0), textcoords="offset points",
                          va="center", fontsize=9)  # fmt: skip
    names = [label_of(system, variant) for variant, system in lines]
    plot.set_yticks(range(len(names)), names, fontsize=9)
    plot.invert_yaxis()
    plot.margins(x=0.12)
    plot.set_xlim(left=0)
    plot.set_xlabel(quantity.name)
    plot.grid(axis="x", alpha=0.3)
    plot.set_axisbelow(True)
    plot.spines[["top", "right"]].set_visible(False)


def _panels(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells by what a panel holds constant."""
    panels: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=_panel_order):
        panels.setdefault(_title(cell.setting), []).append(cell)
    return panels


def _panel_order(cell: Cell) -> tuple[bool, bool, float]:
    setting = cell.setting
    return setting.models == "half", setting.floors_s is None, setting.temperature


def _title(setting: Setting) -> str:
    text = f"temperature {setting.temperature:g}, {floors_text(setting.floors_s)}"
    return text if setting.models == "configured" else f"half accepted, {text}"


def _draw(plot: Any, cells: Sequence[Cell], quantity: Quantity, handles: dict[str, Any]) -> None:
    seen: list[float] = []
    for (variant, system), points in _lines(cells).items():
        points.sort(key=lambda point: point[0])
        label = label_of(system, variant)
        look = {"markersize": 6, **LOOK[system], **VARIANTS[variant]}
        aside_ms = DODGE_MS * (list(LOOK).index(system) - len(LOOK) / 2)
        at_ms = [1e3 * rtt_s + aside_ms for rtt_s, _ in points]
        values = [1e3 * quantity.of(row) for _, row in points]
        handles[label] = plot.plot(at_ms, values, label=label, **look)[0]
        _whiskers(plot, at_ms, [row for _, row in points], quantity, look["color"])
        seen += [value for value in values if isfinite(value) and value > 0]
    if seen and max(seen) > 8 * min(seen):
        plot.set_yscale("log")
        plot.yaxis.set_major_formatter("{x:g}")
        plot.yaxis.set_minor_formatter("{x:g}")
        plot.grid(which="minor", alpha=0.12)
    else:
        plot.set_ylim(bottom=0)
    plot.set(xlabel="injected round trip (ms)", ylabel=quantity.name)
    plot.set_xticks(sorted({1e3 * cell.setting.rtt_s for cell in cells}))
    plot.grid(alpha=0.3)
    plot.spines[["top", "right"]].set_visible(False)


def label_of(system: str, variant: str) -> str:
    """As legends have it. variant: see `Setting.variant`."""
    return f"{system}, {variant}" if variant else system


def _lines(cells: Sequence[Cell]) -> dict[tuple[str, str], list[tuple[float, Row]]]:
    """Round trip and row of each system, by `Setting.variant` and its name."""
    found: dict[tuple[str, str], list[tuple[float, Row]]] = {}
    for cell in cells:
        for system, row in rows_of(cell).items():
            found.setdefault((cell.setting.variant, system), []).append((cell.setting.rtt_s, row))
    return found


def _whiskers(plot: Any, at_ms: list[float], rows: Sequence[Row], quantity: Quantity, colour: str) -> None:
    """From the 25 % to the 75 % quantile."""
    if quantity.span is not None:
        low, high = zip(*map(quantity.span, rows), strict=True)
        plot.vlines(at_ms, [1e3 * each for each in low], [1e3 * each for each in high], color=colour, lw=1.2)
