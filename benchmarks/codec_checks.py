"""Do codecs and race lists keep their promises on far more cases than the tests try?

- 100,000 random byte strings for each codec and for race lists: a distribution or the protocol's error.
- 100,000 distributions over 2 to 262,144 tokens: counts >= 0 that sum to the resolution.
- 1,000,000 random votes of up to 8 parties: a certain winner wins the race of the full mixture. As a control, some of
  them are settled as if tokens that a list lacks had no probability, which must give wrong winners.

Prediction: no exception and no difference. `--smoke` runs a thousandth, 15 seconds; everything takes 25 minutes on an
idle core. `--only NAME` runs one of strings, sums, races; `--cases N` sets the number of races, `--seed S` draws
others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks._common import finish, new_parser
from tandem.aggregation.race_lists import RaceList, certify
from tandem.codecs.race_lists import read_vote
from tandem.codecs.sets import quantise
from tandem.errors import ProtocolError
from tests.unit.aggregation.race_cases import Case, random_case
from tests.unit.codecs.random_bytes import CODECS, count_decoded

VOCABS = (2, 50, 1_636, 50_257, 262_144)
CONTROL_EVERY = 50


def strings(count: int) -> dict[str, Any]:
    """Random bytes; anything but the protocol's error is raised."""
    found = {codec.fingerprint(): count_decoded(codec, count, 11) for codec in CODECS}
    rng, num_lists = np.random.default_rng(12), 0
    for length in rng.integers(0, 24, count).tolist():
        try:
            read_vote(rng.bytes(length), 50_257)
        except ProtocolError:
            continue
        num_lists += 1
    return {"tried": count, "decoded": found | {"race list": num_lists}}


def sums(count: int) -> dict[str, Any]:
    """Counts of random distributions; most of them over small vocabularies."""
    rng, num_wrong = np.random.default_rng(13), 0
    for _ in range(count):
        vocab = int(rng.choice(VOCABS, p=(0.3, 0.5, 0.194, 0.005, 0.001)))
        resolution = int(rng.choice([1, 24, 100, 720]))
        dense = rng.random(vocab) ** rng.choice([0.0, 1.0, 20.0, 400.0])
        if not dense.sum():
            continue
        counts = quantise(dense, resolution)
        num_wrong += int(counts.sum() != resolution or counts.min() < 0)
    return {"tried": count, "wrong": num_wrong}


def races(count: int, seed: int = 14) -> dict[str, Any]:
    """Random votes; how many were certain, and how many of these wrong."""
    rng, num_certain, num_wrong, started_s = np.random.default_rng(seed), 0, 0, time.monotonic()
    num_controls = num_caught = 0
    for step in range(count):
        case = random_case(rng, step)
        outcome = certify(
            case.plain_lists(), case.shares, seed=case.seed, step=step, temperature=case.temperature
        )
        num_certain += outcome.is_certain
        num_wrong += outcome.is_certain and outcome.winner != case.winner
        if step % CONTROL_EVERY == 0:
            num_controls, num_caught = num_controls + 1, num_caught + (trust_lists(case) != case.winner)
        if step % 10_000 == 9_999:
            print(f"{step + 1} races, {num_wrong} wrong, {time.monotonic() - started_s:.0f} s", flush=True)
    assert num_caught > 0, "the control must give wrong winners, or the check shows nothing"
    control = {"tried": num_controls, "caught": num_caught}
    return {"tried": count, "certain": num_certain, "wrong": num_wrong, "control": control}


def trust_lists(case: Case) -> int:
    """The mutant: the winner as if each list held every token with a probability."""
    lists = [RaceList(each.ids, each.values, each.ids.size + 1) for each in case.plain_lists()]
    found = certify(lists, case.shares, seed=case.seed, step=case.step, temperature=case.temperature)
    return found.winner


CHECKS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "strings": (strings, 100_000),
    "sums": (sums, 100_000),
    "races": (races, 1_000_000),
}


def main() -> None:
    """Run, print, fail where anything was wrong."""
    parser = new_parser(__doc__)
    parser.add_argument("--only", choices=CHECKS)
    parser.add_argument("--cases", type=int, help="of the races")
    parser.add_argument("--seed", type=int, default=14, help="of the races")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    print("prediction: nothing is wrong")
    result = {}
    for name, (check, count) in CHECKS.items():
        if arguments.only not in (None, name):
            continue
        if name == "races" and arguments.cases:
            count = arguments.cases
        if name == "races":
            check = partial(races, seed=arguments.seed)
        result[name] = check(count // 1000 if arguments.smoke else count)
        print(f"{name}: {result[name]}", flush=True)
    finish(result)
    if any(found.get("wrong") for found in result.values()):
        sys.exit("something was wrong")


if __name__ == "__main__":
    main()
