"""The picture of `tandem lab evolve`: acceptance after each kind of update over the bytes that it sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tandem_lab.evolve.study import UPDATES, Row
from tandem_lab.plots import save

COLOURS = dict(zip(UPDATES, ("#000000", "#cc3377", "#0072b2", "#009e73", "#d55e00"), strict=True))


def plot_updates(rows: Sequence[Row], path: Path) -> None:
    """A group of bars for each version of the target, a bar for each update, a dot for each seed.

    Raises TandemError if it cannot be written.
    """
    from matplotlib.figure import Figure

    versions = [name for name in dict.fromkeys(row.version for row in rows) if name != "base"]
    figure = Figure(figsize=(2.6 * len(versions) + 1.6, 3.6), dpi=120, layout="constrained")
    plot = figure.subplots()
    for place, update in enumerate(UPDATES):
        for number, version in enumerate(versions):
            own = [row for row in rows if (row.version, row.trunk, row.update) == (version, "first", update)]
            if not own:
                continue
            at = number + 0.16 * (place - 2)
            label = update if number == 0 else None
            plot.bar(
                at, fmean(row.coupled for row in own), 0.14, color=COLOURS[update], alpha=0.7, label=label
            )
            plot.plot([at] * len(own), [row.coupled for row in own], "k.", markersize=3)
            plot.annotate(_size(own[0].update_bytes), (at, 0.01), ha="center", fontsize=6, color="white")
    base = [row.coupled for row in rows if (row.version, row.trunk) == ("base", "first")]
    if base:
        plot.axhline(fmean(base), color="grey", linestyle="--", label="before the target changed")
    plot.set(xticks=range(len(versions)), ylim=(0, 1), ylabel="coupled acceptance at T = 1")
    plot.set_xticklabels(versions)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    save(figure, path)


def _size(num_bytes: int) -> str:
    return (
        "0" if not num_bytes else f"{num_bytes / 1e3:.0f}k" if num_bytes < 1e6 else f"{num_bytes / 1e6:.1f}M"
    )
