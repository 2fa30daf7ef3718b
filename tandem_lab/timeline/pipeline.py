"""The picture of one answer's pipeline: who drafted, sent, awaited and committed what, as in DRAGON Figure 9.

Knows timelines only. Needs matplotlib (the extra `lab`) when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem.errors import TandemError, install_line
from tandem.events import PlacementEvent
from tandem.topology import PARTIES, Party
from tandem_lab.plots import save
from tandem_lab.timeline.intervals import Span, StepTimes, Timeline

COLOURS = {
    Party.DEVICE: "#0072b2",
    Party.CLOUD: "#d55e00",
}  # of Okabe and Ito, told apart by the colour-blind
VERDICT = "#666666"
COMMITS = {
    (True, True): ("both accepted", "#009e73", "o"),
    (True, False): ("device's accepted", COLOURS[Party.DEVICE], "s"),
    (False, True): ("cloud's accepted", COLOURS[Party.CLOUD], "^"),
    (False, False): ("neither", "black", "X"),
}
"""Label, colour and marker by (device accepted, cloud accepted)."""
BAR = {Party.CLOUD: 0.82, Party.DEVICE: 0.0}
BAR_HEIGHT = 0.18
HANDOVERS = {Party.CLOUD: "^", Party.DEVICE: "v"}
HANDOVER_Y, COMMIT_Y, STRIP_Y, STRIP_HEIGHT = 1.06, -0.13, -0.33, 0.05
MIN_WIDTH, MAX_WIDTH, STEP_WIDTH = 12.0, 40.0, 0.4
"""Inches: of a picture, and of a step in it."""
MARGIN_WIDTH = 3.4
"""Inches that names and legends take."""
DIGIT_WIDTH = 0.085
"""Inches: a bar that is too narrow for its step's number has none."""


def check_matplotlib() -> None:
    """Raises TandemError if pictures cannot be drawn here."""
    if find_spec("matplotlib") is None:
        raise TandemError(f"A plot needs matplotlib, which is not installed; run `{install_line('lab')}`.")


def plot_pipeline(
    timeline: Timeline,
    path: str | Path,
    *,
    title: str = "Generation pipeline",
    steps: tuple[int, int] | None = None,
) -> None:
    """Draw a timeline into `path` (png, pdf or svg).

    From top to bottom: cloud and device with what crosses the link between them, commits and who aggregated; round
    trip; delta Z; accumulated acceptance. steps: first and last step to show, None: all. Raises TandemError where
    matplotlib is missing, there is no such step, or the file cannot be written.
    """
    check_matplotlib()
    shown = _shown(timeline, steps)
    from matplotlib.figure import Figure

    width = min(MAX_WIDTH, max(MIN_WIDTH, STEP_WIDTH * len(shown) + 3))
    figure = Figure(figsize=(width, 8.4), dpi=130, layout="constrained")
    panels = figure.subplots(4, 1, sharex=True, height_ratios=(4.2, 1, 1.2, 1.2))
    start_s, end_s = _limits(shown)
    _draw_pipeline(
        panels[0], timeline, shown, digit_s=DIGIT_WIDTH * (end_s - start_s) / (width - MARGIN_WIDTH)
    )
    _draw_rtt(panels[1], shown)
    _draw_delta_z(panels[2], shown)
    _draw_acceptance(panels[3], shown)
    for panel in panels:
        _finish(panel)
    panels[0].set_xlim(start_s, end_s)
    panels[0].set_title(title, loc="left", fontsize=13, parse_math=False)
    panels[3].set_xlabel("time since the query was opened on the device (s)", fontsize=11)
    save(figure, path)


# ---- panels --------------------------------------------------------------------------------------------------


def _draw_pipeline(axes: Any, timeline: Timeline, steps: Sequence[StepTimes], digit_s: float) -> None:
    """digit_s: the time that is as wide as a digit."""
    for party in PARTIES:
        for step in steps:
            _draw_draft(axes, step, party, digit_s)
    for step in steps:
        if step.verdict is not None:
            _slant(axes, step.verdict, step.aggregator, color=VERDICT, lw=1.1, ls=(0, (3, 2)), zorder=2)
    _draw_commits(axes, steps)
    _draw_aggregator(axes, timeline, steps)
    for handover in timeline.handovers:
        _draw_handover(axes, handover, steps)
    if not any(step.cloud.decode for step in steps):
        place = (0.5, BAR[Party.CLOUD] + BAR_HEIGHT / 2)
        note, how = "not seen by the device", {"ha": "center", "va": "center", "fontsize": 10}
        axes.text(*place, note, color="#888888", transform=axes.get_yaxis_transform(), **how)
    axes.set_ylim(STRIP_Y - 0.1, 1.12)
    middles = [BAR[party] + BAR_HEIGHT / 2 for party in (Party.CLOUD, Party.DEVICE)]
    ticks = [*middles, COMMIT_Y, STRIP_Y]
    axes.set_yticks(ticks, ["cloud decodes", "device decodes", "commits", "aggregator"], fontsize=11)
    axes.tick_params(axis="y", length=0)
    _legend(axes, _keys(timeline, steps))


def _draw_draft(axes: Any, step: StepTimes, party: Party, digit_s: float) -> None:
    """A bar for the decoding, filled if the draft was accepted, and a line for its way."""
    draft, colour = step.draft(party), COLOURS[party]
    if draft.link is not None:
        _slant(axes, draft.link, party, color=colour, lw=1.3, alpha=0.45, zorder=1)
    if draft.decode is None:
        return
    start_s, width_s = draft.decode.start_s, draft.decode.end_s - draft.decode.start_s
    face = colour if draft.is_accepted else "white"
    bar = {"facecolor": face, "edgecolor": colour if face == "white" else "white", "lw": 1.0}
    axes.broken_barh([(start_s, width_s)], (BAR[party], BAR_HEIGHT), zorder=3, **bar)
    if width_s > digit_s * len(str(step.step)):
        text_colour = "white" if draft.is_accepted else colour
        place = (start_s + width_s / 2, BAR[party] + BAR_HEIGHT / 2)
        text = axes.text(
            *place, str(step.step), color=text_colour, fontsize=8, ha="center", va="center", zorder=4
        )
        text.set_clip_on(True)


def _slant(axes: Any, span: Span, sender: Party, **style: Any) -> None:
    """A line from the sender's bar to the other side's."""
    top, bottom = BAR[Party.CLOUD], BAR[Party.DEVICE] + BAR_HEIGHT
    ends = (top, bottom) if sender is Party.CLOUD else (bottom, top)
    axes.plot((span.start_s, span.end_s), ends, solid_capstyle="butt", **style)


def _draw_commits(axes: Any, steps: Sequence[StepTimes]) -> None:
    for key, (_, colour, marker) in COMMITS.items():
        at_s = [step.committed_s for step in steps if _key(step) == key]
        axes.plot(at_s, [COMMIT_Y] * len(at_s), marker, color=colour, ms=7, mec="white", mew=0.5, zorder=4)


def _draw_aggregator(axes: Any, timeline: Timeline, steps: Sequence[StepTimes]) -> None:
    """A strip that shows, for each step, who decided it: the cloud in its upper half, the device in its lower."""
    start_s = _limits(steps)[0]
    for step in steps:
        for party in PARTIES:
            if step.aggregator is party or (timeline.placement == "mirror" and not step.is_alone):
                half = (STRIP_Y if party is Party.CLOUD else STRIP_Y - STRIP_HEIGHT, STRIP_HEIGHT)
                axes.broken_barh(
                    [(start_s, step.committed_s - start_s)], half, facecolor=COLOURS[party], lw=0
                )
        start_s = step.committed_s


def _draw_handover(axes: Any, handover: PlacementEvent, steps: Sequence[StepTimes]) -> None:
    """The switch rides in the verdict of the step before."""
    at_s = next((step.committed_s for step in steps if step.step == handover.step - 1), None)
    if at_s is None:
        return
    party = Party(handover.aggregator)
    colour, marker = COLOURS[party], HANDOVERS[party]
    axes.axvline(at_s, color=colour, lw=1.2, ls=":", zorder=0)
    axes.plot([at_s], [HANDOVER_Y], marker, color=colour, ms=8)


def _draw_rtt(axes: Any, steps: Sequence[StepTimes]) -> None:
    times_s = [step.committed_s for step in steps]
    axes.plot(
        times_s,
        [1e3 * step.rtt_s for step in steps],
        "o-",
        color="black",
        ms=3,
        lw=0.8,
        label="last measured",
    )
    estimates = [1e3 * step.estimate.rtt_s if step.estimate else float("nan") for step in steps]
    axes.step(times_s, estimates, where="post", color="#cc79a7", lw=1.6, label="profiler's estimate")
    axes.set_ylabel("RTT (ms)", fontsize=11)
    _legend(axes)


def _draw_delta_z(axes: Any, steps: Sequence[StepTimes]) -> None:
    """With the area of each sign in the colour of the side that should aggregate."""
    times_s = [step.committed_s for step in steps]
    values_ms = [1e3 * step.delta_z_s for step in steps]
    for party, is_its in ((Party.CLOUD, 1), (Party.DEVICE, -1)):
        part = [value if value * is_its > 0 else 0.0 for value in values_ms]
        label = f"{party} should aggregate"
        axes.fill_between(times_s, part, step="post", color=COLOURS[party], alpha=0.3, lw=0, label=label)
    axes.step(times_s, values_ms, where="post", color="black", lw=1.2)
    axes.axhline(0, color="black", lw=0.8)
    axes.set_ylabel("ΔZ (ms)", fontsize=11)
    _legend(axes)


def _draw_acceptance(axes: Any, steps: Sequence[StepTimes]) -> None:
    times_s = [step.committed_s for step in steps]
    for party, marker in ((Party.CLOUD, "^"), (Party.DEVICE, "s")):
        shares = [100 * step.draft(party).accepted_share for step in steps]
        axes.plot(
            times_s, shares, marker=marker, ms=3.5, lw=1.3, color=COLOURS[party], label=f"{party}'s drafts"
        )
    axes.set_ylim(-4, 104)
    axes.set_ylabel("accepted\nso far (%)", fontsize=11)
    _legend(axes)


# ---- helpers -------------------------------------------------------------------------------------------------


def _shown(timeline: Timeline, steps: tuple[int, int] | None) -> Sequence[StepTimes]:
    if steps is None:
        found = timeline.steps
    else:
        found = tuple(step for step in timeline.steps if steps[0] <= step.step <= steps[1])
    if not found:
        which = "" if steps is None else f" from {steps[0]} to {steps[1]}"
        raise TandemError(
            f"A plot needs at least one committed token, but of {len(timeline.steps)} there is none{which}; "
            "choose other steps, or ask again."
        )
    return found


def _limits(steps: Sequence[StepTimes]) -> tuple[float, float]:
    """Of the time axis, in seconds: from the first decoding that is shown to the last commit."""
    spans = [step.draft(party).decode for step in steps for party in PARTIES]
    starts = [span.start_s for span in spans if span is not None]
    start_s = min([*starts, steps[0].committed_s])
    end_s = max(step.committed_s for step in steps)
    margin_s = 0.01 * (end_s - start_s) or 0.01
    return max(0.0, start_s - margin_s), end_s + 2 * margin_s


def _key(step: StepTimes) -> tuple[bool, bool]:
    return step.device.is_accepted, step.cloud.is_accepted


def _keys(timeline: Timeline, steps: Sequence[StepTimes]) -> list[Any]:
    """The legend of the pipeline: only of what is in it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: list[Any] = [
        Patch(facecolor="#888888", edgecolor="#888888", label="draft, accepted"),
        Patch(facecolor="white", edgecolor="#888888", label="draft, rejected"),
    ]
    for party in (Party.CLOUD, Party.DEVICE):
        if any(step.draft(party).link is not None for step in steps):
            keys.append(Line2D([], [], color=COLOURS[party], alpha=0.45, label=f"{party}'s draft on its way"))
    if any(step.verdict is not None for step in steps):
        keys.append(Line2D([], [], color=VERDICT, ls=(0, (3, 2)), label="verdict on its way"))
    for key, (label, colour, marker) in COMMITS.items():
        if any(_key(step) == key for step in steps):
            keys.append(Line2D([], [], color=colour, marker=marker, ls="", ms=7, label=f"commit: {label}"))
    for party, marker in HANDOVERS.items():
        if any(handover.aggregator is party for handover in timeline.handovers):
            keys.append(
                Line2D([], [], color=COLOURS[party], marker=marker, ls=":", label=f"handover to the {party}")
            )
    return keys


def _legend(axes: Any, keys: list[Any] | None = None) -> None:
    """Beside the data, never on it."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0}
    axes.legend(**({} if keys is None else {"handles": keys}), **place, frameon=False, fontsize=10)


def _finish(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.tick_params(labelsize=10)
