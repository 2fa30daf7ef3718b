"""What does one re-estimation of relevance cost, and which of them could be left out?

Cost: the embedding of a growing text through `Embedder.embed` and through the library's `encode`, which gives the same
bits, and what is left of `Retriever.relevance`. CPU time, the two in turn. Prediction: nearly all is the forward pass.

Rules: each decides from the prefix alone whether an estimation is left out, and the weights before it stay. Held-out
questions at temperature 0 in the token-wise loop, through the protocol's own state machines; the first rule is the
default. Prediction: what follows a stop word moves weights too, so every rule that saves much changes answers.

Expected run time: 8 minutes for 200 questions on one core; `--smoke` 30 s.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, summary
from tandem.codecs import codec_of
from tandem.config import Config
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.lab.latency.memoized import MemoizedEngine
from tandem.lab.quality import statistics
from tandem.lab.quality.heldout import heldout_spec, retrievers_of, worlds
from tandem.lab.quality.local import LocalPair
from tandem.protocol import decoding
from tandem.protocol.outbox import Send
from tandem.protocol.prefix import Prefix
from tandem.protocol.relevance import RelevanceWeights, Weights
from tandem.protocol.spec import SessionSpec
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES, Party

STOP_WORDS = (
    "a an and are as at be been best but by for from had has have he her his i in is it its like likes not of on or "
    "she so than that the their then these they this those to try was we were what which who whose with you"
)


class Skipping(RelevanceWeights):
    """Weights that stay as they are where `can_skip` says so."""

    def __init__(self, spec: SessionSpec, text: Callable[[Sequence[int]], str]) -> None:
        super().__init__(spec, text)
        self.interval, self.text = spec.weight_interval, text

    def request_next(self, prefix: Prefix, ids: tuple[str, ...], first_step: int | None = None) -> list[Send]:
        """Copy what may stay, then as before."""
        for position in range(self.interval, len(prefix) + 1, self.interval):
            before = self.weights.get(prefix.digests[position - self.interval])
            digest = prefix.digests[position]
            if before is not None and digest not in self.weights and self.can_skip(position, prefix):
                self.weights[digest] = before
        return super().request_next(prefix, ids, first_step)

    def can_skip(self, position: int, prefix: Prefix) -> bool:
        """Whether the weights before stay at this length of the prefix. A function of the prefix alone."""
        raise NotImplementedError


class OnlyStopWords(Skipping):
    """Skip where nothing but stop words and punctuation was added."""

    def can_skip(self, position: int, prefix: Prefix) -> bool:
        """By the text that was added."""
        before, after = (self.text(prefix.tokens[:n]) for n in (position - self.interval, position))
        return all(word in STOP_WORDS.split() for word in re.findall(r"\w+", after[len(before) :].lower()))


class Doubling(Skipping):
    """Skip one estimation, then three, then seven, when each of the last two moved no score by `least`."""

    least = 1.0

    def can_skip(self, position: int, prefix: Prefix) -> bool:
        """By the estimations before, from the first on."""
        last, num_calm, gap, left = self.weights[prefix.digests[0]], 0, 1, 0
        for length in range(self.interval, position, self.interval):
            if left > 0:
                left -= 1
                continue
            now = self.weights[prefix.digests[length]]
            num_calm = num_calm + 1 if distance(now, last) < self.least else 0
            gap = min(8, 2 * gap) if num_calm >= 2 else 1
            last, left = now, gap - 1
        return left > 0


class Leading(Skipping):
    """Skip while one document's weight is at least e^margin times the next one's, or there is no other."""

    margin = 1.0

    def can_skip(self, position: int, prefix: Prefix) -> bool:
        """By the weights before."""
        scores = sorted(self.weights[prefix.digests[position - self.interval]], reverse=True)
        return len(scores) < 2 or scores[0] - scores[1] >= self.margin


class LeadingFar(Leading):
    """As `Leading`, seven times the next one's weight."""

    margin = 2.0


def distance(one: Weights, other: Weights) -> float:
    """The farthest that a score moved."""
    return max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)


RULES: Mapping[str, tuple[type[RelevanceWeights], int]] = {
    "every 3 tokens": (RelevanceWeights, 3),
    "not after stop words alone": (OnlyStopWords, 3),
    "intervals that double": (Doubling, 3),
    "not while one leads by 2": (LeadingFar, 3),
    "not while one leads by 1": (Leading, 3),
    "every 6 tokens": (RelevanceWeights, 6),
    "every token": (RelevanceWeights, 1),
    "every token, not after stop words": (OnlyStopWords, 1),
    "every token, not while one leads by 1": (Leading, 1),
    "static": (RelevanceWeights, 0),
}
"""What is compared: a rule and an interval."""


class Counted:
    """A retriever that remembers, and counts what it is asked to score."""

    def __init__(self, retriever: Retriever) -> None:
        self.search = cache(retriever.search)
        self._relevance = cache(retriever.relevance)
        self.num_asked = 0

    def relevance(self, ids: Sequence[str], text: str) -> list[float]:
        """As `Retriever.relevance`."""
        self.num_asked += 1
        return self._relevance(tuple(ids), text)


@dataclass
class Tally:
    """What a rule did over all questions."""

    right: list[bool] = field(default_factory=list)
    differs: list[bool] = field(default_factory=list)
    num_tokens: int = 0
    num_asked: int = 0


def answer(pair: LocalPair, spec: SessionSpec, rule: type[RelevanceWeights]) -> tuple[str, tuple[int, ...]]:
    """Text and tokens with weights by a rule."""
    with patch.object(decoding, "RelevanceWeights", rule):
        text, outcome = pair.answer(spec)
    return text, tuple(outcome.tokens[spec.home])


def compare_rules(engine: Engine, embedder: Embedder, num_questions: int) -> dict[str, Tally]:
    """Every question with every rule."""
    config = Config()
    codec, spec = codec_of(config.codec), heldout_spec(config)
    tallies = {name: Tally() for name in RULES}
    for question, found in asked(embedder, num_questions):
        remembering = MemoizedEngine(engine)
        engines = dict.fromkeys(PARTIES, cast(Engine, remembering))
        default: tuple[int, ...] | None = None
        for name, (rule, interval) in RULES.items():
            counted = {party: Counted(found[party]) for party in PARTIES}
            pair = LocalPair(engines, cast(Any, counted), codec)
            text, tokens = answer(pair, replace(spec, query=question.text, weight_interval=interval), rule)
            default = default or tokens
            tally = tallies[name]
            tally.right.append(text == question.answer)
            tally.differs.append(tokens != default)
            tally.num_tokens += len(tokens)
            tally.num_asked += sum(each.num_asked for each in counted.values())
        remembering.close_all()
    return tallies


def asked(embedder: Embedder, num_questions: int) -> Iterator[tuple[Any, Mapping[Party, Retriever]]]:
    """Held-out questions with the retrievers of their world; those of `heldout_answers.py`."""
    for world, questions in worlds(num_questions, seed=11):
        with tempfile.TemporaryDirectory() as folder:
            retrievers = retrievers_of(world, Path(folder), embedder)
            for question in questions:
                yield question, retrievers


def show_rules(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """Print the table; the first row is what the others are compared with."""
    default = next(iter(tallies.values()))
    result = {}
    for name, tally in tallies.items():
        only_rule, only_default, p_value = statistics.mcnemar(tally.right, default.right)
        result[name] = row = {
            "exact": sum(tally.right) / len(tally.right),
            "only_rule": only_rule,
            "only_default": only_default,
            "mcnemar_p": p_value,
            "differs": sum(tally.differs) / len(tally.differs),
            "estimations_per_token": tally.num_asked / tally.num_tokens / len(PARTIES),
        }
        print(
            f"{name:38} exact {row['exact']:6.1%} (+{only_rule} -{only_default}, p {p_value:.2g})  other tokens"
            f" {row['differs']:6.1%}  estimations {row['estimations_per_token']:.3f} per token and party",
            flush=True,
        )
    return result


def costs(embedder: Embedder, num_rounds: int) -> dict[str, Any]:
    """CPU milliseconds of one estimation and of its parts, [median and spread]."""
    from sentence_transformers import SentenceTransformer

    from tandem.retrieval.embedding import resolve
    from tandem.retrieval.factory import open_retriever

    library = SentenceTransformer(resolve("offline"), device="cpu").eval()
    retriever = open_retriever(Party.CLOUD, Config(), embedder)
    query, told = "What should Mira play tonight?", " Mira likes puzzle games, so try Vantelu Cor."
    texts = [query + told[:length] for length in range(0, len(told), 4)]
    ids = [hit.id for hit in retriever.search(query, 16)]
    work: dict[str, Callable[[str], object]] = {
        "relevance of 16 documents": lambda text: retriever.relevance(ids, text),
        "embed": lambda text: embedder.embed([text], keep_end=True),
        "encode of the library": lambda text: library.encode([text], normalize_embeddings=True),
        "tokenising": lambda text: library.preprocess([text]),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(num_rounds + 1):
        for text in texts:
            for name, do in work.items():
                started_s = time.process_time()
                do(text)
                times[name] += [1e3 * (time.process_time() - started_s)] * (number > 0)
    found = {name: summary(values) for name, values in times.items()}
    for name, row in found.items():
        print(f"{name:38} {row['p50']:6.2f} ms [{row['p25']:.2f}, {row['p75']:.2f}]")
    return found


def main() -> None:
    """Measure costs, ask, print the tables, end with JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--smoke", action="store_true", help="2 questions")
    arguments = parser.parse_args()
    print("prediction: the forward pass is nearly all of the cost; rules that save much change answers")
    engine, embedder = Engine.load(str(WEIGHTS), num_threads=1), Embedder.load("offline", num_threads=1)
    cost = costs(embedder, 1 if arguments.smoke else 20)
    rules = show_rules(compare_rules(engine, embedder, 2 if arguments.smoke else arguments.questions))
    finish({"cost_ms": cost, "rules": rules})


if __name__ == "__main__":
    main()
