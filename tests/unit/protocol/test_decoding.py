"""What a decoder computes, with which rows and weights; how it drafts and rolls back is in transcripts/drafting."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.aggregation.document_weights import DocumentWeights, log_weight
from tandem.aggregation.rules import Step
from tandem.errors import GenerationError
from tandem.messages import DecoderReady, RetrieveFailed, RetrieveRequest, RetrieveResult
from tandem.protocol import decoding
from tandem.protocol.decoding import (
    DecodingSession,
    DocumentRow,
    DraftingSession,
    FollowingSession,
    Forward,
    Prefill,
    arrange_rows,
)
from tandem.protocol.log import Prefix, digests_along
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec

# ---- the beginning ---------------------------------------------------------------------------------------------


def test_documents_that_did_not_fit_have_no_weight() -> None:
    made = DraftingSession(make_spec(question_weight=0.0, evidence_weight=0.0), Party.DEVICE)
    made.receive(
        RetrieveResult(session=1, ids=("a", "b"), texts=("x", "y"), scores=(0.5, 0.2), retrieve_us=7)
    )
    (ready,) = made.finish_prefill(11, (), [1])
    assert (ready.message.sources, ready.message.scores) == (("b",), (0.2,))
    job = made.next_job()
    assert isinstance(job, Forward)
    assert job.weights.prior == (2.0,)


def test_a_filter_goes_to_the_search_and_what_lets_nothing_through_is_told() -> None:
    made = DraftingSession(make_spec(device_filter='{"source": ["a"]}', device_documents=2), Party.DEVICE)
    (search,) = made.begin()
    assert isinstance(search.message, RetrieveRequest)
    assert search.message.filter == '{"source": ["a"]}'
    made.receive(RetrieveResult(session=1, ids=(), texts=(), scores=(), retrieve_us=7))
    ready = made.finish_prefill(11, ("A note.",))[0].message
    assert isinstance(ready, DecoderReady)
    assert ready.notes == (
        "The device has no document that its filter lets through; it answers without.",
        "A note.",
    )
    assert isinstance(made.next_job(), Forward), "it drafts all the same"


# ---- rows


FOUND = RetrieveResult(
    session=1, ids=("a", "b", "c"), texts=("A.", "B.", "C."), scores=(0.2, 0.9, 0.5), retrieve_us=7
)
ROWS = (DocumentRow("A.", ("a",), 0.2), DocumentRow("B.", ("b",), 0.9), DocumentRow("C.", ("c",), 0.5))
JOINED = DocumentRow("B.\n\nC.\n\nA.", ("a", "b", "c"), 0.9)
BARE = DocumentRow("", (), 0.2)


def first(count: int) -> RetrieveResult:
    return RetrieveResult(
        session=1,
        ids=FOUND.ids[:count],
        texts=FOUND.texts[:count],
        scores=FOUND.scores[:count],
        retrieve_us=7,
    )


@pytest.mark.parametrize(
    ("layout", "rows"), [("rows", ROWS), ("joined", (JOINED,)), ("both", (*ROWS, JOINED, BARE))]
)
def test_each_layout_has_its_rows(layout: str, rows: tuple[DocumentRow, ...]) -> None:
    assert arrange_rows(FOUND, layout) == rows


# ---- private documents


def private_session(count: int, party: str = "device", **changes: Any) -> DecodingSession:
    """A session of a party with so many private documents, before its prompt is computed."""
    kind = FollowingSession if changes.get("mode") == "federated" else DraftingSession
    made = kind(make_spec(**{"documents": {party: 3}, **changes}), party, is_private=True)
    made.begin()
    made.receive(first(count))
    return made


@pytest.mark.parametrize("layout", ["rows", "joined", "both"])
def test_private_documents_have_one_row_without_any_behind_them(layout: str) -> None:
    for count in range(4):
        made = private_session(count, layouts={"device": layout})
        job = made.next_job()
        assert isinstance(job, Prefill)
        with_text = [row.text for row in arrange_rows(first(count), layout) if row.text]
        assert job.documents == (*with_text, "")


class RowsModel:
    """Tokens by two documents, or none, and a bare row behind them, that say what they like of each token."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def draw(self, step: int, weights: tuple[float, ...]) -> Step:
        assert len(weights) == self.num_rows
        return Step(step, step % 2, b"")

    def learn(self, step: int, token: int) -> tuple[float, ...]:
        said = [-0.1 - number - step - token for number in range(self.num_rows - 1)]
        return (*said, -0.7 * (step + 2 * token))


def public_weights(count: int) -> list[float | None]:
    """The log weights that are sent for four steps, with so many private documents."""
    made = private_session(count, evidence_weight=1.0, question_weight=0.0)
    made.finish_prefill(1, ())
    made.prefix.extend([1, 0, 1])
    job = Forward(1, 3, made.prefix.digest, (1, 0, 1), made.weights, made.weights.start, num_earlier=3)
    return [step.log_weight for step in decoding.compute_steps(job, RowsModel(count + 1))]


def test_the_weight_that_is_sent_says_nothing_of_private_documents() -> None:
    """Not even whether there are any; it follows what the row without document says of the answer."""
    assert public_weights(0) == public_weights(1) == public_weights(3)
    assert len(set(public_weights(0))) == 4


def test_a_weight_that_sums_up_the_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DocumentWeights, "public_log_weight", lambda weights, rows: log_weight(rows))
    assert public_weights(0) != public_weights(1)


@pytest.mark.parametrize("home", ["ada", "server"])
def test_others_do_not_hear_which_private_documents_fit(home: str) -> None:
    for count in (0, 2):
        made = private_session(count, "ada", mode="federated", workers=("ada", "ben"), home=home)
        (ready,) = [send.message for send in made.finish_prefill(1, ("A document was cut.",))]
        assert isinstance(ready, DecoderReady)
        is_home = home == "ada"
        assert (len(ready.sources), bool(ready.notes)) == ((count, True) if is_home else (0, False))
        assert (ready.prefill_us > 0) == is_home


@pytest.mark.parametrize("filter", ["", '{"colour": "red"}'])
def test_a_search_of_private_documents_that_fails_finds_none(filter: str) -> None:
    """Whoever is asked elsewhere sees the answer of a party without documents; its own user hears why."""
    made, none = (
        DraftingSession(make_spec(device_documents=3, device_filter=filter), Party.DEVICE, is_private=True)
        for _ in range(2)
    )
    assert made.receive(RetrieveFailed(session=1, reason="'colour' is none of source.")) == []
    none.receive(first(0))
    assert made.next_job() == none.next_job()
    (ready,) = [send.message for send in made.finish_prefill(1, ())]
    assert isinstance(ready, DecoderReady)
    assert ready.notes == ("The device answers without documents: 'colour' is none of source.",)


def test_a_model_that_gives_no_row_without_document_is_refused() -> None:
    made = private_session(2)
    with pytest.raises(
        GenerationError, match="a row without document, which its model does not give; use another"
    ):
        made.finish_prefill(1, (), [0, 1])
    assert private_session(2, documents={"device": 0}).next_job() == Prefill(
        1, "q", ("A.", "B."), 64, num_stored=2
    )  # who reads none has none to protect


# ---- votes


@pytest.mark.parametrize(("limit", "sizes"), [(10, [1, 1, 1]), (25, [2, 1]), (1000, [3])])
def test_votes_in_full_travel_in_as_many_messages_as_they_need(
    limit: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "MAX_VOTES_BYTES", limit)
    spec = make_spec(mode="federated", workers=("ada", "ben"), documents={})
    session = FollowingSession(spec, "ada")
    session.receive(RetrieveResult(session=spec.session, ids=(), texts=(), scores=(), retrieve_us=0))
    session.finish_prefill(1, ())
    prefix = Prefix(spec.session, [4, 5])
    session.prefix.extend([4, 5])
    job = Forward(spec.session, 2, prefix.digest, (4, 5), DocumentWeights(()), (), tuple(prefix.digests), 2)
    sends = session.finish(job, [Step(step, 0, bytes(12), 1, 0.0) for step in range(3)])
    votes = [send.message.body for send in sends]
    assert [len(each.payloads) for each in votes] == sizes
    chains = [digests_along(each.digest, each.tokens) for each in votes]
    assert [digest for chain in chains for digest in chain] == prefix.digests
    assert [each.step for each in votes] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert all(len(each.log_weights) == len(each.payloads) for each in votes), "documents decide here"
