"""How many held-out questions are answered exactly: both sides together, the device alone, the cloud alone?

Names and titles were never seen in training; a note says what a person likes, a public page which item of that kind
is best, and the answer must state both. Prediction: a side alone can only guess the other's fact among 8 kinds or
thousands of titles, so the device alone is near 0 % and the cloud alone at most 1 in 8. Targets at temperature 0:
both >= 80 %, device alone <= 10 %, cloud alone <= 25 %. Static weights stand beside as the rival.

In one process, through the protocol's own state machines; with coupled drafts and at temperature 0 the cluster gives
the same tokens. Expected run time: 6 minutes for 200 questions on one core; `--smoke` 30 s.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish
from tandem.codecs import codec_of
from tandem.config import Config
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.lab.quality.heldout import ALONE, HeldoutAnswer, ask_heldout, heldout_spec
from tandem.lab.quality.statistics import wilson
from tandem.retrieval.embedding import Embedder

TARGETS = {"both": ">= 80 %", "device": "<= 10 %", "cloud": "<= 25 %"}


def summarise(asked: list[HeldoutAnswer]) -> dict[str, Any]:
    """Share of exact answers with its interval, and mean acceptance."""
    share = sum(one.is_exact for one in asked) / len(asked)
    low, high = wilson(sum(one.is_exact for one in asked), len(asked))
    return {
        "exact": share,
        "interval_95": [round(low, 4), round(high, 4)],
        "n": len(asked),
        "device_acceptance": sum(one.device_acceptance for one in asked) / len(asked),
        "cloud_acceptance": sum(one.cloud_acceptance for one in asked) / len(asked),
    }


def main() -> None:
    """Ask, print the table, end with JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--smoke", action="store_true", help="24 questions")
    arguments = parser.parse_args()
    num_questions = 24 if arguments.smoke else arguments.questions
    print("targets: " + ", ".join(f"{name} {target}" for name, target in TARGETS.items()))
    config = Config()
    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    codec = codec_of(config.codec)
    spec = heldout_spec(config)
    result: dict[str, Any] = {}
    for weights, kind, settings in (
        ("dynamic", spec, tuple(ALONE)),
        ("static", replace(spec, weight_interval=0), ("both",)),
    ):
        found = defaultdict(list)
        for one in ask_heldout(engine, embedder, codec, kind, num_questions=num_questions, settings=settings):
            found[one.setting].append(one)
        for setting in settings:
            result[f"{weights}/{setting}"] = row = summarise(found[setting])
            low, high = row["interval_95"]
            print(
                f"{weights:8} weights  {setting:7} exact {row['exact']:6.1%}  [{low:.1%}, {high:.1%}]  n={row['n']}"
                f"  accepted: device {row['device_acceptance']:.0%} cloud {row['cloud_acceptance']:.0%}"
            )
    finish(result)


if __name__ == "__main__":
    main()
