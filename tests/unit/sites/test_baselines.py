"""The laboratory's actors: distributions, whole answers in one call, texts that cross, documents in one row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tandem import Config, Tandem
from tandem.aggregation.document_weights import log_weight
from tandem.aggregation.rules import draft_rule
from tandem.codecs import codec_of
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem.topology import PARTIES, Party
from tandem_lab.baselines.actors import BASELINE_ACTORS
from tandem_lab.baselines.client import Baselines
from tandem_lab.baselines.documents import concatenate
from tandem_lab.baselines.experiments import Treatment
from tandem_lab.baselines.random_placement import RANDOM
from tandem_lab.simulation.specs import make_spec

QUESTION = "Which game should Mira try?"
KEEPING = Treatment(keeps_distributions=True)


@pytest.fixture(scope="module")
def rag() -> Iterator[Tandem]:
    config = Config.load(None, ["link.on_peer_loss=wait"])
    with Tandem.launch(config, runtime="inline", actor_classes=BASELINE_ACTORS) as tandem:
        yield tandem


@pytest.fixture
def baselines(rag: Tandem) -> Iterator[Baselines]:
    """Both sides keep distributions."""
    made = Baselines(rag, {party: site.call for party, site in rag.sites.items()})
    made.treat(dict.fromkeys(PARTIES, KEEPING))
    yield made
    made.treat({})


@pytest.mark.parametrize(
    ("party", "temperature", "rule"), [(Party.DEVICE, 0.0, "coupled"), (Party.CLOUD, 1.0, "algorithm1")]
)
def test_law_of_a_lone_answer_is_the_party_s_own(
    rag: Tandem, baselines: Baselines, party: Party, temperature: float, rule: str
) -> None:
    """Every token is the draw from the side's own decoded law: at temperature 0 its argmax."""
    options: dict[str, Any] = {"seed": 5, "temperature": temperature, "draft_rule": rule, "max_new_tokens": 8}
    options["placement"] = party.value  # of no effect, but the default goes with coupled drafts only
    answer = rag.query(QUESTION, only=party.value, **options)
    kept = baselines.fetch_sequence(answer, party)
    codec = codec_of(rag.config.codec)
    draw = draft_rule(rule, temperature)
    distributions = [codec.decode(distribution) for distribution in kept.distributions]
    drawn = [
        draw.draft(distribution, seed=5, step=step, party=party)
        for step, distribution in enumerate(distributions)
    ]
    assert kept.tokens == answer.token_ids == tuple(drawn)
    if temperature == 0.0:
        assert drawn == [
            int(distribution.ids[np.argmax(distribution.probabilities)]) for distribution in distributions
        ]


def test_a_whole_answer_in_one_call_is_the_same(rag: Tandem, baselines: Baselines) -> None:
    for party in PARTIES:
        answer = rag.query(QUESTION, only=party.value, seed=7)
        kept = baselines.fetch_sequence(answer, party)
        assert baselines.write_answer(QUESTION, party, seed=7) == kept
        assert len(kept.tokens) > 8
        assert np.isfinite(kept.log_weight)


def test_texts_of_the_cloud_and_one_row(rag: Tandem, baselines: Baselines) -> None:
    """The device alone cannot know what the cloud's documents say; with their texts it can."""
    texts = baselines.fetch_texts(QUESTION, 16)
    assert len(set(texts)) == 16
    baselines.treat({Party.DEVICE: Treatment(extra_documents=tuple(texts))})
    answer = rag.query(QUESTION, only="device", seed=7)
    ids = [source.id for source in answer.sources]
    assert ids[4:] == [f"given-{n}" for n in range(1, 17)]
    scores = [source.score for source in answer.sources[4:]]
    own = rag.query(QUESTION, only="cloud", seed=7).sources
    assert scores == pytest.approx([source.score for source in own]), "scored as the cloud scores them"
    baselines.treat({Party.DEVICE: Treatment(extra_documents=tuple(texts), concat_documents=True)})
    joined = rag.query(QUESTION, only="device", seed=7)
    assert [source.id for source in joined.sources] == ["joined"]
    baselines.treat({})
    assert answer.text == rag.query(QUESTION, seed=7).text, "all documents on one side"


SPEC = make_spec(placement="greedy", question_weight=0.5, evidence_weight=2.0, race_depth=8)


def hit(name: str, score: float) -> Hit:
    return Hit(
        name, Document(page_content=f"text {name}", id=name, metadata={"source": f"{name[0]}.md"}), score
    )


@pytest.mark.parametrize(
    ("treatment", "is_static", "placement"),
    [
        (Treatment(), False, "greedy"),
        (Treatment(keeps_distributions=True), False, "greedy"),
        (Treatment(concat_documents=True), True, "greedy"),
        (Treatment(extra_documents=("a text",)), True, "greedy"),
        (Treatment(random_placement=True), False, RANDOM),
    ],
)
def test_a_treatment_changes_the_spec(treatment: Treatment, is_static: bool, placement: str) -> None:
    spec = treatment.apply_to(SPEC)
    weights = (spec.question_weight, spec.evidence_weight)
    assert (weights, spec.decoding.placement) == ((0.0, 0.0) if is_static else (0.5, 2.0), placement)
    assert spec.rules.has_race_lists != treatment.keeps_distributions, "what is kept was encoded by the codec"


def test_one_row_holds_all_documents_and_weighs_as_they_do() -> None:
    (joined,) = concatenate([hit("a1", 0.5), hit("a2", 0.25), hit("b1", 0.1)], 10.0)
    assert joined.document.page_content == "text a1\n\ntext a2\n\ntext b1"
    assert joined.document.metadata == {"source": "a.md, b.md"}
    assert 10.0 * joined.score == pytest.approx(log_weight((5.0, 2.5, 1.0)))
