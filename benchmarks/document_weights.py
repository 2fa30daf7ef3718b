"""What do dynamic weights of documents cost, and what do they gain (DRAGON section 4.1)?

Cost: one estimate of relevance by the embedder (one short text, whatever the number of documents) and by a
cross-encoder of the size of ms-marco-MiniLM-L6-v2 (every document again). Prediction: the embedder's does not depend on
the documents; the cross-encoder's is proportional to their number and about to their length. And whole answers of both
parties in one process, by `weights.interval`: bytes over the link, processor time of both, right answers. Prediction:
the bytes stay, since a vote has its weight anyway and no estimate crosses; at n = 1 each token waits for an embedding.

Quality: static weights against weights estimated every n tokens, with and without momentum. Exact answers through the
protocol's state machines at temperature 0, and the perplexity of the right answer, teacher-forced, on
- the bundled questions (notes on the device, pages in the cloud),
- held-out worlds of the same kind,
- held-out worlds whose notes and pages are dealt out to both sides, so that either may hold either fact.
Prediction: the answer's first fact names what the second is about, so dynamic weights find the second page and static
ones cannot; perplexity falls for every n, most for n = 1, and momentum delays it. Pages of the wrong kind have flat
laws, which leaves the argmax alone: exact answers gain less than perplexity does.

Wilson's intervals, McNemar's test against static weights, paired bootstrap of the perplexity's ratio. Expected run
time: 25 minutes for 100 questions on one core; `--smoke` under 20 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, summary
from tandem.client import Tandem
from tandem.codecs import codec_of
from tandem.config import Config, WeightsConfig
from tandem.lab.quality import statistics
from tandem.lab.quality.answers import exact_match
from tandem.lab.quality.document_sets import Counts
from tandem.lab.quality.heldout import indexes_of, retrievers_of, split_world, worlds
from tandem.lab.quality.methods import METHODS
from tandem.lab.quality.qa import Prediction, predictions
from tandem.lab.quality.questions import Question, read_questions
from tandem.lab.quality.setup import Parties, load_engines
from tandem.lab.quality.teacher_forcing import Teacher
from tandem.lab.training.bundle import QUESTIONS
from tandem.retrieval.embedding import Embedder, resolve
from tandem.retrieval.factory import open_index
from tandem.retrieval.retriever import Retriever
from tandem.retrieval.scoring import CrossEncoderScorer, Scorer
from tandem.topology import PARTIES

SEED = 11
TEXT = "the jury for puzzle games chose another title this time and the votes were counted in spring"
Asked = Iterator[tuple[Parties, Question]]


@dataclass(frozen=True)
class Setting:
    """Weights that are compared."""

    name: str
    weights: WeightsConfig


def settings(base: WeightsConfig, *, is_smoke: bool) -> list[Setting]:
    """Static first: the rival that the others are compared with."""
    found = [Setting("static", replace(base, interval=0, momentum=0.0))]
    for momentum in (0.0,) if is_smoke else (0.0, 0.5):
        for interval in (3,) if is_smoke else (1, 3, 6):
            name = f"dynamic n={interval}" + (f", momentum {momentum}" if momentum else "")
            found.append(Setting(name, replace(base, interval=interval, momentum=momentum)))
    return found


# ---- cost ----------------------------------------------------------------------------------------------------


def cross_encoder(name: str | None, folder: Path) -> CrossEncoderScorer:
    """The one that is named, or one of MiniLM's six layers whose output layer is random: as fast, and knows nothing."""
    if name is not None:
        return CrossEncoderScorer.load(name, num_threads=1)
    from transformers import AutoTokenizer, BertForSequenceClassification
    from transformers.utils import logging

    quiet: Any = logging
    quiet.set_verbosity_error()  # that the output layer is random is known
    quiet.disable_progress_bar()
    trunk: Any = BertForSequenceClassification
    trunk.from_pretrained(resolve("offline"), num_labels=1).save_pretrained(folder)
    tokenizers: Any = AutoTokenizer
    tokenizers.from_pretrained(resolve("offline")).save_pretrained(folder)
    return CrossEncoderScorer.load(str(folder), num_threads=1)


def costs(embedder: Embedder, scorer: Scorer, *, is_smoke: bool) -> list[dict[str, Any]]:
    """Milliseconds of one estimate."""
    rows = []
    runs = 2 if is_smoke else 15
    for num_words in (16,) if is_smoke else (16, 64, 160):
        text = text_of(num_words)
        times = timed(lambda text=text: embedder.embed([text], keep_end=True), runs)  # type: ignore[misc]
        rows.append({"scorer": "embedder", "documents": "any", "words": num_words, "ms": times})
    for num_documents in (1, 4) if is_smoke else (1, 4, 16):
        for num_words in (32,) if is_smoke else (32, 128):
            documents, text = [text_of(num_words)] * num_documents, text_of(24)
            times = timed(lambda text=text, documents=documents: scorer.scores(text, documents), runs)  # type: ignore[misc]
            rows.append(
                {"scorer": "cross-encoder", "documents": num_documents, "words": num_words, "ms": times}
            )
    return rows


def timed(work: Callable[[], Any], runs: int) -> dict[str, float]:
    """Summary of the times of `runs` calls after one to warm up, in milliseconds."""
    work()
    times = []
    for _ in range(runs):
        started_s = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started_s))
    return {name: round(value, 2) for name, value in summary(times).items()}


def text_of(num_words: int) -> str:
    """A text of so many words."""
    words = TEXT.split()
    return " ".join(words[place % len(words)] for place in range(num_words))


def live(num_questions: int) -> list[dict[str, Any]]:
    """Answers to bundled questions at temperature 0, both parties in this process, by interval; 0 is static."""
    rows = []
    for interval in (0, 3, 1):
        overrides = ("cluster.runtime=inline", "sampling.temperature=0", f"weights.interval={interval}")
        with Tandem.launch(Config.load(None, overrides)) as tandem:
            asked = list(read_questions(QUESTIONS))[:num_questions]
            tandem.query(asked[0].text)  # caches and connections
            started_s = time.process_time()
            answers = [tandem.query(question.text) for question in asked]
            worked_s = time.process_time() - started_s
        num_tokens = sum(len(answer.tokens) for answer in answers)
        sent = [each.statistics.sent_bytes + each.statistics.received_bytes for each in answers]
        right = [
            exact_match(each.text, question.answers) for each, question in zip(answers, asked, strict=True)
        ]
        rows.append(
            {
                "interval": interval,
                "bytes_per_token": sum(sent) / num_tokens,
                "ms_per_token": 1e3 * worked_s / num_tokens,
                "right": sum(right),
                "questions": len(right),
            }
        )
    return rows


# ---- quality -------------------------------------------------------------------------------------------------


def bundled(parties: Callable[[Mapping[Any, Retriever]], Parties], embedder: Embedder, count: int) -> Asked:
    """The bundled questions."""
    config = Config()
    both = parties({party: Retriever(open_index(party, config, embedder), embedder) for party in PARTIES})
    for question in read_questions(QUESTIONS)[:count]:
        yield both, question


def heldout(
    parties: Callable[[Mapping[Any, Retriever]], Parties], embedder: Embedder, count: int, *, is_dealt: bool
) -> Asked:
    """Held-out worlds; dealt: either side may hold either fact."""
    for number, (world, questions) in enumerate(worlds(count, SEED)):
        with tempfile.TemporaryDirectory() as folder:
            if is_dealt:
                retrievers = indexes_of(split_world(world, Random(number)), Path(folder), embedder)
            else:
                retrievers = retrievers_of(world, Path(folder), embedder)
            both = parties(retrievers)
            for question in questions:
                yield both, Question(question.text, (question.answer,))


def compare(asked: Asked, chosen: Sequence[Setting], counts: Counts, name: str) -> dict[str, Any]:
    """Every question with every setting."""
    given: dict[str, list[Prediction]] = {setting.name: [] for setting in chosen}
    config = Config()
    for both, question in asked:
        for setting in chosen:
            how = replace(config, weights=setting.weights)
            teacher = Teacher(both.engines, setting.weights)
            one = predictions(both, question, {"dynamic": METHODS["dynamic"]}, [counts], how, teacher)
            given[setting.name] += one
    return {
        setting.name: judged(given[setting.name], given["static"], name, setting.name) for setting in chosen
    }


def judged(ours: Sequence[Prediction], static: Sequence[Prediction], where: str, name: str) -> dict[str, Any]:
    """Exact answers and perplexity, with intervals and against static weights; printed as a line."""
    right, rivals = [one.is_exact for one in ours], [one.is_exact for one in static]
    losses, theirs = [one.losses for one in ours], [one.losses for one in static]
    low, high = statistics.wilson(sum(right), len(right))
    only_ours, only_static, p_value = statistics.mcnemar(right, rivals)
    ratio, ratio_low, ratio_high = statistics.ratio_interval(losses, theirs)
    found = {
        "n": len(ours),
        "exact": sum(right) / len(right),
        "exact_interval": [low, high],
        "only_this": only_ours,
        "only_static": only_static,
        "mcnemar_p": p_value,
        "perplexity": statistics.perplexity(losses),
        "perplexity_interval": statistics.perplexity_interval(losses),
        "ratio_to_static": [ratio, ratio_low, ratio_high],
    }
    print(
        f"{where:16} {name:26} exact {found['exact']:6.1%} [{low:.1%}, {high:.1%}]"
        f"  against static +{only_ours} -{only_static} p {p_value:.2g}"
        f"  perplexity {found['perplexity']:.3f}, over static's {ratio:.3f} [{ratio_low:.3f}, {ratio_high:.3f}]",
        flush=True,
    )
    return found


def main() -> None:
    """Measure costs, ask, print the tables, end with JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=100, help="of each kind of held-out worlds")
    parser.add_argument("--scales", default="10", help="values of weights.scale, such as 5,10,20")
    parser.add_argument("--counts", default="4+16", help="documents of device and cloud")
    parser.add_argument("--scorer", help="a cross-encoder by hub name or path: its cost, and its quality too")
    parser.add_argument("--cost-only", action="store_true", help="leave quality out")
    parser.add_argument("--smoke", action="store_true", help="3 questions, few settings")
    arguments = parser.parse_args()
    print(
        "prediction: embedder's cost flat in documents, cross-encoder's proportional; "
        "perplexity falls with dynamic weights"
    )
    embedder = Embedder.load("offline", num_threads=1)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        scorer = cross_encoder(arguments.scorer, Path(folder))
        result["cost"] = costs(embedder, scorer, is_smoke=arguments.smoke)
    for row in result["cost"]:
        print(
            f"{row['scorer']:14} {row['documents']!s:>4} documents, {row['words']:4} words: {row['ms']['p50']:8.2f} ms"
        )
    result["live"] = live(2 if arguments.smoke else 20)
    for row in result["live"]:
        print(
            f"interval {row['interval']}: {row['bytes_per_token']:.0f} bytes and {row['ms_per_token']:.1f} ms of "
            f"processor time per token, {row['right']} of {row['questions']} right"
        )
    if arguments.cost_only:
        finish(result)
        return
    engines, config = load_engines(Config()), Config()
    device, _, cloud = arguments.counts.partition("+")
    counts = Counts(int(device), int(cloud or device))

    def parties(retrievers: Mapping[Any, Retriever]) -> Parties:
        return Parties(engines, retrievers, codec_of(config.codec), False)

    count = 3 if arguments.smoke else arguments.questions
    for scale in map(float, arguments.scales.split(",")):
        chosen = settings(replace(config.weights, scale=scale), is_smoke=arguments.smoke)
        kinds: dict[str, Asked] = {"bundled": bundled(parties, embedder, 3 if arguments.smoke else 20)}
        if not arguments.smoke:
            kinds["held out"] = heldout(parties, embedder, count, is_dealt=False)
            kinds["held out, dealt"] = heldout(parties, embedder, count, is_dealt=True)
        print(f"scale {scale:g}, {counts.device} + {counts.cloud} documents")
        for name, asked in kinds.items():
            result[f"{name}, scale {scale:g}"] = compare(asked, chosen, counts, name)
    if arguments.scorer is not None:
        result["cross-encoder"] = ranked(parties, embedder, scorer, counts, count)
    finish(result)


def ranked(
    parties: Callable[[Mapping[Any, Retriever]], Parties],
    embedder: Embedder,
    scorer: Scorer,
    counts: Counts,
    count: int,
) -> dict[str, Any]:
    """The cross-encoder that was named, on held-out worlds: its logits are weights at scale 1."""

    def with_scorer(retrievers: Mapping[Any, Retriever]) -> Parties:
        return parties({party: Retriever(each.index, embedder, scorer) for party, each in retrievers.items()})

    chosen = settings(replace(Config().weights, scale=1.0), is_smoke=True)
    return compare(heldout(with_scorer, embedder, count, is_dealt=False), chosen, counts, scorer.name[-16:])


if __name__ == "__main__":
    main()
