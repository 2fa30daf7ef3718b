"""Can a cloud that follows the protocol, but is curious, guess what the device's private notes say?

The bundled questions are asked over notes whose facts (which of eight kinds of a thing a person likes) are reshuffled,
so that chance is 1 in 8 and no fact follows from another. Both parties run in one process; everything that the device
hands to the link is recorded as bytes, and an attacker with all that a cloud has by right guesses from it
(`tandem_lab.curious.attacker`): from the whole answer, from all that came before the token that states the fact, from
the votes, drafted ids, document weights alone, and from sizes and timing alone.

Predictions: in mode dual the whole answer gives the fact away in at least 9 of 10 cases, since the answer states it;
what comes before that token, the first document weight, sizes and timing give less than half. In mode speculative the
fact is given away where the device drafts with its notes, and not where it drafts without. Solo, nothing is received.
With `device.privacy` the votes still give it away, since any bound above 0 leaves the order of the kinds to be read;
ids that the device draws with its own noise do so less the lower the bound, down to little more than chance at 0.5.
Controls: given the note, the attacker is right every time; its guesses, compared with the facts of another deal, are
right in 1 of 8 cases.

Expected run time: 9 minutes for 5 deals of 28 cases and 10 questions on a quiet machine; `--smoke` one minute.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem_lab.curious.study import CASES, NUM_KINDS, SIGNALS, Trial, guess_by_timing, run_trials, success

PREDICTION = {
    "whole, dual": ">= 0.9",
    "before, weights, sizes, timing": "< 0.5",
    "speculative, device without notes": "chance",
    "controls": "1 given the note, 1/8 shuffled",
}


def table(trials: Sequence[Trial]) -> str:
    """Markdown: cases down, signals across; share of right guesses with its interval in percent."""
    lines = ["| what crosses | " + " | ".join(SIGNALS) + " |", "|---" * (1 + len(SIGNALS)) + "|"]
    for case in dict.fromkeys(trial.case for trial in trials):
        own = [trial for trial in trials if trial.case == case]
        lines.append(f"| {case} | " + " | ".join(_cell(success(own, signal)) for signal in SIGNALS) + " |")
    return "\n".join(lines)


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    low, high = found["interval"]
    return f"{100 * found['share']:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def controls(trials: Sequence[Trial]) -> dict[str, Any]:
    """Right guesses of how many: of one who reads the note, and of one whose guesses belong to another deal."""
    dual = [trial for trial in trials if trial.case.startswith("dual")]
    given_note, whole = success(trials, "note"), success(dual, "whole")
    return {
        "given the note": given_note and [given_note["right"], given_note["of"]],
        "whole, facts of another deal": whole and [whole["shuffled"], whole["of"]],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Ask, guess, and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--deals", type=int, default=5, help="of the facts")
    parser.add_argument("--questions", type=int, default=10, help="of each deal, each about another note")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose names contain it")
    parser.add_argument("--out", type=Path, help="file to which one JSON line per answer is added")
    parser.add_argument("--read", type=Path, nargs="+", help="such files: count them, and ask nothing")
    parser.add_argument("--smoke", action="store_true", help="1 deal of 2 questions")
    arguments = parser.parse_args(argv)
    cases = [case for case in CASES if arguments.only in case.name]
    num_deals, num_questions = (1, 2) if arguments.smoke else (arguments.deals, arguments.questions)
    print(f"prediction: {PREDICTION}; chance: 1/{NUM_KINDS}", flush=True)
    trials = [
        Trial(**json.loads(line)) for path in arguments.read or () for line in path.read_text().splitlines()
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = (
            folder  # what bounded answers spend is no account of the user's documents
        )
        for trial in (
            ()
            if arguments.read
            else run_trials(cases, num_deals, num_questions, Path(folder), arguments.seed)
        ):
            trials.append(trial)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(asdict(trial)) + "\n")
    trials = guess_by_timing(trials, Random(arguments.seed))
    print(table(trials))
    rows = {
        case: {
            signal: success([trial for trial in trials if trial.case == case], signal) for signal in SIGNALS
        }
        for case in dict.fromkeys(trial.case for trial in trials)
    }
    finish({"prediction": PREDICTION, "answers": len(trials), "controls": controls(trials), "rows": rows})


if __name__ == "__main__":
    main()
