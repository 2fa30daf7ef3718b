"""Pictures of federated decoding: time per token over the round trip, and what truncating votes costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tandem_lab.federated.rows import rows_of
from tandem_lab.latency.records import Cell
from tandem_lab.plots import save
from tandem_lab.speculative.plot import draw_over_round_trips

# Okabe and Ito's colours, told apart by the colour-blind; marker and dash say the same once more.
LOOK: dict[str, dict[str, Any]] = {
    "token-wise": {"color": "#000000", "marker": "X", "linestyle": ":"},
    "stop_and_wait": {"color": "#56b4e9", "marker": "v", "linestyle": "-"},
    "pipelined": {"color": "#009e73", "marker": "o", "linestyle": "-"},
    "stop_and_wait/best": {"color": "#56b4e9", "marker": "v", "linestyle": "--"},
    "pipelined/best": {"color": "#cc3377", "marker": "D", "linestyle": "--"},
}
TRUNCATION_LOOK: dict[str, dict[str, Any]] = {
    "bound": {"color": "#000000", "linestyle": ":"},
    "sharper": {"color": "#777777", "linestyle": "--", "zorder": 3},
    "renormalised": {"color": "#0072b2", "marker": "s"},
    "residual": {"color": "#d55e00", "marker": "o"},
}
TRUNCATION_NAMES = {
    "bound": "bound, Theorems 2 and 3",
    "sharper": "sharper bound of the residual",
    "renormalised": "renormalised",
    "residual": "residual",
}


def plot_times(cells: Sequence[Cell], path: Path) -> None:
    """Milliseconds per token, a plot for each number of workers, measured; predicted as thin lines.

    Raises TandemError if it cannot be written.
    """
    from matplotlib.figure import Figure

    kinds = sorted({(cell.setting.num_workers, cell.setting.slow) for cell in cells})
    figure = Figure(figsize=(4.0 * len(kinds), 3.9), dpi=120, layout="constrained")
    plots = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
    handles: dict[str, Any] = {}
    for plot, (num_workers, slow) in zip(plots, kinds, strict=True):
        members = [
            cell for cell in cells if (cell.setting.num_workers, cell.setting.slow) == (num_workers, slow)
        ]
        draw_over_round_trips(plot, members, rows_of, LOOK, lambda token_s: 1e3 * token_s, handles)
        title = f"{num_workers} workers" + ("" if slow == 1.0 else f", one {slow:g} times as slow")
        plot.set_title(title, fontsize=10, loc="left")
    # Of all plots, once everything is drawn: a limit that is set ends their common scaling.
    plots[0].set(ylabel="ms per token", ylim=(0, None))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    save(figure, path)


def plot_truncation(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Error of the target and change of the acceptance over K, a column for each number of workers.

    Temperature 1 in full, the others as thin lines. rows: by `workers`, `T` and `K`, with the errors, bounds and
    changes of `benchmarks/truncated_votes.py`. Raises TandemError if it cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    numbers = sorted({row["workers"] for row in rows})
    figure = Figure(figsize=(4.0 * len(numbers), 5.6), dpi=120, layout="constrained")
    plots = figure.subplots(2, len(numbers), squeeze=False, sharex=True, sharey="row")
    handles: dict[str, Any] = {}
    for column, number in enumerate(numbers):
        members = [row for row in rows if row["workers"] == number]
        for temperature in sorted({row["T"] for row in members}):
            points = sorted((row for row in members if row["T"] == temperature), key=lambda row: row["K"])
            kept = [row["K"] for row in points]
            for name, look in TRUNCATION_LOOK.items():
                style = look if temperature == 1.0 else look | {"lw": 0.6, "alpha": 0.6, "marker": ""}
                errors = [row[name] for row in points]
                changes = [row.get(f"{name}, acceptance", row[name] / 2) for row in points]
                for plot, values in zip(plots[:, column], (errors, changes), strict=True):
                    line = plot.plot(kept, values, markersize=4, **style)[0]
                if temperature == 1.0:
                    handles[TRUNCATION_NAMES[name]] = line
        plots[0, column].set_title(f"{number} workers", fontsize=10, loc="left")
        plots[1, column].set_xlabel("K, tokens kept")
    for plot in plots.flat:
        plot.set_xscale("log", base=2)
        plot.xaxis.set_major_formatter(ScalarFormatter())
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
    plots[0, 0].set(ylabel="error of the target (l1)", ylim=(0, None))
    plots[1, 0].set(ylabel="change of the acceptance", ylim=(0, None))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9
    )
    save(figure, path)
