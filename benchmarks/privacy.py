"""What does `device.privacy` cost in right answers, and what do answers spend?

The household's questions of the tuning half, the device's notes and the cloud's pages, both parties in one process
under a virtual clock, so that answers are those of the running system. Every bound c is asked at temperature 0, where
it shows in the answers alone, and above 0, where the accountant adds up its nats, too. Rivals: no bound; no bound but
equal shares of both parties, which a bound brings with it; no documents on the device.

Prediction: a bound of 8 nats costs little, for the bare row gives most tokens of a note more than e^-8 of what the note
gives them; one of 0.5 leaves of the device's notes what none leaves, and spends at most log(2 cosh 0.5 - 1) = 0.23 nats
per token.

Expected run time: 25 minutes for 30 questions and SmolLM2 on one core; `--smoke` 20 s with the bundled model.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.client.request import spec_of
from tandem.config.schema import Config
from tandem_lab.bundled import QUESTIONS
from tandem_lab.quality.local import LocalPair
from tandem_lab.quality.questions import Question, contains_answer, read_household, read_questions
from tandem_lab.quality.setup import Parties, load
from tandem_lab.quality.statistics import wilson

BOUNDS = (50.0, 8.0, 2.0, 0.5)


def settings(config: Config) -> dict[str, Config]:
    """What is compared, by name."""
    equal = replace(config, weights=replace(config.weights, max_peer_share=0.5))
    bounded = {
        f"c = {bound:g}": replace(config, device=replace(config.device, privacy=bound)) for bound in BOUNDS
    }
    bare = replace(config, device=replace(config.device, num_documents=0))
    return {"no bound": config, "no bound, equal shares": equal, **bounded, "no device documents": bare}


def ask(
    parties: Parties, config: Config, questions: Sequence[Question], temperature: float
) -> dict[str, Any]:
    """Right answers, also of the questions that need the device's documents, and nats of the accountant."""
    pair = LocalPair(parties.engines, parties.retrievers, parties.codec, config.device.privacy)
    right, needing, nats, largest = 0, [0, 0], [], 0.0
    for number, question in enumerate(questions):
        sampling = replace(config.sampling, temperature=temperature)
        decoding = replace(config.decoding, max_window=1, placement="device", draft_rule="coupled")
        spec = replace(
            spec_of(config), query=question.text, seed=number, sampling=sampling, decoding=decoding
        )
        text, _ = pair.answer(spec)
        is_right = contains_answer(text, question.answers)
        right += is_right
        if question.needs in ("device", "both"):
            needing = [needing[0] + is_right, needing[1] + 1]
        nats.append(sum(pair.divergences))
        largest = max(largest, *pair.divergences, 0.0)
    return {
        "right": right,
        "of": len(questions),
        "interval": wilson(right, len(questions)),
        "needing_device": needing,
        "nats_per_answer": statistics.median(nats),
        "most_nats_per_answer": max(nats),
        "most_nats_per_token": largest,
    }


def main() -> None:
    """Ask everything by every setting, and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=32, help="of the longest answer")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--smoke", action="store_true", help="3 questions, the bundled model")
    arguments = parser.parse_args()
    print(
        "prediction: 8 nats cost little, 0.5 leave of the notes what none leaves; at most 0.23 nats per token"
    )
    model = "bundled" if arguments.smoke else arguments.model
    overrides = [
        f"device.model={model}",
        f"cloud.model={model}",
        f"sampling.max_new_tokens={arguments.tokens}",
    ]
    config = Config.load(None, overrides)
    is_household = config.device.index == "household"
    asked = read_household("tune") if is_household else read_questions(QUESTIONS)
    asked = asked[: 3 if arguments.smoke else arguments.questions]
    parties = load(config)
    result: dict[str, Any] = {}
    for temperature in arguments.temperatures:
        for name, changed in settings(config).items():
            row = result[f"{name}, temperature {temperature:g}"] = ask(parties, changed, asked, temperature)
            print(
                f"{temperature:4g} {name:24} {row['right']:3} of {row['of']}, of those that need the device "
                f"{row['needing_device'][0]} of {row['needing_device'][1]}; nats per answer "
                f"{row['nats_per_answer']:.2f}, at most {row['most_nats_per_answer']:.2f}; per token at most "
                f"{row['most_nats_per_token']:.2f}",
                flush=True,
            )
    finish({"model": model, **result})


if __name__ == "__main__":
    main()
