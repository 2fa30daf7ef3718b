"""The picture of an evaluation over the number of documents: perplexity, as in DRAGON Figure 5, and right answers.

Knows rows of a result. Needs matplotlib (the extra `lab`) when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem_lab.plots import save
from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.result import Interval, Result, Row

STYLES = {  # of Okabe and Ito, told apart by the colour-blind
    "none": ("#666666", "", ":"),
    "rag": ("#e69f00", "D", "--"),
    "rag-each": ("#d55e00", "D", ":"),
    "rag-right": ("#000000", "^", ":"),
    "crcg-device": ("#56b4e9", "s", "--"),
    "crcg-cloud": ("#e69f00", "s", "--"),
    "drcg": ("#000000", "D", "--"),
    "device": ("#0072b2", "v", "-"),
    "cloud": ("#d55e00", "^", "-"),
    "static": ("#cc79a7", "o", "-"),
    "evidence": ("#009e73", "o", "-"),
    "both": ("#009e73", "s", "-"),
    "joined": ("#009e73", "v", ":"),
    "dynamic": ("#56b4e9", "o", "-"),
    "oracle": ("#666666", "x", "-."),
}
"""Colour, marker and line of each method: context aggregation is dashed."""


def plot_evaluation(result: Result, path: str | Path) -> None:
    """Draw a result into `path` (png, pdf or svg). Raises TandemError if it cannot be written."""
    from matplotlib.figure import Figure

    has_perplexity = all(row.perplexity is not None for row in result.rows)
    has_answers = all(row.right is not None for row in result.rows)
    num_panels = has_perplexity + has_answers
    figure = Figure(figsize=(2.4 + 4.8 * num_panels, 4.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, num_panels, squeeze=False)[0]
    if has_perplexity:
        _panel(panels[0], result, lambda row: (row.perplexity, row.perplexity_interval))
        panels[0].set_ylabel("perplexity" if result.kind == "lm" else "perplexity of the wanted answer")
        _plain_log_scale(panels[0])
    if has_answers:
        _panel(panels[-1], result, _right)
        panels[-1].set_ylabel("right answers")
        panels[-1].set_ylim(-0.02, 1.02)
    panels[0].legend(frameon=False, fontsize=8)
    save(figure, path)


def _right(row: Row) -> tuple[float, Interval]:
    assert row.right is not None
    return row.right.value, row.right.interval


def _panel(axes: Any, result: Result, value: Any) -> None:
    """One line per method with its interval as a band; points without a line where there is one number only."""
    counts = _counts(result)
    for name in dict.fromkeys(row.method for row in result.rows):
        rows: Sequence[Row] = [row for row in result.rows if row.method == name]
        colour, marker, line = STYLES[name]
        points = [value(row) for row in rows]
        x = [counts.index(row.counts) for row in rows]
        middle, intervals = zip(*points, strict=True)
        axes.plot(x, middle, line, marker=marker or None, color=colour, ms=4, lw=1.4, label=rows[0].label)
        if None in intervals:
            continue
        low, high = zip(*intervals, strict=True)
        axes.fill_between(x, low, high, color=colour, alpha=0.12, lw=0)
        if len(rows) == 1:
            axes.errorbar(x, middle, [[middle[0] - low[0]], [high[0] - middle[0]]], color=colour, capsize=3)
    axes.set_xticks(range(len(counts)), [f"{each.device} + {each.cloud}" for each in counts])
    axes.set_xlabel("documents, device + cloud")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _counts(result: Result) -> list[Counts]:
    """The numbers of documents in their order, each with a place of its own on the axis."""
    return sorted(
        {row.counts for row in result.rows}, key=lambda counts: (counts.device + counts.cloud, counts.device)
    )


def _plain_log_scale(axes: Any) -> None:
    """A logarithmic scale whose numbers are written out."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axes.get_ylim()
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(
        MaxNLocator(7) if high < 10 * max(low, high / 1e6) else LogLocator(subs=(1, 2, 5))
    )
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
