"""What does weighing documents by evidence gain, and what does it cost?

Cost: whole answers of both parties in one process, with static weights, with evidence, and with all documents joined in
one row too: bytes over the link, processor time of both, right answers. Prediction: the bytes stay, since a vote has
its weight anyway; evidence reads probabilities that the pass has computed, and costs a token fed once more only where
the committed one was not the party's own draft.

Quality: static weights against the question's likelihood, evidence with several memories, and other layouts of rows.
Exact answers through the protocol's state machines at temperature 0, and the perplexity of the right answer,
teacher-forced, on
- the bundled questions (notes on the device, pages in the cloud),
- held-out worlds of the same kind,
- held-out worlds whose notes and pages are dealt out to both sides, so that either may hold either fact.
Prediction: the answer's first fact names what the second is about, but only the page itself tells the second, so the
evidence for it comes with its first token; perplexity falls, least with memory 1, which cannot leave the document that
told the first fact.

Wilson's intervals, McNemar's test against static weights, paired bootstrap of the perplexity's ratio. Expected run
time: 25 minutes for 100 questions on one core; `--smoke` under 20 s.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.client.tandem import Tandem
from tandem.codecs import codec_of
from tandem.config.schema import Config, WeightsConfig
from tandem.retrieval.embedding import Embedder
from tandem.retrieval.factory import open_index
from tandem.retrieval.retriever import Retriever
from tandem.topology import PARTIES
from tandem_lab.bundled import QUESTIONS
from tandem_lab.quality import statistics
from tandem_lab.quality.document_sets import Counts
from tandem_lab.quality.methods import METHODS
from tandem_lab.quality.qa import Prediction, predictions
from tandem_lab.quality.questions import Question, exact_match, read_questions
from tandem_lab.quality.setup import Parties, load_engines
from tandem_lab.quality.teacher_forcing import Teacher
from tandem_lab.quality.worlds import indexes_of, retrievers_of, split_world, worlds

SEED = 11
STATIC = ("weights.question=0", "weights.evidence=0")
LIVE: Mapping[str, tuple[str, ...]] = {
    "static": STATIC,
    "evidence": (),
    "both": ("device.documents=both", "cloud.documents=both"),
}
"""Settings of whole answers, by name."""
Asked = Iterator[tuple[Parties, Question]]


@dataclass(frozen=True)
class Setting:
    """Weights that are compared, and how documents stand in rows."""

    name: str
    weights: WeightsConfig
    method: str = "evidence"


def settings(base: WeightsConfig, *, is_smoke: bool) -> list[Setting]:
    """Static first: the rival that the others are compared with."""
    found = [Setting("static", base, "static"), Setting("the default", base)]
    if is_smoke:
        return found
    found.append(Setting("question alone", replace(base, evidence=0.0)))
    found.append(Setting("evidence alone", replace(base, question=0.0)))
    found += [Setting(f"memory {memory:g}", replace(base, memory=memory)) for memory in (0.0, 0.8, 1.0)]
    return [*found, Setting("joined", base, "joined"), Setting("both", base, "both")]


# ---- cost ----------------------------------------------------------------------------------------------------


def live(num_questions: int) -> list[dict[str, Any]]:
    """Answers to bundled questions at temperature 0, both parties in this process."""
    rows = []
    for name, changes in LIVE.items():
        overrides = ("cluster.runtime=inline", "sampling.temperature=0", *changes)
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
        row = {
            "weights": name,
            "bytes_per_token": sum(sent) / num_tokens,
            "ms_per_token": 1e3 * worked_s / num_tokens,
            "right": sum(right),
            "questions": len(right),
        }
        print(
            f"{name:9} {row['bytes_per_token']:.0f} bytes and {row['ms_per_token']:.1f} ms of processor time per "
            f"token, {row['right']} of {row['questions']} right",
            flush=True,
        )
        rows.append(row)
    return rows


# ---- quality -------------------------------------------------------------------------------------------------


def bundled(parties: Callable[[Mapping[Any, Retriever]], Parties], embedder: Embedder, count: int) -> Asked:
    """The bundled questions."""
    config = Config().with_names()
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
    config = Config().with_names()
    for both, question in asked:
        for setting in chosen:
            how = replace(config, weights=setting.weights)
            teacher = Teacher(both.engines, setting.weights)
            methods = {setting.method: METHODS[setting.method]}
            given[setting.name] += predictions(both, question, methods, [counts], how, teacher)
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
        f"{where:16} {name:16} exact {found['exact']:6.1%} [{low:.1%}, {high:.1%}]"
        f"  against static +{only_ours} -{only_static} p {p_value:.2g}"
        f"  perplexity {found['perplexity']:.3f}, over static's {ratio:.3f} [{ratio_low:.3f}, {ratio_high:.3f}]",
        flush=True,
    )
    return found


def main() -> None:
    """Measure costs, ask, print the tables, end with JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--questions", type=int, default=100, help="of each kind of held-out worlds")
    parser.add_argument("--counts", default="4+16", help="documents of device and cloud")
    parser.add_argument("--cost-only", action="store_true", help="leave quality out")
    parser.add_argument("--smoke", action="store_true", help="3 questions, few settings")
    arguments = parser.parse_args()
    print("prediction: evidence costs no bytes and little time; perplexity falls, least with memory 1")
    result: dict[str, Any] = {"live": live(2 if arguments.smoke else 20)}
    if arguments.cost_only:
        finish(result)
        return
    embedder = Embedder.load("offline", num_threads=1)
    engines, config = load_engines(Config().with_names()), Config().with_names()
    device, _, cloud = arguments.counts.partition("+")
    counts = Counts(int(device), int(cloud or device))

    def parties(retrievers: Mapping[Any, Retriever]) -> Parties:
        return Parties(engines, retrievers, codec_of(config.codec), False)

    count = 3 if arguments.smoke else arguments.questions
    chosen = settings(config.weights, is_smoke=arguments.smoke)
    kinds: dict[str, Asked] = {"bundled": bundled(parties, embedder, 3 if arguments.smoke else 20)}
    if not arguments.smoke:
        kinds["held out"] = heldout(parties, embedder, count, is_dealt=False)
        kinds["held out, dealt"] = heldout(parties, embedder, count, is_dealt=True)
    print(f"{counts.device} + {counts.cloud} documents")
    for name, asked in kinds.items():
        result[name] = compare(asked, chosen, counts, name)
    finish(result)


if __name__ == "__main__":
    main()
