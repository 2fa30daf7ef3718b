"""How often are drafts accepted: coupled drafts against DRAGON's Algorithm 1, on the bundled model?

Each beside its own formula: Eq. (5) for Algorithm 1, sum_i 1 / sum_j max(q_j / q_i, p_j / p_i) for coupled drafts, the
0/1 outcome at temperature 0, where both rules are the same. Prediction: measured and expected agree within four
standard errors (the formulas are exact, and each step is one draw); coupled drafts are accepted at least as often as
Algorithm 1's at every temperature above 0, since the two sides' laws mostly agree and coupled drafts of equal laws are
always accepted, those of Algorithm 1 about as often as two independent draws meet.

Both sides run in one process under a virtual clock; acceptance depends on laws and seeds alone, not on timing.

Expected run time: 3 minutes; `--smoke` 15 seconds.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import bundled_pair, finish
from tandem import Config
from tandem.client.request import spec_of
from tandem.events import TokenEvent
from tandem.modes.spec import SessionSpec
from tandem.topology import PARTIES
from tandem_lab.quality.local import LocalPair
from tandem_lab.simulation.specs import change_spec
from tandem_lab.training.bundle import read_bundled_questions

RULES = ("coupled", "algorithm1")


def row(pair: LocalPair, spec: SessionSpec, num_seeds: int) -> dict[str, float]:
    """Measured and expected acceptance of both sides, and the distance in standard errors."""
    tokens: list[TokenEvent] = []
    for seed in range(num_seeds):
        for number, question in enumerate(read_bundled_questions()):
            _, outcome = pair.answer(replace(spec, query=question.question, seed=1000 * seed + number))
            tokens += [event for event in outcome.events if isinstance(event, TokenEvent)]
    found: dict[str, float] = {"num_tokens": len(tokens)}
    for party in PARTIES:
        expected = [getattr(token, f"{party}_acceptance") for token in tokens]
        accepted = sum(getattr(token, f"{party}_accepted") for token in tokens)
        deviation = math.sqrt(sum(share * (1 - share) for share in expected))
        found[f"{party}_measured"] = accepted / len(tokens)
        found[f"{party}_expected"] = sum(expected) / len(tokens)
        found[f"{party}_standard_errors"] = (accepted - sum(expected)) / deviation if deviation else 0.0
    return found


def main() -> None:
    """A row per temperature and rule."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="times that each bundled question is asked")
    parser.add_argument("--smoke", action="store_true", help="one seed")
    arguments = parser.parse_args()
    config = Config.load(
        None, ["codec.name=top_p"]
    )  # Algorithm 1 takes no race lists, and the formulas neither
    pair = bundled_pair(config)
    print(
        "prediction: measured = expected within 4 standard errors; coupled >= Algorithm 1 above temperature 0"
    )
    result: dict[str, Any] = {}
    for temperature in (0.0, 0.7, 1.0):
        for rule in RULES:
            spec = change_spec(spec_of(config), temperature=temperature, draft_rule=rule, placement="device")
            num_seeds = 1 if arguments.smoke or temperature == 0 else arguments.seeds
            found = result[f"T {temperature:g}, {rule}"] = row(pair, spec, num_seeds)
            print(
                f"T {temperature:3.1f}  {rule:10}  "
                + "  ".join(
                    f"{party}: measured {found[f'{party}_measured']:.3f} expected {found[f'{party}_expected']:.3f}"
                    f" ({found[f'{party}_standard_errors']:+.1f} SE)"
                    for party in PARTIES
                )
                + f"  {found['num_tokens']:.0f} tokens",
                flush=True,
            )
    finish(result)


if __name__ == "__main__":
    main()
