"""How many held-out questions are answered exactly: both sides together, the device alone, the cloud alone?

Names and titles were never seen in training; a note says what a person likes, a public page which item of that kind
is best, and the answer must state both. Prediction: a side alone can only guess the other's fact among 8 kinds or
thousands of titles, so the device alone is near 0 % and the cloud alone at most 1 in 8. Targets at temperature 0:
both >= 95 %, device alone <= 10 %, cloud alone <= 25 %. Static weights stand beside as the rival.

What is missing is told apart by two more rows: "retrieved", questions whose note and page are both among the
documents, and "oracle", questions whose every token some document's row holds more probable than not. What the oracle
lacks of what was retrieved is the reader's, what evidence lacks of the oracle is the weights'.

In one process, through the protocol's own state machines; with coupled drafts and at temperature 0 the cluster gives
the same tokens. Expected run time: 7 minutes for 200 questions of one seed on one core; `--smoke` 30 s.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.corpora import model_path
from tandem.engine.engine import Engine
from tandem.retrieval.embedding import Embedder
from tandem_lab.quality.heldout import ALONE, HeldoutAnswer, ask_heldout, ask_ideal, heldout_spec
from tandem_lab.quality.statistics import wilson

TARGETS = {"both": ">= 95 %", "device": "<= 10 %", "cloud": "<= 25 %"}
SEED = 11


def share_of(right: list[bool]) -> dict[str, Any]:
    """A share with its interval."""
    low, high = wilson(sum(right), len(right))
    return {
        "exact": sum(right) / len(right),
        "interval_95": [round(low, 4), round(high, 4)],
        "n": len(right),
    }


def summarise(asked: list[HeldoutAnswer]) -> dict[str, Any]:
    """Share of exact answers with its interval, and mean acceptance."""
    return {
        **share_of([one.is_exact for one in asked]),
        "device_acceptance": sum(one.device_acceptance for one in asked) / len(asked),
        "cloud_acceptance": sum(one.cloud_acceptance for one in asked) / len(asked),
    }


def show(kind: str, setting: str, row: dict[str, Any]) -> None:
    """One line of the table."""
    low, high = row["interval_95"]
    accepted = (
        f"  accepted: device {row['device_acceptance']:.0%} cloud {row['cloud_acceptance']:.0%}"
        if "device_acceptance" in row
        else ""
    )
    print(
        f"{kind:16} {setting:7} exact {row['exact']:6.1%}  [{low:.1%}, {high:.1%}]  n={row['n']}{accepted}",
        flush=True,
    )


def ask(
    engine: Engine, embedder: Embedder, config: Config, num_questions: int, seed: int, *, both_only: bool
) -> dict[str, Any]:
    """All rows of one seed, or only that which has a target for each seed."""
    codec, spec = codec_of(config.codec), heldout_spec(config)
    result: dict[str, Any] = {}
    evidence = ("evidence", spec, ("both",) if both_only else tuple(ALONE))
    static = ("static", replace(spec, question_weight=0.0, evidence_weight=0.0), ("both",))
    for weights, kind, settings in [evidence] if both_only else [evidence, static]:
        found = defaultdict(list)
        for one in ask_heldout(
            engine, embedder, codec, kind, num_questions=num_questions, settings=settings, seed=seed
        ):
            found[one.setting].append(one)
        for setting in settings:
            result[f"{weights}/{setting}"] = row = summarise(found[setting])
            show(f"{weights} weights", setting, row)
    if both_only:
        return result
    ideal = list(ask_ideal(engine, embedder, config, num_questions=num_questions, seed=seed))
    for name, right in (
        ("retrieved", [one.is_note_found and one.is_page_found for one in ideal]),
        ("oracle", [one.is_exact for one in ideal]),
    ):
        result[f"{name}/both"] = share_of(right)
        show(name, "both", result[f"{name}/both"])
    return result


def main() -> None:
    """Ask, print the table, end with JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seeds", default=str(SEED), help="of the worlds, such as 11,12,13")
    parser.add_argument("--model", default="bundled", help="of both parties: bundled, or a folder")
    parser.add_argument("--memory", type=float, help="of evidence (default: that of the settings)")
    parser.add_argument("--both-only", action="store_true", help="no side alone, no rival, no oracle")
    parser.add_argument("--smoke", action="store_true", help="24 questions")
    arguments = parser.parse_args()
    num_questions = 24 if arguments.smoke else arguments.questions
    print("targets: " + ", ".join(f"{name} {target}" for name, target in TARGETS.items()))
    config = Config().with_names()
    if arguments.memory is not None:
        config = replace(config, weights=replace(config.weights, memory=arguments.memory))
    engine = Engine.load(model_path(arguments.model), num_threads=1)
    embedder = Embedder.load("offline", num_threads=1)
    result: dict[str, Any] = {}
    for seed in map(int, arguments.seeds.split(",")):
        print(f"seed {seed}")
        rows = ask(engine, embedder, config, num_questions, seed, both_only=arguments.both_only)
        result.update({(name if seed == SEED else f"seed {seed}/{name}"): row for name, row in rows.items()})
    finish(result)


if __name__ == "__main__":
    main()
