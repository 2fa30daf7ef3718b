"""What a query of a later turn finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem.messages import RetrieveRequest
from tandem.protocol.services import find_documents
from tandem.retrieval.documents import Document
from tandem.retrieval.retriever import Hit

FOUND = {
    "And hers?": "abc",
    "Where is his key?\nAnd hers?": "dae",
    "And theirs?": "a",
    "Where?\nAnd theirs?": "",
}


class Documents:
    """Finds what FOUND says, with a score that tells the query."""

    def search(self, query: str, k: int, *, filter: Any = None) -> list[Hit]:
        assert filter == {"source": "a.md"}
        return [Hit(name, Document(page_content=name), float(len(query))) for name in FOUND[query][:k]]

    def join(self, hits: Sequence[Hit]) -> list[Hit]:
        return [hit for hit in hits if hit.id != "e"]


def found(query: str, before: str, k: int) -> str:
    filter = '{"source": "a.md"}'
    request = RetrieveRequest(session=1, query=query, num_documents=k, filter=filter, before=before)
    return "".join(hit.id for hit in find_documents(Documents(), request))


def test_hits_take_turns_with_those_of_the_question_before() -> None:
    """Each document once, and no more than are asked for."""
    before = "Where is his key?"
    assert found("And hers?", "", 2) == "ab"
    assert [found("And hers?", before, k) for k in (1, 2, 3)] == ["a", "ad", "adb"]
    assert found("And theirs?", "Where?", 4) == "a"
    assert found("And hers?", before, 9) == "adbc"  # what belongs together is one
