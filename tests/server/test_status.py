"""What the server tells the page of its parties: toys among their models, and questions that suit their documents."""

from __future__ import annotations

from typing import Any

import pytest

from tandem import Config
from tandem.corpora import TOYS, example_questions
from tandem.plugins.server.app import describe
from tandem.plugins.server.queries import QueryLimit


def described(device: dict[str, Any], cloud: dict[str, Any]) -> dict[str, Any]:
    """The status of two parties that describe themselves so."""
    state = {"cluster": "inline", "parties": {"device": device, "cloud": cloud}, "actors": []}
    return describe(state, Config(), QueryLimit(1))


@pytest.mark.parametrize("name", ["bundled", "household"])
@pytest.mark.parametrize("model", ["bundled", "smollm2"])
def test_questions_suit_the_documents_whatever_the_model(name: str, model: str) -> None:
    party = {"model": model, "corpus": name}
    assert described(party, party)["examples"] == example_questions(name) != []


def test_toys_are_named_as_such() -> None:
    status = described({"model": "bundled-drafter"}, {"model": "smollm2"})
    assert [party["toy"] for party in status["parties"]] == [TOYS["bundled-drafter"], None]
    joined = described({"model": "bundled"}, {"num_documents": 76})  # of the cloud's model nothing is known
    assert [party["toy"] for party in joined["parties"]] == [TOYS["bundled"], None]
