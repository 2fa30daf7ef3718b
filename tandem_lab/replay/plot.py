"""The picture of a replay: the latency of every token above, the link below, between them how long proposals were.

Knows what was recorded. Needs matplotlib (the extra `lab`) when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem_lab.plots import check_matplotlib, save

if TYPE_CHECKING:
    from tandem_lab.replay.records import Replay, TokenRecord

DRAFTERS = {
    "both": ("both drafts accepted", "#009e73", "o"),
    "device": ("only the device's", "#0072b2", "s"),
    "cloud": ("only the cloud's", "#d55e00", "^"),
    "neither": ("neither", "black", "X"),
    "alone": ("by the device alone", "#cc79a7", "D"),
}
"""Label, colour and marker; colours of Okabe and Ito, told apart by the colour-blind, and shapes besides."""
OWN_TOKENS = {"device": "the device's drafts", "neither": "the cloud's own"}
"""Labels where the cloud's model alone decides."""
FIRST = ("first token of an answer", "#888888", "*")
INJECTED, SEEN, LOSS = "black", "#56b4e9", "#e69f00"
FLOOR_MS = 0.1
"""Tokens that came in one batch are shown this far apart."""
MIN_WIDTH, MAX_WIDTH, SECOND_WIDTH = 11.0, 18.0, 0.2
MINOR_LABELS = 1000.0
"""From this ratio of the longest to the shortest time on, labels between powers of ten would overlap."""
RATE_WIDTH = 0.045
"""Share of the plot's width that the scale of the rate takes beside it."""


def plot_replay(replay: Replay, path: str | Path, *, title: str, setup: str = "", mode: str = "dual") -> None:
    """Draw a replay into `path` (png, pdf or svg).

    Above, each token where it was committed, by how long it took since the token before it; below, the link. setup: a
    line below the title. mode: of the answers. Raises TandemError without matplotlib, or if the file cannot be written.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    width = min(MAX_WIDTH, max(MIN_WIDTH, SECOND_WIDTH * replay.took_s))
    figure = Figure(figsize=(width, 7.2), dpi=130, layout="constrained")
    above, below = plots = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    tokens = replay.tokens()
    for axes in plots:
        _draw_losses(axes, replay)
    _draw_latencies(above, tokens, OWN_TOKENS if mode == "speculative" else {})
    _draw_answers(above, replay)
    _draw_end(above, replay)
    _draw_latency_axis(above)
    _draw_link(below, replay)
    has_rates = any(row.shape.rate_bits_per_s for row in replay.rows)
    if has_rates:
        _draw_rates(below, replay)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, parse_math=False)
    above.set_title(setup, loc="left", fontsize=10, color="#555555", parse_math=False)
    below.set_xlabel("time since the trace began (s)", fontsize=11)
    below.set_xlim(0, max(replay.took_s, 0.1) * 1.01)
    for axes in plots:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=10)
        if axes.get_legend_handles_labels()[0]:
            beside = RATE_WIDTH if has_rates and axes is below else 0.0
            place = {"loc": "upper left", "bbox_to_anchor": (1.005 + beside, 1.0), "borderaxespad": 0.0}
            axes.legend(**place, frameon=False, fontsize=10)
    save(figure, path)


def _draw_latencies(axes: Any, tokens: Sequence[TokenRecord], labels: Mapping[str, str]) -> None:
    """On a scale that shows both a millisecond and an outage. labels: other ones than those of DRAFTERS."""
    for drafter, (label, colour, marker) in DRAFTERS.items():
        _points(
            axes,
            [token for token in tokens if token.step and token.drafter == drafter],
            labels.get(drafter, label),
            colour,
            marker,
        )
    label, colour, marker = FIRST
    _points(axes, [token for token in tokens if not token.step], label, colour, marker)


def _draw_latency_axis(axes: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter("{x:g}" if high < MINOR_LABELS * low else "")
    axes.tick_params(axis="y", which="minor", labelsize=8)
    axes.set_ylabel("since the token before (ms)", fontsize=11)


def _points(axes: Any, tokens: Sequence[TokenRecord], label: str, colour: str, marker: str) -> None:
    if not tokens:
        return
    at_s = [token.committed_s for token in tokens]
    latencies_ms = [max(FLOOR_MS, 1e3 * token.latency_s) for token in tokens]
    axes.plot(
        at_s, latencies_ms, marker, color=colour, ms=9 if marker == "*" else 6.5, mec="white", mew=0.5, ls="", zorder=3,
        label=f"{label} ({len(tokens)})",
    )  # fmt: skip


def _draw_answers(axes: Any, replay: Replay) -> None:
    """A line where each question was asked."""
    for number, asked in enumerate(replay.asked):
        label = "a question is asked" if number == 0 else None
        axes.axvline(asked.opened_s, color="#bbbbbb", lw=0.9, ls=(0, (1, 2)), zorder=1, label=label)


def _draw_end(axes: Any, replay: Replay) -> None:
    if replay.note:
        axes.axvline(replay.trace.end_s, color=INJECTED, lw=1.1, ls="--", zorder=1, label="the trace ends")


def _draw_link(axes: Any, replay: Replay) -> None:
    times_s = [*(row.time_s for row in replay.rows), replay.took_s]
    rtts_ms = [1e3 * row.shape.rtt_s for row in replay.rows]
    if rtts_ms:
        axes.step(
            times_s, [*rtts_ms, rtts_ms[-1]], where="post", color=INJECTED, lw=1.4, label="injected", zorder=3
        )
    axes.plot(
        [reply.sent_s for reply in replay.replies],
        [1e3 * reply.rtt_s for reply in replay.replies],
        "o", color=SEEN, ms=3, label="seen by ping", zorder=2,
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_ylabel("RTT (ms)", fontsize=11)


def _draw_rates(axes: Any, replay: Replay) -> None:
    """The rate of the link on a second scale, with gaps where it has no limit."""
    times_s = [*(row.time_s for row in replay.rows), replay.took_s]
    rates = [nan if (rate := row.shape.rate_bits_per_s) is None else rate / 1e6 for row in replay.rows]
    other = axes.twinx()
    other.step(times_s, [*rates, rates[-1]], where="post", color=LOSS, lw=1.4, ls="--")
    other.set_yscale("log")
    other.yaxis.set_major_formatter("{x:g}")
    other.set_ylabel("rate (Mbit/s)", fontsize=11, color=LOSS)
    other.spines[["top"]].set_visible(False)


def _draw_losses(axes: Any, replay: Replay) -> None:
    """Shaded where the link loses packets, darker where it loses more."""
    seen: set[float] = set()
    for start_s, end_s, loss in _losses(replay):
        label = None if loss in seen else f"{100 * loss:g} % lost"
        axes.axvspan(start_s, end_s, color=LOSS, alpha=0.12 + 0.28 * loss, lw=0, zorder=0, label=label)
        seen.add(loss)


def _losses(replay: Replay) -> Iterator[tuple[float, float, float]]:
    ends_s = [*(row.time_s for row in replay.rows[1:]), replay.took_s]
    for row, end_s in zip(replay.rows, ends_s, strict=bool(replay.rows)):
        if row.shape.loss > 0:
            yield row.time_s, end_s, row.shape.loss
