"""Which rule answers questions over notes and pages best: weights, rows, numbers of documents, beside plain RAG?

The household's questions, a real model at temperature 0; an answer is right if it contains an accepted text. Every rule
is decoded token by token from the very same rows: each row's distribution after a prefix is computed once, in one
engine, and rules that agree share it. So the comparison is paired, and tells of answers, not of time; what a rule costs
is given as rows times tokens. `tandem lab eval qa` asks the same questions through the protocol's state machines.

Rules: `D + C` documents of device and cloud; weights by score alone (static), with the question's likelihood, with
evidence from the answer; rows, joined, both; and the confident owner: the row whose best token has the largest weighted
probability decides. Plain RAG: one prompt with the passages found, and, which no link allows, with the right one.

Prediction: evidence and the question's likelihood beat static weights by a few questions; more rows than 2 + 2 cost
time and answers; plain RAG with the right passage is the bound.

`--split tune` is for choosing defaults, `--split held-out` for reporting them, once. Expected run time: 20 s a question
on one core, so half an hour for a split; `--smoke` one minute, with the bundled model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks._common import finish
from tandem.actors.loading import load_engine
from tandem.aggregation.document_weights import DocumentWeights, log_evidence, log_weight
from tandem.config.schema import PartyConfig
from tandem.corpora import HOUSEHOLD
from tandem.engine.drafter import row_probabilities, weigh_rows
from tandem.engine.engine import Engine, Feed
from tandem.messages import RetrieveResult
from tandem.modes.reference import Row
from tandem.protocol.decoding import JOINT, arrange_rows
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.factory import build_given_index
from tandem.retrieval.retriever import Hit, Retriever
from tandem.topology import PARTIES, Party
from tandem_lab.quality.questions import Question, contains_answer, read_household
from tandem_lab.quality.statistics import mcnemar, wilson

SAY = (
    "First say in one sentence what the document tells about the question, with its names and numbers. Then write "
    "'Answer:' and answer the question. Where a document is given, rely on what it says."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way to answer."""

    device: int = 2
    cloud: int = 2
    layout: str = "rows"
    scale: float = 10.0
    question: float = 1.0
    evidence: float = 1.0
    memory: float = 0.8
    least: float = 0.0  # share that either party keeps at every step
    is_kept: bool = False  # whether what the question says counts for the whole answer, instead of fading
    is_within: bool = False  # whether the question's likelihood counts within a party only, not between them
    is_owner: bool = False  # the confident owner instead of the mixture
    prompt: str = ""  # plain RAG: "best", "each" or "right"
    says: bool = False  # the model is told to say first what its document tells


RULES: dict[str, Rule] = {
    "plain RAG, 3 best of all": Rule(prompt="best", device=3),
    "plain RAG, best of each": Rule(prompt="each"),
    "plain RAG, the right passage": Rule(prompt="right"),
    "4 + 4 static": Rule(device=4, cloud=4, question=0, evidence=0),
    "2 + 2 static": Rule(question=0, evidence=0),
    "2 + 2": Rule(),
    "1 + 1": Rule(device=1, cloud=1),
    "4 + 4": Rule(device=4, cloud=4),
    "2 + 2 evidence alone": Rule(question=0),
    "2 + 2 question alone": Rule(evidence=0),
    "2 + 2 joined": Rule(layout="joined"),
    "2 + 2 both": Rule(layout="both"),
    "2 + 2 least 0.05": Rule(least=0.05),
    "2 + 2 least 0.1": Rule(least=0.1),
    "2 + 2 least 0.2": Rule(least=0.2),
    "2 + 2 least 0.3": Rule(least=0.3),
    "2 + 2 within": Rule(is_within=True),
    "2 + 2 question kept, memory 0.9": Rule(is_kept=True, memory=0.9),
    "2 + 2 memory 0.9": Rule(memory=0.9),
    "2 + 2 within, least 0.1": Rule(is_within=True, least=0.1),
    "2 + 2 question 0.3": Rule(question=0.3),
    "1 + 1 least 0.2": Rule(device=1, cloud=1, least=0.2),
    "2 + 2 owner": Rule(is_owner=True),
    "1 + 1 owner": Rule(device=1, cloud=1, is_owner=True),
    "2 + 2 said aloud": Rule(says=True),
}
SLOW = ("2 + 2 said aloud",)
"""Not among the rules of a run that names none."""


class Reader:
    """One engine, whose rows are sessions of their own, so that rules share what they compute."""

    def __init__(self, engine: Engine, max_new_tokens: int) -> None:
        self.engine, self._most = engine, max_new_tokens
        self._open: dict[str, str] = {}  # session by text
        self._known: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._question = ""

    def ask(self, question: str) -> None:
        """Forget the last question."""
        for session in self._open.values():
            self.engine.close(session)
        self._open.clear()
        self._known.clear()
        self._question = question

    def likelihoods(self, texts: Sequence[str]) -> list[float]:
        """What the question counts in each row."""
        self.probabilities(texts, ())
        return [self.engine.question_likelihoods(self._open[text])[0] for text in texts]

    def probabilities(self, texts: Sequence[str], tokens: tuple[int, ...]) -> Any:
        """[rows, vocab], after these tokens."""
        missing = [text for text in dict.fromkeys(texts) if (text, tokens) not in self._known]
        for text in missing:
            if text not in self._open:
                session = f"row {len(self._open)}"
                self.engine.open(
                    session,
                    self._question,
                    [text] if text else [],
                    self._most,
                    num_stored=0,
                    scores_question=True,
                )
                self._open[text] = session
        if missing:
            # The likelihood of the question is part of a session's first pass.
            fresh = [text for text in missing if tokens and (text, ()) not in self._known]
            if fresh:
                self.probabilities(fresh, ())
            logits = self.engine.forward([Feed(self._open[text], tokens) for text in missing])
            for text, each in zip(missing, logits, strict=True):
                self._known[text, tokens] = row_probabilities(each[:, -1])[0]
        return np.stack([self._known[text, tokens] for text in texts])

    def decode(
        self,
        texts: Sequence[str],
        weights: DocumentWeights,
        choose: Callable[[Any, Any], int],
        balance: Callable[[Any], Any] = lambda weights: weights,
        evidence: Sequence[float] = (),
    ) -> tuple[str, int]:
        """The answer of these rows, and its number of tokens. choose: the next token, by distributions and weights,
        which `balance` may change.
        """
        tokens: tuple[int, ...] = ()
        evidence = tuple(evidence) or weights.start
        while len(tokens) < self._most:
            rows = self.probabilities(texts, tokens)
            token = choose(rows, balance(weigh_rows(weights.weigh(evidence) or (0.0,))))
            evidence = weights.learn(evidence, log_evidence(rows[:, token].tolist()))
            if token in self.engine.eos_token_ids:
                break
            tokens = (*tokens, token)
        return self.engine.text(tokens).strip(), len(tokens)


def of_mixture(rows: Any, weights: Any) -> int:
    """The most probable token of the mixture."""
    return int((weights @ rows.astype(np.float64)).argmax())


def of_owner(rows: Any, weights: Any) -> int:
    """The best token of the row whose best token has the largest weighted probability."""
    return int(rows[int((weights * rows.max(axis=1)).argmax())].argmax())


class Study:
    """The questions, the documents and the readers."""

    def __init__(self, model: str, max_new_tokens: int) -> None:
        party = PartyConfig(model=model, kv_store="off")
        self.reader = Reader(load_engine(party, num_threads=1), max_new_tokens)
        saying = replace(party, system_prompt=SAY)
        self._make_speaker: Callable[[], Reader] = lambda: Reader(
            load_engine(saying, num_threads=1), 2 * max_new_tokens
        )
        self._speaker: Reader | None = None
        embedder = Embedder.load("auto", num_threads=1)
        self.retrievers = {
            party: Retriever.open(build_given_index(party, embedder, "household"), embedder)
            for party in PARTIES
        }

    def answer(self, question: Question, rule: Rule) -> tuple[str, int, int]:
        """The answer, its tokens, and the rows of both parties."""
        reader = self._reader(rule)
        if rule.prompt:
            text = self._prompt(question, rule)
            given, count = reader.decode([text], DocumentWeights((0.0,)), of_mixture)
            return given, count, 1
        parts = [self._rows(question.text, rule, party) for party in PARTIES]
        prior: list[float] = []
        start: list[float] = []
        for rows in parts:
            scores = [rule.scale * row.score for row in rows]
            texts = [row.text for row in rows]
            likelihoods = reader.likelihoods(texts) if rule.question else [0.0] * len(rows)
            own = [a + rule.question * b for a, b in zip(scores, likelihoods, strict=True)]
            if not rule.is_kept:
                start += [rule.question * b for b in likelihoods]
                own = scores
            shift = log_weight(scores) - log_weight(own) if rule.is_within else 0.0
            prior += [each + shift for each in own]
        weights = DocumentWeights(tuple(prior), rule.evidence, rule.memory)
        texts = [row.text for rows in parts for row in rows]
        num_device = len(parts[0])

        def balance(shares: Any) -> Any:
            device = float(shares[:num_device].sum())
            kept = min(max(device, rule.least), 1 - rule.least)
            if device == kept or not 0 < device < 1:
                return shares
            return np.concatenate(
                [shares[:num_device] * kept / device, shares[num_device:] * (1 - kept) / (1 - device)]
            )

        given, count = reader.decode(
            texts, weights, of_owner if rule.is_owner else of_mixture, balance, start
        )
        return given, count, len(texts)

    def start(self, question: str) -> None:
        """A new question."""
        for reader in (self.reader, self._speaker):
            if reader is not None:
                reader.ask(question)
        self.question = question

    def _reader(self, rule: Rule) -> Reader:
        if not rule.says:
            return self.reader
        if self._speaker is None:
            self._speaker = self._make_speaker()
            self._speaker.ask(self.question)
        return self._speaker

    def _hits(self, question: str, party: Party, count: int) -> list[Hit]:
        return self.retrievers[party].search(question, count) if count else []

    def _rows(self, question: str, rule: Rule, party: Party) -> tuple[Row, ...]:
        hits = self._hits(question, party, rule.device if party is Party.DEVICE else rule.cloud)
        found = RetrieveResult(
            session=0,
            ids=tuple(hit.id for hit in hits),
            texts=tuple(hit.document.page_content for hit in hits),
            scores=tuple(hit.score for hit in hits),
            retrieve_us=0,
        )
        return arrange_rows(found, rule.layout)

    def _prompt(self, question: Question, rule: Rule) -> str:
        """What one prompt of plain RAG holds."""
        if rule.prompt == "right":
            return JOINT.join((HOUSEHOLD / source).read_text("utf-8").strip() for source in question.sources)
        count = 1 if rule.prompt == "each" else rule.device
        hits = [hit for party in PARTIES for hit in self._hits(question.text, party, count)]
        ranked = sorted(hits, key=lambda hit: -hit.score)[: len(PARTIES) if rule.prompt == "each" else count]
        return JOINT.join(hit.document.page_content for hit in ranked)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--split", default="tune", choices=("tune", "held-out"))
    parser.add_argument("--rules", help="separated by semicolons (default: all)")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument(
        "--out", type=Path, help="a jsonl of all answers, appended to; what is there is not asked again"
    )
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.model, arguments.count, arguments.max_new_tokens = "bundled", 2, 8
    names = arguments.rules.split(";") if arguments.rules else [name for name in RULES if name not in SLOW]
    if unknown := set(names) - set(RULES):
        parser.error(f"a rule is one of {'; '.join(RULES)} (got {'; '.join(sorted(unknown))})")
    questions = read_household(arguments.split)[arguments.first : arguments.first + arguments.count]
    lines: list[dict[str, Any]] = []
    if arguments.out and arguments.out.exists():
        lines = [json.loads(line) for line in arguments.out.read_text("utf-8").splitlines()]
    done = {(line["id"], line["rule"]) for line in lines}
    study = Study(arguments.model, arguments.max_new_tokens)
    for question in questions:
        wanted = [name for name in names if (question.id, name) not in done]
        if not wanted:
            continue
        study.start(question.text)
        for name in wanted:
            line = {"id": question.id, "needs": question.needs, "language": question.language, "rule": name}
            given, line["tokens"], line["rows"] = study.answer(question, RULES[name])
            lines.append(line | {"given": given, "right": contains_answer(given, question.answers)})
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1], ensure_ascii=False) + "\n")
        marks = ("x" if line["right"] else "." for line in lines[-len(wanted) :])
        print(question.id, "".join(marks), flush=True)
    ids = {question.id for question in questions}
    report([line for line in lines if line["id"] in ids and line["rule"] in names], names)


def report(lines: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """A line for each rule: right answers by what they need, against the default by McNemar's test, and cost."""
    result: dict[str, Any] = {}
    base = {line["id"]: line["right"] for line in lines if line["rule"] == "2 + 2"}
    for name in names:
        own = [line for line in lines if line["rule"] == name]
        if not own:
            continue
        counts = {
            needs: f"{sum(line['right'] for line in own if line['needs'] == needs)}/"
            f"{sum(line['needs'] == needs for line in own)}"
            for needs in ("device", "cloud", "both")
        }
        num_right = sum(line["right"] for line in own)
        low, high = wilson(num_right, len(own))
        paired = [(line["right"], base[line["id"]]) for line in own if line["id"] in base]
        p_value = mcnemar([a for a, _ in paired], [b for _, b in paired])[2] if paired else 1.0
        cost = sum(line["rows"] * line["tokens"] for line in own) / len(own)
        result[name] = {"right": num_right, "of": len(own), **counts, "p": p_value, "row_tokens": cost}
        print(
            f"{name:32s} {num_right:4d} of {len(own)} [{low:.0%}, {high:.0%}]  device {counts['device']}, cloud "
            f"{counts['cloud']}, both {counts['both']}; p against 2 + 2 {p_value:.2g}; rows x tokens {cost:.0f}"
        )
    finish(result)


if __name__ == "__main__":
    main()
