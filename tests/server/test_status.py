"""What the server tells the page of its parties: toys among their models, and questions that suit their documents."""

from __future__ import annotations

from pathlib import Path
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


def test_the_file_of_questions_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    party = {"model": "bundled", "corpus": "household"}
    examples = described(party, party)["examples"]
    monkeypatch.setattr(Path, "read_text", None)
    assert described(party, party)["examples"] == examples != []


@pytest.mark.parametrize(
    ("device", "cloud"),
    [("", ""), ("bundled", ""), ("", "household"), ("bundled", "household"), ("household", None)],
)
def test_there_are_none_beside_other_documents(device: str, cloud: str | None) -> None:
    """None: a party without documents, or one that does not say which it has."""
    parties = (
        {"model": "bundled"} | ({} if corpus is None else {"corpus": corpus}) for corpus in (device, cloud)
    )
    assert described(*parties)["examples"] == []


def test_toys_are_named_as_such() -> None:
    status = described({"model": "bundled-drafter"}, {"model": "smollm2"})
    assert [party["toy"] for party in status["parties"]] == [TOYS["bundled-drafter"], None]
    joined = described({"model": "bundled"}, {"num_documents": 76})  # of the cloud's model nothing is known
    assert [party["toy"] for party in joined["parties"]] == [TOYS["bundled"], None]
