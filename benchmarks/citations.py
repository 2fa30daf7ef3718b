"""In how many right answers does the cited passage hold the answer, and what do citations cost?

Asks the held-out questions about the household, mode dual with default settings (placement mirror), the device's notes
private and the cloud's pages public. Of each right answer the accepted text is looked up, and the shares of its words
(docs/explanation/citations.md) say who said it:

- where a note that was read holds the text: the document with the largest share of these words is to be one of those
  that hold the answer (`sources` of the question), and their clear citation, where there is one, likewise;
- where none does, so that a page must: the others are to have the largest share, and no clear citation is to name a
  note.

Controls, on the same answers: the retriever's first hit, and another of the notes that were read, drawn at random.
Nothing is tuned: a citation is clear above one half. SmolLM2 says only what some row tells it, so the words of a fact
come from the row that has it.

Prediction: at least 90 % of the right answers name the note that holds the answer, the first hit about 80 %, another
note hardly ever. Cost: `--cost` times answers of the toys with citations and without, alternately; one exponential
per row and token, so less than 1 % of a token's time.

Expected run time: 10 minutes for 100 questions on one core, `--cost` 1 minute, `--smoke` 15 s.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser, summary
from tandem import Answer, Config, Tandem
from tandem.aggregation.document_weights import DocumentWeights
from tandem.citations import Word, find_words
from tandem.corpora import SMOLLM2
from tandem.protocol.decoding import Attributions
from tandem_lab.bundled import QUESTIONS
from tandem_lab.quality import statistics
from tandem_lab.quality.questions import Question, read_household, read_questions

SEED = 7
UNANSWERABLE = Path(__file__).parent.parent / "tandem_lab/quality/unanswerable.jsonl"


def words_of_answer(answer: Answer, accepted: Sequence[str]) -> list[Word]:
    """The words of the first accepted text in an answer; none where it is not right."""
    for text in accepted:
        pattern = r"\s+".join(map(re.escape, text.split()))
        if found := re.search(rf"(?<!\w){pattern}(?!\w)", answer.text, re.IGNORECASE):
            return [
                word
                for word in find_words(answer.tokens)
                if word.start < found.end() and word.end > found.start()
            ]
    return []


def judge(answer: Answer, question: Question, rng: random.Random) -> dict[str, Any] | None:
    """What is cited for a right answer; None: it is wrong, or nothing is known of its words."""
    words = words_of_answer(answer, question.answers)
    if not words:
        return None
    own = answer.own_sources
    shares = [
        sum(sum(word.citation.documents[place : place + 1]) for word in words) / len(words)
        for place in range(len(own))
    ]
    others = sum(word.citation.others for word in words) / len(words)
    best = max(range(len(own)), key=shares.__getitem__)
    clear = {word.citation.document for word in words} - {None}
    holding = {name.removeprefix("device/") for name in question.sources if name.startswith("device/")}
    is_holding = [source.title in holding for source in own]
    first = max(range(len(own)), key=lambda place: own[place].score or 0.0)
    drawn = rng.choice([place for place in range(len(own)) if place != best] or [best])
    in_note = any(source.text and word_in(source.text, question.answers) for source in own)
    return {
        "id": question.id,
        "needs": question.needs,
        "by_note": is_holding[best],
        "others": others,
        "is_others": others > max(shares),
        "clear": sorted(clear),
        "clear_right": bool(clear) and all(is_holding[place] for place in clear),
        "first_hit": is_holding[first],
        "random": is_holding[drawn],
        "is_in_note": in_note and bool(holding),
        "share": max(shares),
    }


def word_in(text: str, accepted: Sequence[str]) -> bool:
    """Whether a passage holds an accepted text."""
    return any(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", text, re.IGNORECASE) for each in accepted)


def ask_all(questions: Sequence[Question], settings: Sequence[str]) -> list[dict[str, Any]]:
    """What is cited for each right answer."""
    judged, rng = [], random.Random(SEED)
    with Tandem.launch(Config.load(None, ["cluster.runtime=inline", *settings])) as tandem:
        for number, question in enumerate(questions, 1):
            answer = tandem.query(question.text, seed=SEED, max_new_tokens=48)
            if (one := judge(answer, question, rng)) is not None:
                judged.append(one)
                print(f"{number:3} of {len(questions)} {one} {answer.text!r:.100}", flush=True)
    return judged


def share_line(name: str, flags: Sequence[bool]) -> dict[str, Any]:
    """A share with Wilson's interval, printed."""
    if not flags:
        return {"right": 0, "of": 0}
    low, high = statistics.wilson(sum(flags), len(flags))
    print(f"{name:62} {sum(flags):3} of {len(flags):3} ({100 * low:.0f} to {100 * high:.0f} %)")
    return {"right": sum(flags), "of": len(flags), "interval": [low, high]}


def report(judged: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The table."""
    notes = [one for one in judged if one["is_in_note"]]
    pages = [one for one in judged if not one["is_in_note"]]
    return {
        "right_by_needs": Counter(one["needs"] for one in judged),
        "largest_share": share_line(
            "answers in a note: the largest share is of that note",
            [one["by_note"] and not one["is_others"] for one in notes],
        ),
        "largest_own": share_line("  among the notes alone", [one["by_note"] for one in notes]),
        "clear": share_line(
            "  of those with a clear citation: it names that note",
            [one["clear_right"] for one in notes if one["clear"]],
        ),
        "first_hit": share_line("  control: the retriever's first hit", [one["first_hit"] for one in notes]),
        "random": share_line("  control: another of the notes read", [one["random"] for one in notes]),
        "others": share_line(
            "answers in no note: the largest share is the others'", [one["is_others"] for one in pages]
        ),
        "no_note": share_line("  no clear citation names a note", [not one["clear"] for one in pages]),
    }


# ---- support -------------------------------------------------------------------------------------------------


def judge_support(model: str) -> dict[str, Any]:
    """How many answers are marked as said by no document: to questions that the notes do not answer, and right ones."""
    settings = [
        "cluster.runtime=inline",
        "device.index=household",
        f"device.model={model}",
        f"cloud.model={model}",
    ]
    counts: dict[str, Counter[str]] = {"tune": Counter(), "held-out": Counter()}
    notes = [
        question
        for question in read_household("all")
        if question.needs == "device" and question.language == "en"
    ]
    others = map(json.loads, UNANSWERABLE.read_text("utf-8").splitlines())
    asked = [(each.text, each.answers, each.split) for each in notes]
    asked += [(line["question"], (), line["split"]) for line in others]
    with Tandem.launch(Config.load(None, settings)) as tandem:
        for text, accepted, split in asked:
            answer = tandem.query(text, seed=SEED, max_new_tokens=48, only="device", temperature=0.0)
            if accepted and not word_in(answer.text, accepted):
                continue
            kind = "right" if accepted else "unanswerable"
            is_marked = answer.support is not None and answer.support.is_supported is False
            counts[split][kind] += 1
            counts[split][f"{kind}, marked"] += is_marked
            print(
                f"{split:8} {kind:12} {'marked' if is_marked else '':6} {text} {answer.text!r:.80}",
                flush=True,
            )
    print(
        "prediction: of the held-out ones 80 % of the unanswerable are marked, at most 10 % of the right ones"
    )
    print(counts)
    return {split: dict(found) for split, found in counts.items()}


# ---- cost ----------------------------------------------------------------------------------------------------


@contextmanager
def without_citations() -> Iterator[None]:
    """Nothing is computed or told."""
    masses, add = DocumentWeights.masses, Attributions.add
    DocumentWeights.masses = lambda self, weights, token: (0.0,) * len(weights)  # type: ignore[method-assign]
    Attributions.add = lambda self, said: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        DocumentWeights.masses, Attributions.add = masses, add  # type: ignore[method-assign]


def measure_cost(num_rounds: int) -> dict[str, Any]:
    """Processor time per token with citations and without, of the toys in this process."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    questions = list(read_questions(QUESTIONS))[:4]
    settings = ["cluster.runtime=inline", "device.model=bundled", "cloud.model=bundled"]
    with Tandem.launch(Config.load(None, settings)) as tandem:
        for number in range(2 * num_rounds + 2):
            name = ("with", "without")[number % 2]
            if name == "with":
                taken = _time(tandem, questions)
            else:
                with without_citations():
                    taken = _time(tandem, questions)
            if number > 1:  # the first ones warm up
                times[name].append(taken)
    found = {name: summary(values) for name, values in times.items()}
    print(
        f"ms of processor time per token: {found['with']['p50']:.3f} with, {found['without']['p50']:.3f} without"
    )
    return found


def _time(tandem: Tandem, questions: Sequence[Question]) -> float:
    started_s, num_tokens = time.process_time(), 0
    for question in questions:
        num_tokens += len(tandem.query(question.text, seed=SEED).tokens)
    return 1e3 * (time.process_time() - started_s) / num_tokens


def main() -> None:
    """Ask, or measure."""
    parser = new_parser(__doc__)
    parser.add_argument("--count", type=int, default=100, help="questions (default: 100)")
    parser.add_argument("--placement", default="mirror", help="who decides (default: mirror)")
    parser.add_argument("--model", default=SMOLLM2, help="of both parties")
    parser.add_argument("--cost", action="store_true", help="measure processor time instead")
    parser.add_argument(
        "--smoke", action="store_true", help="two questions of the toys, and little of the cost"
    )
    parser.add_argument("--support", action="store_true", help="ask what no note answers, too (8 minutes)")
    given = parser.parse_args()
    if given.support:
        return finish({"model": given.model, "support": judge_support(given.model)})
    if given.cost or given.smoke:
        result: dict[str, Any] = {"cost": measure_cost(2 if given.smoke else 15)}
        if given.cost:
            return finish(result)
        questions, model = list(read_questions(QUESTIONS))[:2], "bundled"
    else:
        result, questions, model = {}, read_household("held-out")[: given.count], given.model
    print("prediction: at least 90 % of right answers from notes name the note that holds the answer")
    settings = [f"device.model={model}", f"cloud.model={model}", f"decoding.placement={given.placement}"]
    judged = ask_all(questions, settings)
    return finish(
        {**result, **report(judged), "placement": given.placement, "model": model, "judged": judged}
    )


if __name__ == "__main__":
    main()
