"""Does a question get the same answer from every deployment, token for token?

50 pairs of a question and a seed, each in mode dual at temperatures 0 and 1 and in mode speculative at temperature 1,
asked of two parties inline in this process, of two Ray nodes, and of a device that has joined a served cloud by a link.
Compared are the tokens of each answer and, in mode dual, which drafts were accepted; what mode speculative accepts
depends on timing. The control asks inline again with other seeds: at temperature 1 many of its answers must differ, or
equal ones say little.

Prediction: 0 of 300 answers differ from the inline one. Exit code 1 if any does. Expected run time: 4 minutes;
`--smoke`, 3 pairs and no Ray, half a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from tandem import Config, Tandem
from tandem.events import Answer
from tandem.lab.training.bundle import read_bundled_questions
from tandem.sites.serving import Address, served

NUM_PAIRS, SMOKE_PAIRS = 50, 3
FIRST_SEED, OTHER_SEED = 1000, 9000
CASES: tuple[dict[str, Any], ...] = (
    {"mode": "dual", "temperature": 0.0},
    {"mode": "dual", "temperature": 1.0},
    {"mode": "speculative", "temperature": 1.0},
)
CONFIG = Config.load(None, ["link.on_peer_loss=wait", "cluster.start_timeout_s=300"])


@contextlib.contextmanager
def joined() -> Iterator[Tandem]:
    """A device that has joined a cloud of this process over a socket of the loopback interface."""
    with (
        tempfile.TemporaryDirectory() as keys,
        served(CONFIG, Address("127.0.0.1", 0), Path(keys)) as cloud,
        Tandem.join(str(cloud.link_for("device")), CONFIG) as tandem,
    ):
        yield tandem


DEPLOYMENTS = {
    "inline": lambda: Tandem.launch(CONFIG, runtime="inline"),
    "joined": joined,
    "ray": lambda: Tandem.launch(CONFIG),
}


def ask_all(tandem: Tandem, num_pairs: int, first_seed: int) -> list[list[Any]]:
    """What is compared of each answer, case by case."""
    questions = [asked.question for asked in read_bundled_questions()]
    return [
        comparable(
            tandem.query(questions[number % len(questions)], seed=first_seed + number, **case), case["mode"]
        )
        for case in CASES
        for number in range(num_pairs)
    ]


def comparable(answer: Answer, mode: str) -> list[Any]:
    """Tokens, with the acceptance of the drafts in mode dual."""
    assert not answer.is_degraded
    if mode == "speculative":
        return list(answer.token_ids)
    return [(token.token, token.device_accepted, token.cloud_accepted) for token in answer.tokens]


def num_different(answers: list[list[Any]], wanted: list[list[Any]]) -> int:
    """How many answers are not the wanted ones."""
    return sum(answer != other for answer, other in zip(answers, wanted, strict=True))


def main() -> None:
    """Print the prediction, then what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_PAIRS} pairs, without Ray")
    arguments = parser.parse_args()
    num_pairs = SMOKE_PAIRS if arguments.smoke else NUM_PAIRS
    others = ["joined"] if arguments.smoke else ["joined", "ray"]
    num_answers = num_pairs * len(CASES)
    print(f"prediction: 0 of {num_answers * len(others)} answers differ from the inline ones", flush=True)
    with DEPLOYMENTS["inline"]() as tandem:
        wanted = ask_all(tandem, num_pairs, FIRST_SEED)
        control = num_different(ask_all(tandem, num_pairs, OTHER_SEED), wanted)
    print(f"control: {control} of {num_answers} answers differ with other seeds", flush=True)
    different = {}
    for name in others:
        with DEPLOYMENTS[name]() as tandem:
            different[name] = num_different(ask_all(tandem, num_pairs, FIRST_SEED), wanted)
        print(f"{name}: {different[name]} of {num_answers} answers differ", flush=True)
    num_tokens = sum(map(len, wanted))
    finish({"pairs": num_pairs, "tokens": num_tokens, "control": control, "different": different})
    sys.exit(1 if any(different.values()) or control == 0 else 0)


if __name__ == "__main__":
    main()
