"""Are the answers of speculative decoding the cloud's own, token by token, whoever drafts and however far away?

A real cluster across the test network: two random models of 50,000 tokens that mostly agree, answers of 48 tokens, five
questions side by side. The drafter is the device's model; or writes garbage; or is replaced every 20 passes by one with
another head, in the middle of an answer. At every round trip, temperature and pacing each answer is compared with the
cloud's alone for the same seed.

Prediction: 0 wrong tokens; none of the garbage is accepted, and less of the drafter that is replaced than of the one
that stays. Where the cloud goes on by itself it commits most tokens before a proposal arrives.

Needs root. Exit code 1 if a token is wrong, or if garbage is accepted as often as the model's own drafts. Expected run
time: 15 minutes for 11,600 tokens; `--smoke` 1 minute.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem import Config, Tandem
from tandem.topology import Party
from tandem_lab.bad_drafters import CLASSES
from tandem_lab.bench.models import close_to_each_other
from tandem_lab.bench.places import DATA_PORT, hosts
from tandem_lab.netlab import NetLab, Shape
from tandem_lab.netlab.inside import run_inside
from tandem_lab.training.bundle import read_bundled_questions

RTTS_S = (0.0, 0.1, 0.3)
TEMPERATURES = (0.0, 1.0)
PACINGS = ("stop_and_wait", "pipelined", "cloud_goes_on")
NUM_QUESTIONS, MAX_NEW_TOKENS, SEED = 5, 48, 7


class Asker:
    """One cluster, and what its cloud answers alone."""

    def __init__(self, tandem: Tandem, num_questions: int) -> None:
        self._tandem = tandem
        self._questions = [each.question for each in read_bundled_questions()][:num_questions]
        self._alone = {temperature: self._ask(temperature, only="cloud")[0] for temperature in TEMPERATURES}

    def compare(self, temperature: float, pacing: str) -> dict[str, Any]:
        """All questions at one temperature and pacing, beside the cloud alone."""
        answers, accepted = self._ask(temperature, pacing=pacing)
        pairs = [
            (token, wanted)
            for answer, alone in zip(answers, self._alone[temperature], strict=True)
            for token, wanted in zip_longest(answer, alone)  # one that is missing is wrong
        ]
        wrong = sum(token != wanted for token, wanted in pairs)
        return {"num_tokens": len(pairs), "num_wrong": wrong, "num_accepted": accepted}

    def _ask(self, temperature: float, **options: Any) -> tuple[list[tuple[int, ...]], int]:
        items = self._tandem.batch(
            self._questions,
            concurrency=len(self._questions),
            mode="speculative",
            seed=SEED,
            temperature=temperature,
            max_new_tokens=MAX_NEW_TOKENS,
            **options,
        )
        answers = [item.result() for item in sorted(items, key=lambda item: item.index)]
        accepted = sum(answer.statistics.num_device_accepted for answer in answers)
        return [answer.token_ids for answer in answers], accepted


def measure(lab: NetLab, *, is_smoke: bool) -> bool:
    """In the device's host: every drafter in a cluster of its own. Whether all is as predicted."""
    rtts_s, num_questions = (RTTS_S[1:2], 1) if is_smoke else (RTTS_S, NUM_QUESTIONS)
    rows: list[dict[str, Any]] = []
    with close_to_each_other(Config.load(None, ["link.on_peer_loss=wait"])) as models:
        link = replace(models.link, host=lab.address(Party.CLOUD), port=DATA_PORT)
        config = replace(models, link=link)
        for drafter, classes in CLASSES.items():
            lab.shape(Shape())
            with Tandem.launch(config, hosts=hosts(lab), actor_classes=classes) as tandem:
                asker = Asker(tandem, num_questions)
                for rtt_s, temperature, pacing in product(rtts_s, TEMPERATURES, PACINGS):
                    lab.shape(Shape(rtt_s=rtt_s))
                    conditions = {"drafter": drafter, "rtt_s": rtt_s, "temperature": temperature}
                    rows.append({**conditions, "pacing": pacing, **asker.compare(temperature, pacing)})
                    print(_told(rows[-1]), flush=True)
    totals = {drafter: _total(rows, drafter) for drafter in CLASSES}
    for drafter, total in totals.items():
        print(f"{drafter}: {total['num_wrong']} of {total['num_tokens']} tokens wrong, {_accepted(total)}")
    finish({"rows": rows, "totals": totals})
    shares = {drafter: total["num_accepted"] / total["num_tokens"] for drafter, total in totals.items()}
    is_exact = not any(row["num_wrong"] for row in rows)
    return is_exact and shares["garbage"] < 0.05 < shares["replaced"] < shares["own"]


def _total(rows: list[dict[str, Any]], drafter: str) -> dict[str, int]:
    names = ("num_tokens", "num_wrong", "num_accepted")
    return {name: sum(row[name] for row in rows if row["drafter"] == drafter) for name in names}


def _told(row: dict[str, Any]) -> str:
    return (
        f"{row['drafter']:9} RTT {1e3 * row['rtt_s']:3.0f} ms  T {row['temperature']:g}  {row['pacing']:13}  "
        f"{row['num_wrong']} of {row['num_tokens']} wrong, {_accepted(row)}"
    )


def _accepted(row: dict[str, Any]) -> str:
    return f"drafted by the device {row['num_accepted'] / row['num_tokens']:.2f}"


def main() -> None:
    """Builds the network, and measures inside of it."""
    parser = new_parser(__doc__)
    parser.add_argument("--smoke", action="store_true", help="one question at 100 ms")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.within:
        sys.exit(0 if measure(NetLab(arguments.within), is_smoke=arguments.smoke) else 1)
    print(
        "prediction: 0 tokens wrong; garbage is not accepted, a drafter that is replaced less than one that stays"
    )
    lab = NetLab(f"exact-{os.getpid()}")
    sys.stdout.flush()
    sys.exit(run_inside(lab, [sys.executable, __file__, *sys.argv[1:], "--within", lab.name]))


if __name__ == "__main__":
    main()
