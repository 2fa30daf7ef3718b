"""What a decoder computes, with which rows and weights; how it drafts and rolls back is in transcripts/drafting."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tandem.aggregation.document_weights import DocumentWeights, Evidence, Weights, log_evidence, log_weight
from tandem.aggregation.rules import Step
from tandem.errors import GenerationError
from tandem.messages import Attribution, DecoderReady, Local, RetrieveFailed, RetrieveRequest, RetrieveResult
from tandem.modes import SessionSpec
from tandem.protocol import decoding
from tandem.protocol.decoding import (
    MAX_BLOCK,
    DecodingSession,
    DocumentRow,
    DraftingSession,
    FollowingSession,
    Forward,
    Prefill,
    arrange_rows,
    compute_steps,
)
from tandem.protocol.log import Prefix, digests_along
from tandem.protocol.routes import Send
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.specs import make_spec
from tests.unit.protocol.talk import adopted, decided

# ---- the beginning ---------------------------------------------------------------------------------------------


def test_documents_that_did_not_fit_have_no_weight() -> None:
    made = DraftingSession(make_spec(question_weight=0.0, evidence_weight=0.0), Party.DEVICE)
    made.receive(
        RetrieveResult(session=1, ids=("a", "b"), texts=("x", "y"), scores=(0.5, 0.2), retrieve_us=7)
    )
    (ready,) = made.finish_prefill(11, (), [1])
    assert (ready.message.sources.ids, ready.message.scores) == (("b",), (0.2,))
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
    assert ready.sources.notes == (
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
        assert (len(ready.sources.ids), bool(ready.sources.notes)) == (
            (count, True) if is_home else (0, False)
        )
        assert (ready.sources.prefill_us > 0) == is_home


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
    assert ready.sources.notes == ("The device answers without documents: 'colour' is none of source.",)


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


EOS = 3
QUESTION = (-3.0, -1.5, -2.0)


def probability(row: int, tokens: Sequence[int], token: int) -> float:
    """How probable a row finds a token."""
    return 0.01 + 0.98 * random.Random(f"{row} {list(tokens)} {token}").random()


class Model:
    """Draws what it is told to, and remembers the weights that it was given and what was asked of it."""

    def __init__(self, job: Forward, token: int = 7) -> None:
        self.job, self.token = job, token
        self.weights: dict[int, Weights] = {}  # by step
        self.learned: list[tuple[int, int]] = []

    def draw(self, step: int, weights: Weights) -> Step:
        self.weights[step] = weights
        return Step(step, self.token, b"law")

    def learn(self, step: int, token: int) -> Evidence:
        self.learned.append((step, token))
        rows = range(len(self.job.weights.prior))
        return log_evidence([probability(row, self.job.tokens[:step], token) for row in rows])


def spec(**changes: Any) -> SessionSpec:
    values = {
        "session": 1, "query": "Why?", "seed": 0, "eos_token_ids": (EOS,),
        "question_weight": 1.0, "evidence_memory": 0.5,
        "max_new_tokens": 200, "device_documents": 3, "cloud_documents": 3,
    }  # fmt: skip
    return make_spec(**{**values, **changes})


def started(made: DecodingSession, found: RetrieveResult = FOUND) -> DecodingSession:
    """The session with its documents, prefilled."""
    made.begin()
    made.receive(found)
    job = made.next_job()
    assert isinstance(job, Prefill)
    question = QUESTION[: len(job.documents)] if job.scores_question else ()
    made.finish_prefill(11, (), None, question)
    return made


def drafting(found: RetrieveResult = FOUND, **changes: Any) -> DraftingSession:
    made = started(DraftingSession(spec(**changes), Party.DEVICE), found)
    assert isinstance(made, DraftingSession)
    return made


def compute(made: DecodingSession, token: int = 7) -> tuple[Model, list[Send]]:
    """The next pass."""
    job = made.next_job()
    assert isinstance(job, Forward)
    model = Model(job, token)
    return model, made.finish(job, compute_steps(job, model))


# ---- what the home's coordinator hears -----------------------------------------------------------------------------


def said(sends: Sequence[Send]) -> list[Attribution]:
    return [each for send in sends if isinstance(send.message, Local) for each in send.message.attributions]


def test_nobody_but_the_home_hears_it_and_nobody_of_private_votes() -> None:
    away = started(DraftingSession(spec(), Party.CLOUD))
    assert said(compute(away)[1]) == []
    private = DraftingSession(spec(), Party.DEVICE, is_private=True)
    private.begin()
    private.receive(FOUND)
    private.finish_prefill(11, (), None, (*QUESTION, -1.0))
    assert private.weights.moves
    assert said(compute(private)[1]) == []


# ---- where it begins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "cloud", "num_found", "matters"),
    [(4, 0, 1, False), (4, 0, 2, True), (4, 16, 1, True), (4, 16, 0, False)],
)
def test_the_only_row_of_both_parties_learns_nothing(
    device: int, cloud: int, num_found: int, matters: bool
) -> None:
    """Its share is 1, and its party's is 1, whatever its weight: nothing is learned, no question scored."""
    found = RetrieveResult(
        session=1,
        ids=FOUND.ids[:num_found],
        texts=FOUND.texts[:num_found],
        scores=FOUND.scores[:num_found],
        retrieve_us=7,
    )
    made = DraftingSession(spec(device_documents=device, cloud_documents=cloud), Party.DEVICE)
    made.begin()
    made.receive(found)
    job = made.next_job()
    assert isinstance(job, Prefill)
    assert job.scores_question == matters
    made.finish_prefill(11, (), None, QUESTION[:num_found] if matters else ())
    assert made.weights.moves == matters
    for step in range(3):
        model, _ = compute(made)
        assert model.learned == ([(step, 7)] if matters else [])
        assert made.line.prefix.tokens == [7] * (step + 1)


# ---- it follows the line ----------------------------------------------------------------------------------------


def test_a_token_that_was_drafted_costs_no_pass() -> None:
    made = drafting()
    for _ in range(4):
        job = made.next_job()
        assert isinstance(job, Forward)
        assert job.num_earlier == 0
        compute(made)
    made.receive(decided(0, 7))
    job = made.next_job()
    assert isinstance(job, Forward)
    assert job.num_earlier == 0


@pytest.mark.parametrize("num_tokens", [1, MAX_BLOCK, MAX_BLOCK + 1, 3 * MAX_BLOCK + 5])
def test_a_restarted_decoder_catches_up_in_blocks_and_reaches_the_same_weights(num_tokens: int) -> None:
    rng = random.Random(num_tokens)
    tokens = tuple(rng.randrange(4, 40) for _ in range(num_tokens))
    steady = drafting(max_window=1)
    for step, token in enumerate(tokens):
        compute(steady, token)
        steady.receive(decided(step, token))
    wanted, _ = compute(steady)
    restarted = drafting(max_window=1)
    restarted.receive(adopted(*tokens, view=1))
    passes = []
    while not passes or passes[-1].job.is_catching_up:
        model, sends = compute(restarted)
        passes.append(model)
        assert bool(sends) != model.job.is_catching_up, "what is caught up is not proposed"
    assert [len(model.learned) for model in passes[:-1]] == [MAX_BLOCK] * ((num_tokens - 1) // MAX_BLOCK)
    assert passes[-1].weights == wanted.weights
    assert wanted.weights.keys() == {num_tokens}
    assert all(not model.weights for model in passes[:-1])


def test_memory_is_bounded() -> None:
    made = drafting(max_new_tokens=600)
    for step in range(500):
        while made.next_job() is not None:
            compute(made)
        made.receive(decided(step, 7 + step % 2))  # half of the drafts are rejected
    assert made.num_steps < 128
    assert made.num_evidence < 500 + 128, (
        "that of the answer, for a rollback may go far back, and of a few drafts"
    )


def test_an_owners_words_do_not_leave_it() -> None:
    """Whoever asks for their marks: only the cloud tells, and the home its own client."""
    for party in PARTIES:
        made = DraftingSession(make_spec(wants_marks=True), party)
        (search,) = made.begin()
        assert search.message.wants_marks
        made.receive(replace(FOUND, marks=b"abc"))
        assert made.finish_prefill(1, ())[0].message.sources.marks == b"abc"
    worker = DraftingSession(
        make_spec(mode="federated", workers=("ada", "bob"), home="ada", wants_marks=True), "bob"
    )
    worker.receive(replace(FOUND, marks=b"abc"))
    assert worker.finish_prefill(1, ())[0].message.sources.marks == b""
    private = DraftingSession(make_spec(wants_marks=True), Party.CLOUD, is_private=True)
    assert not private.begin()[0].message.wants_marks
