"""Pictures of a benchmark: a line of each system over the round trip, measured and, thin, predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from tandem_lab.bench.records import Cell, Setting, floors_text
from tandem_lab.bench.suite import Row, Suite
from tandem_lab.plots import save

# Okabe and Ito's colours, told apart by the colour-blind; marker and dash say the same once more.
LOOK: dict[str, dict[str, Any]] = {
    "CRCG/device": {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    "CRCG/cloud": {"color": "#d55e00", "marker": "^", "linestyle": "--"},
    "DRCG/Text": {"color": "#56b4e9", "marker": "v", "linestyle": ":"},
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
    "Tandem/mirror/lottery": {"color": "#d55e00", "marker": "D", "linestyle": ":", "mfc": "white"},
    "Tandem/device/lottery": {"color": "#009e73", "marker": "D", "linestyle": ":", "mfc": "white"},
    # modes speculative and federated
    "device": {"color": "#0072b2", "marker": "s", "linestyle": "--"},
    "asked": {"color": "#000000", "marker": "X", "linestyle": ":"},
    "token-wise": {"color": "#000000", "marker": "X", "linestyle": ":"},
    "streamed": {"color": "#d55e00", "marker": "^", "linestyle": "--"},
    "stop_and_wait": {"color": "#56b4e9", "marker": "v", "linestyle": "-"},
    "pipelined": {"color": "#009e73", "marker": "o", "linestyle": "-"},
    "cloud_goes_on": {"color": "#cc3377", "marker": "D", "linestyle": "-", "lw": 2.4, "zorder": 5},
    "stop_and_wait/rejection": {"color": "#56b4e9", "marker": "v", "linestyle": ":", "mfc": "white"},
    "pipelined/rejection": {"color": "#009e73", "marker": "o", "linestyle": ":", "mfc": "white"},
    "cloud_goes_on/rejection": {"color": "#cc3377", "marker": "D", "linestyle": ":", "mfc": "white"},
    "preset/sqs": {"color": "#e69f00", "marker": "<", "linestyle": ":", "mfc": "white"},
    "preset/qs": {"color": "#e69f00", "marker": ">", "linestyle": ":", "mfc": "white"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "join link": {"linestyle": "none", "mfc": "none", "markeredgewidth": 1.4, "markersize": 10},
}
"""How a system differs in its look, by `Setting.variant`."""
DODGE_MS = 1.2
"""Systems of the suite `latency` stand this far beside each other at the same round trip: many take the same time."""

Points = dict[tuple[str, str], list[tuple[float, Row]]]
"""Round trip in seconds, and row, of each system, by `Setting.variant` and its name."""
Value = Callable[[Row], float]
Span = Callable[[Row], tuple[float, float]]


def points_of(suite: Suite, cells: Sequence[Cell]) -> Points:
    """In the order of the table, each by round trip."""
    points: Points = {}
    for cell in sorted(cells, key=lambda cell: cell.setting.rtt_s):
        for system, row in suite.rows_of(cell).items():
            points.setdefault((cell.setting.variant, system), []).append((cell.setting.rtt_s, row))
    return points


def by_panel(cells: Iterable[Cell], panel: Callable[[Setting], Any]) -> dict[Any, list[Cell]]:
    """Cells by what a plot holds constant."""
    panels: dict[Any, list[Cell]] = {}
    for cell in cells:
        panels.setdefault(panel(cell.setting), []).append(cell)
    return panels


def draw(
    plot: Any,
    points: Points,
    handles: dict[str, Any],
    shown: Value,
    *,
    predicted: Value | None = None,
    span: Span | None = None,
    dodge_ms: float = 0.0,
) -> None:
    """A line of each system over the round trip, a thin one of what was predicted, and bars from low to high.

    handles: for the legend, by label; those that are drawn are added.
    """
    order = list(LOOK)
    for (variant, system), rows in points.items():
        label, look = f"{system}, {variant}" if variant else system, LOOK[system] | VARIANTS[variant]
        aside_ms = dodge_ms * (order.index(system) - 7)
        at_ms = [1e3 * rtt_s + aside_ms for rtt_s, _ in rows]
        handles[label] = plot.plot(at_ms, [shown(row) for _, row in rows], label=label, **look)[0]
        if predicted is not None:
            told = [predicted(row) if isfinite(row.predicted_s) else None for _, row in rows]
            plot.plot(at_ms, told, color=look["color"], lw=0.6, alpha=0.6)
        if span is not None:
            plot.vlines(
                at_ms, *zip(*(span(row) for _, row in rows), strict=True), color=look["color"], lw=1.2
            )
    plot.set(xlabel="injected round trip (ms)")
    plot.set_xticks(sorted({1e3 * rtt_s for rows in points.values() for rtt_s, _ in rows}))
    tidy(plot)


def tidy(plot: Any) -> None:
    """What all plots have."""
    plot.grid(alpha=0.3)
    plot.spines[["top", "right"]].set_visible(False)


def finish(figure: Any, handles: Mapping[str, Any], columns: int, path: Path) -> None:
    """The legend below all plots, and the file. Raises TandemError."""
    place = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": 9}
    figure.legend(handles.values(), handles.keys(), **place)
    save(figure, path)


def plot_latency(suite: Suite, cells: Sequence[Cell], folder: Path) -> None:
    """Time per token and time to first token, a plot for each decode pace and temperature. Raises TandemError.

    The vertical axis is logarithmic where values lie more than eight-fold apart.
    """
    from matplotlib.figure import Figure

    def order(cell: Cell) -> tuple[bool, bool, float]:
        setting = cell.setting
        return setting.models == "half", setting.floors_s is None, setting.temperature

    panels = by_panel(sorted(cells, key=order), _title)
    quantities: tuple[tuple[str, str, Value, Span | None], ...] = (
        ("latency.png", "time per token (ms)", lambda row: 1e3 * row.token_s, _quartiles_ms),
        ("ttft.png", "time to first token (ms)", lambda row: 1e3 * row.first_s, None),
    )
    for name, label, value, span in quantities:
        figure = Figure(figsize=(max(7.5, 5.0 * len(panels)), 5.8), dpi=130, layout="constrained")
        handles: dict[str, Any] = {}
        for plot, (title, members) in zip(_row_of_plots(figure, len(panels)), panels.items(), strict=True):
            points = points_of(suite, members)
            draw(plot, points, handles, value, span=span, dodge_ms=DODGE_MS)
            seen = [value(row) for rows in points.values() for _, row in rows if value(row) > 0]
            if seen and max(seen) > 8 * min(seen):
                plot.set_yscale("log")
                plot.yaxis.set_major_formatter("{x:g}")
                plot.yaxis.set_minor_formatter("{x:g}")
                plot.grid(which="minor", alpha=0.12)
            else:
                plot.set_ylim(bottom=0)
            plot.set(ylabel=label)
            plot.set_title(title, fontsize=10, loc="left")
        finish(figure, handles, 3 if len(panels) == 1 else 5, folder / name)


def _title(setting: Setting) -> str:
    text = f"temperature {setting.temperature:g}, {floors_text(setting.floors_s)}"
    return text if setting.models == "configured" else f"half accepted, {text}"


def _quartiles_ms(row: Row) -> tuple[float, float]:
    return 1e3 * row.token_s_p25, 1e3 * row.token_s_p75


def _row_of_plots(figure: Any, count: int, **shared: bool) -> Any:
    return figure.subplots(1, count, squeeze=False, **shared)[0]


def plot_throughput(suite: Suite, cells: Sequence[Cell], folder: Path) -> None:
    """Tokens per second, a plot for each rate and temperature. Raises TandemError."""
    from matplotlib.figure import Figure

    panels = by_panel(cells, lambda setting: (setting.temperature, setting.bits_per_s))
    temperatures, rates = (list(dict.fromkeys(keys)) for keys in zip(*panels, strict=True))
    width = max(3.8 * len(rates), 8.0)
    columns = min(5, int(width / 2.6))  # of names such as "stop_and_wait/rejection, join link"
    num_lines = len({key for members in panels.values() for key in points_of(suite, members)})
    height = 3.4 * len(temperatures) + 0.2 + 0.2 * ceil(num_lines / columns)
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    plots = figure.subplots(len(temperatures), len(rates), squeeze=False)
    handles: dict[str, Any] = {}
    for plot, (temperature, rate) in zip(plots.flat, product(temperatures, rates), strict=True):
        points = points_of(suite, panels.get((temperature, rate), []))
        draw(plot, points, handles, lambda row: 1 / row.token_s, predicted=lambda row: 1 / row.predicted_s)
        plot.set(ylabel="tokens per second", ylim=(0, None))
        title = "unlimited" if rate is None else f"{rate / 1e3:g} kbit/s"
        plot.set_title(f"{title}, T {temperature:g}", fontsize=10, loc="left")
    finish(figure, handles, columns, folder / "throughput.png")


def plot_times(suite: Suite, cells: Sequence[Cell], folder: Path) -> None:
    """Milliseconds per token, a plot for each number of workers. Raises TandemError."""
    from matplotlib.figure import Figure

    panels = sorted(by_panel(cells, lambda setting: (setting.num_workers, setting.slow)).items())
    figure = Figure(figsize=(4.0 * len(panels), 3.9), dpi=120, layout="constrained")
    plots, handles = _row_of_plots(figure, len(panels), sharey=True), dict[str, Any]()
    for plot, ((num_workers, slow), members) in zip(plots, panels, strict=True):
        points = points_of(suite, members)
        draw(
            plot, points, handles, lambda row: 1e3 * row.token_s, predicted=lambda row: 1e3 * row.predicted_s
        )
        title = f"{num_workers} workers" + ("" if slow == 1.0 else f", one {slow:g} times as slow")
        plot.set_title(title, fontsize=10, loc="left")
    # Of all plots, once everything is drawn: a limit that is set ends their common scaling.
    plots[0].set(ylabel="ms per token", ylim=(0, None))
    finish(figure, handles, 3, folder / "times.png")
