"""What a treatment changes of a session, and documents joined in one row."""

from __future__ import annotations

import pytest

from tandem.aggregation.document_weights import log_weight
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit
from tandem_lab.baselines.documents import concatenate
from tandem_lab.baselines.experiments import Treatment
from tandem_lab.baselines.random_placement import RANDOM
from tandem_lab.simulation.specs import make_spec

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
