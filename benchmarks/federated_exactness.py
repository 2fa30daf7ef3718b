"""Are answers of many owners those of the loop without drafts, token by token?

Two and four workers, in this process or as Ray actors, with the bundled reader; half of them hold the bundled notes,
the others the bundled pages, and weigh as fixed or by their documents, which evidence weighs again at each token.
Question, seed, temperature, pacing, length policy and longest proposal of an answer are drawn at random. What it must
be is computed from the same models and documents by `tandem.modes.reference`, which knows nothing of drafts, proposals
or a link.

Prediction: 0 wrong tokens, whatever is drawn. How many answers another seed would have changed is counted, too: what is
certain of itself would be right without any protocol.

Expected run time: 25 minutes for 1,000 answers of 24 tokens, and as long once more with `--runtime ray`; `--smoke` half
a minute. Exit code 1 if a token is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from tandem import Config, Tandem
from tandem.lab.federated.workers import LocalWorkers
from tandem.lab.training.bundle import read_bundled_questions
from tandem.protocol.prefix import common_length
from tandem.retrieval import Embedder
from tandem.retrieval.factory import build_given_index
from tandem.topology import PARTIES

NUM_WORKERS = (2, 4)
WEIGHTS = ("fixed", "documents")
PACINGS = ("stop_and_wait", "pipelined")
LENGTH_POLICIES = ("fixed", "best")
TEMPERATURES = (0.0, 0.6, 1.0, 1.5)
LONGEST_PROPOSALS = (0, 1, 3, 4, 8, 16)
MAX_NEW_TOKENS = 24
PATIENT = ("link.on_peer_loss=wait", "cluster.start_timeout_s=300")


def settings_of(num_workers: int, weights: str, runtime: str, folders: Sequence[Path]) -> Config:
    """A federation of the bundled models. folders: indexes, which the workers hold in turn."""
    made = ["decoding.mode=federated", f"cluster.runtime={runtime}", f"weights.workers={weights}", *PATIENT]
    for number in range(num_workers):
        name = f"workers.owner-{number + 1}"
        made += [f"{name}.index={folders[number % len(folders)]}", f"{name}.num_documents=4"]
        if weights == "fixed":
            made.append(f"{name}.weight={number + 1}")
    return Config.load(None, made)


def ask_many(config: Config, count: int, draw: random.Random) -> dict[str, Any]:
    """Ask, and compare every answer with the loop's."""
    loop = LocalWorkers(config)
    questions = [asked.question for asked in read_bundled_questions()]
    num_tokens = num_undecided = 0
    wrong: list[dict[str, Any]] = []
    with Tandem.launch(config) as rag:
        for _ in range(count):
            question, seed = draw.choice(questions), draw.randrange(2**31)
            temperature = draw.choice(TEMPERATURES)
            options: dict[str, Any] = {
                "pacing": draw.choice(PACINGS),
                "length_policy": draw.choice(LENGTH_POLICIES),
                "max_proposal": draw.choice(LONGEST_PROPOSALS),
                "temperature": temperature,
                "max_new_tokens": MAX_NEW_TOKENS,
            }
            got = rag.query(question, seed=seed, **options).token_ids
            wanted, other = (
                loop.answer(
                    loop.make_spec(question, a_seed, temperature=temperature, max_new_tokens=MAX_NEW_TOKENS)
                )
                for a_seed in (seed, seed + 1)
            )
            num_tokens += len(wanted)
            if list(got) != wanted:
                step = common_length(got, wanted)
                wrong.append({"question": question, "seed": seed, "step": step, **options})
            num_undecided += other != wanted
    return {"answers": count, "tokens": num_tokens, "wrong": wrong, "undecided": num_undecided}


def main() -> int:
    """Ask every federation its share of the answers; 1 if a token of any was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="answers in all (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1)")
    parser.add_argument("--runtime", choices=["inline", "ray"], default="inline", help="default: inline")
    parser.add_argument("--smoke", action="store_true", help="eight answers")
    options = parser.parse_args()
    count = 8 if options.smoke else options.count
    print("prediction: 0 wrong answers")
    federations = [(number, weights) for number in NUM_WORKERS for weights in WEIGHTS]
    embedder = Embedder.load()
    folders = [build_given_index(party, embedder) for party in PARTIES]
    rows = []
    for place, (number, weights) in enumerate(federations):
        share = (count + len(federations) - 1 - place) // len(federations)
        start_s = time.monotonic()
        config = settings_of(number, weights, options.runtime, folders)
        row = ask_many(config, share, random.Random(f"{options.seed} {place}"))
        rows.append({"workers": number, "weights": weights, "runtime": options.runtime, **row})
        print(
            f"{number} workers, {weights}: {row['answers']} answers, {row['tokens']} tokens, {len(row['wrong'])} wrong "
            f"answers; another seed changes {row['undecided']}; {time.monotonic() - start_s:.0f} s",
            flush=True,
        )
    finish({"rows": rows})
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
