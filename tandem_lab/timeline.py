"""One answer of both parties as a picture: who drafted, sent and committed what, and when, as in DRAGON Figure 9.

Times are seconds since the query was opened on the device, by the device's clock. What happened on the cloud is
reckoned from when its frames came, half a round trip earlier; what cannot be reckoned is left out. Needs matplotlib
(the extra `lab`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

from tandem.errors import TandemError
from tandem.events import EstimateEvent, Event, PlacementEvent, TokenEvent
from tandem.topology import Party
from tandem_lab.plots import check_matplotlib, save

TOP_DOWN = (Party.CLOUD, Party.DEVICE)
COLOURS = {Party.DEVICE: "#0072b2", Party.CLOUD: "#d55e00"}
"""Of Okabe and Ito, told apart by the colour-blind."""
COMMITS = {
    (True, True): ("both accepted", "#009e73", "o"),
    (True, False): ("device's accepted", COLOURS[Party.DEVICE], "s"),
    (False, True): ("cloud's accepted", COLOURS[Party.CLOUD], "^"),
    (False, False): ("neither", "black", "X"),
}
"""Label, colour and marker by (device accepted, cloud accepted)."""
BAR, BAR_HEIGHT = {Party.CLOUD: 0.82, Party.DEVICE: 0.0}, 0.18
MARKERS = {Party.CLOUD: "^", Party.DEVICE: "v"}
HANDOVER_Y, COMMIT_Y, STRIP_Y, STRIP_HEIGHT = 1.06, -0.13, -0.33, 0.05
MIN_WIDTH, MAX_WIDTH, STEP_WIDTH = 12.0, 40.0, 0.4
"""Inches: of a picture, and of a step in it."""


def plot_pipeline(
    events: Iterable[Event],
    placement: str,
    path: str | Path,
    *,
    title: str = "Generation pipeline",
    steps: tuple[int, int] | None = None,
) -> None:
    """Draw an answer into `path` (png, pdf or svg).

    From top to bottom: cloud and device with what crosses the link between them, commits and who aggregated; round
    trip; delta Z; accumulated acceptance. events: of `Tandem.stream`, of a virtual run, or an answer's `tokens`,
    `estimates` and `placements` one after the other. placement: that was asked for; it says what crossed. steps: first
    and last step to show, None: all. Raises TandemError where matplotlib is missing, there is no such step, or the file
    cannot be written.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    seen = list(events)
    tokens = [event for event in seen if isinstance(event, TokenEvent)]
    first, last = steps or (0, len(tokens))
    shown = [token for token in tokens if first <= token.step <= last]
    if not shown:
        raise TandemError(
            f"A plot needs at least one committed token, but of {len(tokens)} there is none from {first} to {last}; "
            "choose other steps, or ask again."
        )
    width = min(MAX_WIDTH, max(MIN_WIDTH, STEP_WIDTH * len(shown) + 3))
    figure = Figure(figsize=(width, 8.4), dpi=130, layout="constrained")
    panels = figure.subplots(4, 1, sharex=True, height_ratios=(4.2, 1, 1.2, 1.2))
    handovers = [event for event in seen if isinstance(event, PlacementEvent)]
    start_s = _draw_pipeline(panels[0], placement, shown, handovers)
    _draw_estimates(panels[1:3], shown, [event for event in seen if isinstance(event, EstimateEvent)])
    _draw_acceptance(panels[3], tokens, shown)
    for panel in panels:  # legends beside the data, never on it
        handles = {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
        place = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0), "borderaxespad": 0.0}
        panel.legend(handles.values(), handles.keys(), **place, frameon=False, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", alpha=0.25)
    margin_s = 0.01 * (shown[-1].committed_s - start_s)
    panels[0].set_xlim(start_s - margin_s, shown[-1].committed_s + 2 * margin_s)
    panels[0].set_title(title, loc="left", fontsize=13, parse_math=False)
    panels[3].set_xlabel("time since the query was opened on the device (s)", fontsize=11)
    save(figure, path)


def decoded_s(token: TokenEvent, party: Party) -> tuple[float, float]:
    """From when to when a party drafted what was decided on for a step; nan where that is not known."""
    way_s = token.rtt_s / 2 if party is Party.CLOUD else 0.0
    left_s: float = getattr(token, f"{party}_arrived_s") - way_s
    return left_s - getattr(token, f"{party}_decode_s"), left_s


def _draw_pipeline(
    axes: Any, placement: str, tokens: Sequence[TokenEvent], handovers: Sequence[PlacementEvent]
) -> float:
    """Returns when the first draft that is shown began."""
    for token in tokens:
        crosses = {Party.CLOUD: True, Party.DEVICE: placement != Party.DEVICE}
        for party in TOP_DOWN:
            _draw_draft(axes, token, party, crosses=crosses[party] and not token.is_alone)
        if placement != "mirror" and not token.is_alone:
            decider, way_s = Party(token.aggregator), token.rtt_s / 2
            left_s = token.committed_s - (way_s if decider is Party.CLOUD else 0.0)
            look = {"color": "#666666", "lw": 1.1, "ls": (0, (3, 2)), "label": "verdict on its way"}
            _slant(axes, left_s, way_s, decider, **look)
    for key, (label, colour, marker) in COMMITS.items():
        own = [token.committed_s for token in tokens if (token.device_accepted, token.cloud_accepted) == key]
        if own:
            look = {"color": colour, "ls": "", "ms": 7, "mec": "white", "mew": 0.5, "zorder": 4}
            axes.plot(own, [COMMIT_Y] * len(own), marker=marker, label=f"commit: {label}", **look)
    begun_s = [decoded_s(token, party)[0] for token in tokens for party in TOP_DOWN]
    start_s = at_s = min([each_s for each_s in begun_s if isfinite(each_s)], default=tokens[0].committed_s)
    for token in tokens:
        below = STRIP_HEIGHT * (token.aggregator == Party.DEVICE)
        strip = (STRIP_Y - below, STRIP_HEIGHT)
        axes.broken_barh(
            [(at_s, token.committed_s - at_s)], strip, color=COLOURS[Party(token.aggregator)], lw=0
        )
        at_s = token.committed_s
    before = {
        token.step + 1: token.committed_s for token in tokens
    }  # a switch rides in the verdict of the step before
    for handover in handovers:
        if handover.step in before:
            party, moved_s = Party(handover.aggregator), before[handover.step]
            axes.axvline(moved_s, color=COLOURS[party], lw=1.2, ls=":", zorder=0)
            look = {"color": COLOURS[party], "ls": "", "ms": 8, "label": f"handover to the {party}"}
            axes.plot([moved_s], [HANDOVER_Y], marker=MARKERS[party], **look)
    axes.set_ylim(STRIP_Y - 0.1, 1.12)
    ticks = [*(BAR[party] + BAR_HEIGHT / 2 for party in TOP_DOWN), COMMIT_Y, STRIP_Y]
    axes.set_yticks(ticks, ["cloud decodes", "device decodes", "commits", "aggregator"], fontsize=11)
    axes.tick_params(axis="y", length=0)
    return start_s


def _draw_draft(axes: Any, token: TokenEvent, party: Party, *, crosses: bool) -> None:
    """A bar for the decoding, filled if the draft was accepted, and a line for its way."""
    start_s, end_s = decoded_s(token, party)
    if not isfinite(start_s):
        return
    colour, is_accepted = COLOURS[party], getattr(token, f"{party}_accepted")
    face, edge = (colour, "white") if is_accepted else ("white", colour)
    label = f"{party}'s draft, {'accepted' if is_accepted else 'rejected'}"
    bar = {"facecolor": face, "edgecolor": edge, "lw": 1.0, "zorder": 3, "label": label}
    axes.broken_barh([(start_s, end_s - start_s)], (BAR[party], BAR_HEIGHT), **bar)
    look = {"color": edge, "fontsize": 8, "ha": "center", "va": "center", "zorder": 4, "clip_on": True}
    axes.text((start_s + end_s) / 2, BAR[party] + BAR_HEIGHT / 2, str(token.step), **look)
    if crosses:
        look = {"color": colour, "lw": 1.3, "alpha": 0.45, "zorder": 1}
        _slant(axes, end_s, token.rtt_s / 2, party, label=f"{party}'s draft on its way", **look)


def _slant(axes: Any, left_s: float, way_s: float, sender: Party, **style: Any) -> None:
    """A line from the sender's bar to the other side's."""
    ends = BAR[Party.CLOUD], BAR[Party.DEVICE] + BAR_HEIGHT
    axes.plot((left_s, left_s + way_s), ends if sender is Party.CLOUD else ends[::-1], **style)


def _draw_estimates(
    panels: Sequence[Any], tokens: Sequence[TokenEvent], estimates: Sequence[EstimateEvent]
) -> None:
    """The round trip, and delta Z (DRAGON Eq. 8), whose sign has the colour of the side that should aggregate."""
    at_s = [token.committed_s for token in tokens]
    known = {estimate.step: estimate for estimate in sorted(estimates, key=lambda estimate: estimate.step)}
    newest = [max((step for step in known if step <= token.step), default=None) for token in tokens]
    rtts_ms, values_ms = (
        [nan if step is None else 1e3 * getattr(known[step], name) for step in newest]
        for name in ("rtt_s", "delta_z_s")
    )
    look = {"color": "black", "ms": 3, "lw": 0.8}
    panels[0].plot(at_s, [1e3 * token.rtt_s for token in tokens], "o-", label="last measured", **look)
    panels[0].step(at_s, rtts_ms, where="post", color="#cc79a7", lw=1.6, label="profiler's estimate")
    panels[0].set_ylabel("RTT (ms)", fontsize=11)
    for party, sign in ((Party.CLOUD, 1), (Party.DEVICE, -1)):
        part = [value if value * sign > 0 else 0.0 for value in values_ms]
        look = {"color": COLOURS[party], "alpha": 0.3, "lw": 0, "label": f"{party} should aggregate"}
        panels[1].fill_between(at_s, part, step="post", **look)
    panels[1].step(at_s, values_ms, where="post", color="black", lw=1.2)
    panels[1].axhline(0, color="black", lw=0.8)
    panels[1].set_ylabel("ΔZ (ms)", fontsize=11)


def _draw_acceptance(axes: Any, tokens: Sequence[TokenEvent], shown: Sequence[TokenEvent]) -> None:
    """Of each side's drafts so far; steps decided alone are left out."""
    for party, marker in ((Party.CLOUD, "^"), (Party.DEVICE, "s")):
        accepted, shares = list[bool](), dict[int, float]()
        for token in tokens:
            accepted += [] if token.is_alone else [getattr(token, f"{party}_accepted")]
            shares[token.step] = 100 * sum(accepted) / len(accepted) if accepted else nan
        look = {"marker": marker, "ms": 3.5, "lw": 1.3, "color": COLOURS[party], "label": f"{party}'s drafts"}
        axes.plot([token.committed_s for token in shown], [shares[token.step] for token in shown], **look)
    axes.set_ylim(-4, 104)
    axes.set_ylabel("accepted\nso far (%)", fontsize=11)
