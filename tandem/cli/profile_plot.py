"""The picture of `tandem profile`: measured decode times over context length, and the line of each party."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.cli.output import plural
from tandem.errors import TandemError, install_line
from tandem.topology import Party

if TYPE_CHECKING:
    from tandem.profiler.offline import StoredProfile

KINDS = (".png", ".pdf", ".svg")
"""Endings of the files that can be written."""
COLOURS = {Party.DEVICE: ("#0072b2", "o"), Party.CLOUD: ("#d55e00", "^")}  # told apart without colours too
SHOWN = 0.995
"""Share of the points that the vertical axis must hold; what lies above is counted in the legend."""


def check_target(path: Path) -> None:
    """Raises TandemError if no plot can be written to `path`."""
    if find_spec("matplotlib") is None:
        raise TandemError(
            f"A plot needs matplotlib, which is not installed; run `{install_line('lab')}`, or omit --plot."
        )
    if path.suffix.lower() not in KINDS:
        raise TandemError(f"A plot is written as one of {', '.join(KINDS)} (got {path.name!r}); rename it.")
    if not os.access(path.parent, os.W_OK):
        raise TandemError(f"The plot cannot be written into the folder {path.parent}; choose another.")


def draw(profiles: Mapping[Party, StoredProfile], path: Path) -> None:
    """Writes the picture. Raises TandemError if the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    top_ms = max(_high_ms(stored) for stored in profiles.values())
    for party, stored in profiles.items():
        _draw_party(axes, party, stored, top_ms)
    axes.set_xlabel("context length (tokens)")
    axes.set_ylabel("time for one token (ms)")
    axes.set_ylim(0, top_ms)
    axes.set_title(_title(profiles), fontsize=10, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False, fontsize=9, markerscale=1.6)
    axes.margins(x=0.01)
    try:
        figure.savefig(path)
    except OSError as error:
        raise TandemError(
            f"The plot cannot be written to {path} ({error.strerror}); choose another file."
        ) from None


def _draw_party(axes: Any, party: Party, stored: StoredProfile, top_ms: float) -> None:
    profile, line = stored.profile, stored.profile.line
    colour, marker = COLOURS[party]
    times_ms = [seconds * 1e3 for seconds in profile.seconds]
    label = f"{party}, {plural(profile.rows, 'row')}: median of {plural(profile.runs, 'run')}"
    num_above = sum(time_ms > top_ms for time_ms in times_ms)
    if num_above:
        label += f" ({plural(num_above, 'point')} above)"
    axes.plot(profile.lengths, times_ms, marker, color=colour, alpha=0.5, ms=3.5, mew=0, label=label)
    ends = [line.start, profile.lengths[-1]]
    start_ms, more_ms = line.predict(line.start) * 1e3, line.slope * 1e6
    line_label = f"line: {start_ms:.2f} ms at {line.start:.0f} tokens, {more_ms:+.2f} ms per 1000 more"
    axes.plot(ends, [line.predict(t) * 1e3 for t in ends], color=colour, lw=1.8, label=line_label)


def _high_ms(stored: StoredProfile) -> float:
    """Top of the axis for one party, in milliseconds."""
    ordered = sorted(stored.profile.seconds)
    return 1.25e3 * ordered[min(len(ordered) - 1, int(SHOWN * len(ordered)))]


def _title(profiles: Mapping[Party, StoredProfile]) -> str:
    models = " and ".join(dict.fromkeys(Path(stored.model).name for stored in profiles.values()))
    machines = " and ".join(dict.fromkeys(stored.key.machine for stored in profiles.values()))
    return f"Decode time of {models} on {machines}"
