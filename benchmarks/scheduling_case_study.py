"""What happens from token to token? DRAGON Figure 9: 15 tokens under greedy with 500 ms of extra latency.

One recorded sequence at temperature 1; both sides take 60 ms for a draft. The picture
shows both sides' decoding and what crosses the link, the round trip, Delta Z with its inputs and the accumulated
acceptance. The snapshot is the first window of 15 tokens with at least two handovers, or with as many as there are.

Prediction: the aggregator leaves a side only in a step whose draft of the other side was rejected, and between two
rejections tokens come at the pace of decoding, 60 ms.

Expected run time: 3 s, with `--smoke` as well.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from benchmarks._study import RECORDED, parser, seconds
from tandem.events import PlacementEvent
from tandem_lab.simulation.acceptance import read_acceptance
from tandem_lab.simulation.study import Replay, link_of, replay
from tandem_lab.timeline.intervals import timeline
from tandem_lab.timeline.pipeline import plot_pipeline

DEVICE_MS, CLOUD_MS, RTT_MS, WAVE, NUM_TOKENS = 60.0, 60.0, 501.0, 0.2, 15


def snapshot(run: Replay) -> tuple[int, int]:
    """First and last step of the window to show."""
    moves = [event.step for event in run.events if isinstance(event, PlacementEvent)]
    last = len(run.tokens) - NUM_TOKENS

    def count(first: int) -> int:
        return min(2, sum(first < step < first + NUM_TOKENS for step in moves))

    first = max(range(last + 1), key=count)  # the earliest of those with most
    return first, first + NUM_TOKENS - 1


def main() -> None:
    """Replay, print the window, draw it."""
    options = parser(__doc__)
    options.add_argument("--sequence", type=int, default=0, help="which of the 50")
    arguments = options.parse_args()
    print(
        "prediction: handovers only after a rejection on the other side; between rejections 60 ms per token"
    )
    accepted = read_acceptance(RECORDED)["1"][arguments.sequence]
    run = replay(accepted, seconds(DEVICE_MS, CLOUD_MS), link_of(RTT_MS / 1e3, wave=WAVE), "greedy")
    first, last = snapshot(run)
    gaps_ms = []
    for before, token in itertools.pairwise(run.tokens):
        gap_ms = 1e3 * (token.committed_s - before.committed_s)
        if before.device_accepted and before.cloud_accepted and before.aggregator is token.aggregator:
            gaps_ms.append(gap_ms)
        if first <= token.step <= last:
            marks = "".join("+" if is_in else "-" for is_in in (token.device_accepted, token.cloud_accepted))
            print(
                f"step {token.step:3} by {token.aggregator:6} device, cloud {marks}  {gap_ms:6.0f} ms after the last"
            )
    print(f"after a step where both drafts were accepted: median {median(gaps_ms):.0f} ms (predicted 60 ms)")
    path = arguments.out / "scheduling_case_study.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"Greedy, {DEVICE_MS:g} and {CLOUD_MS:g} ms a draft, {RTT_MS:g} ms round trip"
    plot_pipeline(timeline(run.events, "greedy"), path, title=title, steps=(first, last))
    print(f"plot: {path}")
    finish({"steps": [first, last], "switches": run.num_switches, "total_s": run.total_s, "gap_ms": median(gaps_ms),
            "plot": str(path)})  # fmt: skip


if __name__ == "__main__":
    main()
