"""How retrieved documents stand in rows: by layout, best first where joined, and which are worth storing."""

from __future__ import annotations

import pytest

from tandem.messages import DecoderReady, RetrieveResult
from tandem.protocol.decoding import Prefill
from tandem.protocol.drafting import DraftingSession
from tandem.protocol.rows import Row, arrange_rows
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec

FOUND = RetrieveResult(
    session=1, ids=("a", "b", "c"), texts=("A.", "B.", "C."), scores=(0.2, 0.9, 0.5), retrieve_us=7
)
ROWS = (Row("A.", ("a",), 0.2), Row("B.", ("b",), 0.9), Row("C.", ("c",), 0.5))
JOINED = Row("B.\n\nC.\n\nA.", ("a", "b", "c"), 0.9)
BARE = Row("", (), 0.2)


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
def test_each_layout_has_its_rows(layout: str, rows: tuple[Row, ...]) -> None:
    assert arrange_rows(FOUND, layout) == rows


@pytest.mark.parametrize(
    ("layout", "rows"), [("rows", ROWS[:1]), ("joined", ROWS[:1]), ("both", (ROWS[0], BARE))]
)
def test_one_document_is_joined_with_nothing(layout: str, rows: tuple[Row, ...]) -> None:
    assert arrange_rows(first(1), layout) == rows


@pytest.mark.parametrize("layout", ["rows", "joined", "both"])
def test_without_documents_there_are_no_rows(layout: str) -> None:
    assert arrange_rows(first(0), layout) == ()


def test_a_row_of_one_document_is_worth_storing_and_these_come_first() -> None:
    """A joined one hardly ever comes again, a bare one takes no time."""
    assert [row.is_stored for row in arrange_rows(FOUND, "both")] == [True, True, True, False, False]
    assert [row.is_stored for row in arrange_rows(FOUND, "joined")] == [False]


def test_a_decoder_opens_the_rows_of_its_own_layout() -> None:
    spec = make_spec(device_documents=3, layouts={"device": "both", "cloud": "joined"})
    made = DraftingSession(spec, Party.DEVICE)
    made.begin()
    made.receive(FOUND)
    job = made.next_job()
    assert isinstance(job, Prefill)
    assert (job.documents, job.num_stored, job.num_rows) == (("A.", "B.", "C.", JOINED.text, ""), 3, 5)
    (ready,) = [send.message for send in made.finish_prefill(1, ())]
    assert isinstance(ready, DecoderReady)
    assert dict(zip(ready.sources, ready.scores, strict=True)) == {"a": 0.2, "b": 0.9, "c": 0.5}
    assert made.weights.prior == pytest.approx(tuple(10 * row.score for row in (*ROWS, JOINED, BARE)))


def test_documents_without_room_are_no_sources_unless_a_joined_row_has_them() -> None:
    made = DraftingSession(make_spec(device_documents=3, layouts={"device": "both"}), Party.DEVICE)
    made.begin()
    made.receive(FOUND)
    (ready,) = [send.message for send in made.finish_prefill(1, (), [1, 4])]
    assert isinstance(ready, DecoderReady)
    assert ready.sources == ("b",)
    assert made.weights.prior == pytest.approx((9.0, 2.0))
