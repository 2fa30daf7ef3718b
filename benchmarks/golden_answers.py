"""Does every answer keep its tokens and acceptance flags when the code is changed?

Answers 200 (question, seed) pairs, half of them on held-out worlds, at temperatures 0 and 1, under every placement and
draft rule that has a fixed outcome, with the bundled model in one process, over a virtual link of 100 ms round trip
with jitter, so that drafts run ahead and are rolled back. All with the codec top_p, as version 0.1 answered
(tests/golden/answers.jsonl), and the first 40 pairs with the default, race lists, where coupled drafts have them
(tests/golden/race_lists.jsonl). `--record` writes these files; without it each answer is compared with them, and any
difference ends the run with exit code 1.

Expected: 0 differences. Expected run time: 14 minutes on one core for all 2,240 answers; `--smoke` 20 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.client.request import spec_of
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.events import TokenEvent
from tandem.plugins.embedders import Embedder
from tandem.retrieval.retriever import open_retriever
from tandem.topology import PARTIES
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.quality.local import LocalPair
from tandem_lab.quality.worlds import retrievers_of, worlds
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
PATHS = {"top_p": GOLDEN / "answers.jsonl", "auto": GOLDEN / "race_lists.jsonl"}
"""What was recorded, by codec."""
NUM_PAIRS = {"top_p": 200, "auto": 40}
WORLD_SEED = 71
TEMPERATURES = (0.0, 1.0)
CASES = (
    ("coupled", "mirror"),
    ("coupled", "device"),
    ("coupled", "greedy"),
    ("algorithm1", "device"),
    ("algorithm1", "greedy"),
)
LINK = Link(delay_s=0.05, jitter_s=0.01)
DECODE_S = {"device": (0.03, 0.05), "cloud": (0.01, 0.03)}


def pairs(folder: Path, embedder: Embedder) -> Iterator[tuple[str, int, Any]]:
    """(question, seed, retrievers by side), bundled and held-out questions in turn."""
    bundled = {party: open_retriever(party, Config(), embedder) for party in PARTIES}
    texts = [one.question for one in read_bundled_questions()]
    heldout = (
        (question.text, retrievers)
        for number, (world, questions) in enumerate(worlds(max(NUM_PAIRS.values()) // 2, WORLD_SEED))
        for retrievers in [retrievers_of(world, _new_folder(folder, number), embedder)]
        for question in questions
    )
    for number in range(0, max(NUM_PAIRS.values()), 2):
        yield texts[number // 2 % len(texts)], 1000 + number, bundled
        text, retrievers = next(heldout)
        yield text, 1001 + number, retrievers


def _new_folder(folder: Path, number: int) -> Path:
    (path := folder / str(number)).mkdir()
    return path


def answers(
    engine: Engine, question: str, seed: int, retrievers: Any, codec_name: str = "top_p"
) -> Iterator[tuple[str, list[Any]]]:
    """(case, [tokens, flags]) of one pair; a flag is 2 x (the device's draft was accepted) + (the cloud's was)."""
    config = Config.load(None, [f"codec.name={codec_name}"])
    codec = codec_of(config.codec)
    for temperature in TEMPERATURES:
        for rule, placement in CASES:
            spec = change_spec(
                spec_of(config),
                query=question,
                seed=seed,
                temperature=temperature,
                draft_rule=rule,
                placement=placement,
            )
            if codec_name == "auto" and not spec.rules.has_race_lists:
                continue  # top_p answers
            pair = LocalPair(dict.fromkeys(PARTIES, engine), retrievers, codec)
            _, outcome = pair.answer(
                spec, link=LINK, decode_s=lambda party, rng: rng.uniform(*DECODE_S[str(party)]), seed=seed
            )
            events = outcome.of(TokenEvent)
            flags = [2 * bool(event.device_accepted) + bool(event.cloud_accepted) for event in events]
            yield f"{rule}/{placement}/{temperature:g}", [[event.token for event in events], flags]


def main() -> None:
    """Record, or compare with what was recorded."""
    parser = new_parser(__doc__)
    parser.add_argument("--record", action="store_true", help="write the files")
    parser.add_argument("--codec", choices=PATHS, help="this one alone")
    parser.add_argument("--smoke", action="store_true", help="2 of each 40 pairs")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="pairs I, I + N, ... alone")
    parser.add_argument("--out", type=Path, default=GOLDEN, help="where --record writes")
    arguments = parser.parse_args()
    print("prediction: 0 differences")
    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    num_answers = num_different = 0
    for codec_name in [arguments.codec] if arguments.codec else PATHS:
        asked, different = answer_all(codec_name, engine, embedder, arguments)
        num_answers, num_different = num_answers + asked, num_different + different
    finish({"answers": num_answers, "different": num_different})
    sys.exit(1 if num_different else 0)


def answer_all(
    codec_name: str, engine: Engine, embedder: Embedder, arguments: argparse.Namespace
) -> tuple[int, int]:
    """How many answers were given with a codec, and how many differ from those recorded."""
    part, parts = map(int, arguments.part.split("/"))
    step = 40 if arguments.smoke else parts
    recorded = {} if arguments.record else read_answers(PATHS[codec_name])
    rows, num_answers, num_different = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (question, seed, retrievers) in enumerate(
            islice(pairs(Path(folder), embedder), NUM_PAIRS[codec_name])
        ):
            if number % step not in ((0, 1) if arguments.smoke else (part,)):
                continue
            got = dict(answers(engine, question, seed, retrievers, codec_name))
            rows.append({"pair": number, "question": question, "seed": seed, "answers": got})
            num_answers += len(got)
            if not arguments.record:
                wanted = recorded[number]
                assert (wanted["question"], wanted["seed"]) == (question, seed), (
                    f"pair {number} is another question"
                )
                for case, answer in got.items():
                    if answer != wanted["answers"][case]:
                        num_different += 1
                        was = wanted["answers"][case]
                        print(f"differs: pair {number} {codec_name} {case}\n  was {was}\n  is  {answer}")
    if arguments.record:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / PATHS[codec_name].name).write_text(
            "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), "utf-8"
        )
    return num_answers, num_different


def read_answers(path: Path) -> dict[int, Any]:
    """The recorded rows by the number of their pair."""
    return {row["pair"]: row for row in map(json.loads, path.read_text("utf-8").splitlines())}


if __name__ == "__main__":
    main()
