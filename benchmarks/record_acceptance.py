"""Which drafts does the bundled model get accepted, and how long does it take for them?

Not a figure of its own: it records what Figures 8 and 9 and the table of strategies replay. Held-out questions, whose
names and titles the model never saw, are answered in one process with coupled drafts by the token-wise loop; with
coupled drafts and at temperature 0 the outcome does not depend on timing, placement or network. Each step is one
letter: B both drafts were accepted, D only the device's, C only the cloud's, N neither. Answers are joined in random
order until a sequence is long enough, since a single answer of this model has about 20 tokens. Decode times are those
of this machine, with one thread, one side at a time.

Prediction: with equal models the drafts differ where one side's documents decide a word, a few words an answer: 0.7
to 0.9 accepted on each side at temperature 0, less at 1.

Nothing is written without --record. Expected run time: 3 minutes; `--smoke` 15 s.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.events import TokenEvent
from tandem.retrieval.embedding import Embedder
from tandem.topology import PARTIES
from tandem_lab.environment import describe_environment
from tandem_lab.quality.heldout import heldout_spec, retrievers_of, worlds
from tandem_lab.quality.local import LocalPair
from tandem_lab.simulation.specs import change_spec

PATH = Path(__file__).parent / "data" / "acceptance.json"
NUM_SEQUENCES, NUM_TOKENS, NUM_TIMES = 50, 100, 400
TEMPERATURES = (0.0, 1.0)
SEED = 29
LETTERS = {(True, True): "B", (True, False): "D", (False, True): "C", (False, False): "N"}


class TimedEngine:
    """An engine that notes how long each forward pass takes, by the side that its session's key ends with."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.decode_s: dict[str, list[float]] = {str(party): [] for party in PARTIES}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def next_logits(self, key: str, tokens: Any) -> Any:
        """The engine's, timed; not the first of an answer, which reads the question as well."""
        start_s = time.perf_counter()
        logits = self._engine.next_logits(key, tokens)
        if len(tokens) > 0:
            self.decode_s[key.rpartition("/")[2]].append(time.perf_counter() - start_s)
        return logits


def record(engine: TimedEngine, temperature: float, limit_s: float, num_questions: int) -> list[str]:
    """One string of letters per answer; fewer than asked for where time runs out."""
    config = Config.load(None, ["codec.name=top_p"])  # as when the data was recorded
    codec = codec_of(config.codec)
    spec = change_spec(heldout_spec(config), temperature=temperature)
    embedder = Embedder.load("offline", num_threads=1)
    answers: list[str] = []
    until_s = time.monotonic() + limit_s
    for world, questions in worlds(num_questions, SEED):
        with tempfile.TemporaryDirectory() as folder:
            retrievers = retrievers_of(world, Path(folder), embedder)
            pair = LocalPair(dict.fromkeys(PARTIES, engine), retrievers, codec)  # type: ignore[arg-type]
            for question in questions:
                _, outcome = pair.answer(replace(spec, query=question.text, seed=len(answers)))
                tokens = (event for event in outcome.events if isinstance(event, TokenEvent))
                answers.append("".join(LETTERS[one.device_accepted, one.cloud_accepted] for one in tokens))
        if time.monotonic() > until_s:
            break
    return answers


def joined(answers: list[str], num_sequences: int, rng: Random) -> Iterator[str]:
    """Sequences of NUM_TOKENS letters: answers in random order, all of them before one comes again."""
    order: list[str] = []
    for _ in range(num_sequences):
        letters = ""
        while len(letters) < NUM_TOKENS:
            if not order:
                order = rng.sample(answers, len(answers))
            letters += order.pop()
        yield letters[:NUM_TOKENS]


def main() -> None:
    """Record, show the rates, write."""
    parser = new_parser(__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {PATH.name}")
    parser.add_argument("--limit-s", type=float, default=90.0, help="for each temperature")
    parser.add_argument("--smoke", action="store_true", help="one world, nothing written")
    arguments = parser.parse_args()
    print("prediction: 0.7 to 0.9 of each side's drafts are accepted at temperature 0, less at 1")
    engine = TimedEngine(Engine.load(str(WEIGHTS), num_threads=1))
    rng, sequences, shares = Random(SEED), {}, {}
    for temperature in TEMPERATURES:
        limit_s, most = (0.0, 8) if arguments.smoke else (arguments.limit_s, 10_000)
        answers = record(engine, temperature, limit_s, most)
        letters = "".join(answers)
        shares[f"{temperature:g}"] = share = {
            letter: letters.count(letter) / len(letters) for letter in "BDCN"
        }
        share |= {"num_answers": len(answers), "num_tokens": len(letters)}
        print(
            f"temperature {temperature:g}: accepted device {share['B'] + share['D']:.3f} cloud "
            f"{share['B'] + share['C']:.3f}, both {share['B']:.3f} neither {share['N']:.3f} "
            f"({len(letters)} tokens of {len(answers)} answers)"
        )
        sequences[f"{temperature:g}"] = list(joined(answers, NUM_SEQUENCES, rng))
    times = {
        party: [round(1e3 * s, 2) for s in seen[5 : 5 + NUM_TIMES]] for party, seen in engine.decode_s.items()
    }
    for party, seen in times.items():
        print(f"decode time of the {party}: median {sorted(seen)[len(seen) // 2]:.2f} ms")
    if arguments.record and not arguments.smoke:
        made = {
            "by": "benchmarks/record_acceptance.py --record",
            "shares": shares,
            "environment": describe_environment(),
        }
        PATH.parent.mkdir(exist_ok=True)
        text = json.dumps({"made": made, "sequences": sequences, "decode_ms": times}, indent=0)
        PATH.write_text(text + "\n", "utf-8")
    finish({"shares": shares})


if __name__ == "__main__":
    main()
