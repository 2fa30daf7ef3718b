"""A picture of federated decoding: time per token over the round trip, for each number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.lab.federated.rows import rows_of
from tandem.lab.latency.records import Cell
from tandem.lab.plots import save
from tandem.lab.speculative.plot import draw_over_round_trips

# Okabe and Ito's colours, told apart by the colour-blind; marker and dash say the same once more.
LOOK: dict[str, dict[str, Any]] = {
    "token-wise": {"color": "#000000", "marker": "X", "linestyle": ":"},
    "stop_and_wait": {"color": "#56b4e9", "marker": "v", "linestyle": "-"},
    "pipelined": {"color": "#009e73", "marker": "o", "linestyle": "-"},
    "stop_and_wait/best": {"color": "#56b4e9", "marker": "v", "linestyle": "--"},
    "pipelined/best": {"color": "#cc3377", "marker": "D", "linestyle": "--"},
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
