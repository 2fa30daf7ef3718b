"""Whether the passages that an answer cites say it."""

from __future__ import annotations

import pytest

from tandem.citations import Citation
from tandem.events import Answer, DoneEvent, SessionStatistics, Source, SourcesEvent, TokenEvent, assemble
from tandem.retrieval.words import mark_of
from tandem.support import (
    UNSUPPORTED,
    covered_share,
    find_facts,
    find_language,
    is_foreign,
    judge,
    shared_names,
    tells_nothing,
)
from tandem.topology import Party

SAFE = ("safe.md", "The code of the safe in the cellar is 63-05-91. Ask Mira Lund.")
DOG = ("vet.md", "Biscuit was at the vet, Dr Amankwah, on Tuesday.")


def tokens_of(text: str, *documents: float, others: float = 0.0) -> tuple[TokenEvent, ...]:
    citation = Citation(documents=documents, others=others)
    return tuple(
        TokenEvent(
            step=step,
            token=step,
            text=word,
            device_accepted=True,
            cloud_accepted=False,
            aggregator=Party.DEVICE,
            committed_s=0.0,
            device_decode_s=0.0,
            cloud_decode_s=0.0,
            citation=citation,
        )
        for step, word in enumerate(f" {word}" for word in text.split())
    )


def answered(question: str, text: str, *documents: float, others: float = 0.0) -> Answer:
    tokens = tokens_of(text, *documents, others=others)
    sources = tuple(
        Source(party=Party.DEVICE, id=title, title=title, text=passage, score=0.5)
        for title, passage in (SAFE, DOG)
    )
    support = judge(question, tokens, sources)
    retrieved = SourcesEvent(party=Party.DEVICE, sources=sources, retrieve_s=0.0, prefill_s=0.0)
    done = DoneEvent(reason="eos", statistics=SessionStatistics(), support=support)
    return assemble([retrieved, *tokens, done], done, 0)


@pytest.mark.parametrize(
    ("question", "text", "is_supported", "missing"),
    [
        ("What is the code of the safe?", "The code of the safe is 63-05-91.", True, ()),
        ("What is the code of the safe?", "It is 63 05 91, says Mira Lund.", True, ()),
        ("What is the code of the safe?", "The code is 63-05-99.", False, ("63-05-99",)),
        ("Who knows the code of the safe?", "Ask Mira Lund or Per Dahl about the safe.", True, ("Per", "Dahl")),
        ("What is the name of our dog?", "The code of the safe is 63-05-91.", False, ()),
        ("What is the code of the safe in Vey?", "The code in Vey is 63-05-91.", True, ()),
        ("Wie lautet der Code für den Safe und wo ist er?", "Der Code ist 63-05-91.", None, ()),
    ],
)  # fmt: skip
def test_what_a_passage_says_and_what_it_does_not(
    question: str, text: str, is_supported: bool | None, missing: tuple[str, ...]
) -> None:
    answer = answered(question, text, 0.9, 0.1)
    assert answer.support is not None
    assert (answer.support.is_supported, answer.support.missing) == (is_supported, missing)
    is_marked = not missing and is_supported is not False
    assert bool(answer.citations) == is_marked, (
        "neither a part with an invention nor an answer without support"
    )
    assert set(answer.support.tokens) == {not missing}
    assert (UNSUPPORTED in answer.notes) == (is_supported is False)


def test_each_token_says_whether_its_part_is_supported() -> None:
    answer = answered("What is the code of the safe?", "The code is 5. Or it is 63-05-91.", 0.9, 0.1)
    assert answer.support is not None
    assert answer.support.tokens == (False,) * 4 + (True,) * 4
    assert [answer.text[span.start : span.end] for span in answer.citations] == ["Or it is 63-05-91"]
    nobody = answered("What is the code of the safe?", "The code is 5.", 0.2, 0.2)
    assert nobody.support is not None
    assert nobody.support.tokens == (None,) * 4, "no document wrote it"


def test_nobody_can_tell_where_others_wrote_it_or_nothing_is_known() -> None:
    for documents, others in (((0.1, 0.1), 0.8), ((), 1.0)):
        assert answered("What is the code?", "It is 1234.", *documents, others=others).support is None
    assert judge("What is the code?", (), ()) is None


def test_an_answer_that_no_document_wrote_is_not_supported() -> None:
    answer = answered("What is the code of the safe?", "The code of the safe is secret.", 0.2, 0.2)
    assert UNSUPPORTED in answer.notes


def test_numbers_codes_and_names() -> None:
    text = "Dr Berg (room 12b) met Ida. She paid 16.80 to AQ-55831-K! «Mira» slept; it was 3:00pm."
    assert [word for _, word in find_facts(text)] == [
        "Berg", "12b", "Ida", "16.80", "AQ-55831-K", "3:00pm"
    ]  # fmt: skip
    assert all(text[start:].startswith(word) for start, word in find_facts(text))


def test_words_are_compared_by_their_beginnings_in_one_language() -> None:
    assert covered_share("When does the market open?", "The market opens at eight.") == 1.0
    assert (
        covered_share("Wann öffnet der Markt?", "Der Markt wird um acht geöffnet, öffnete er früher?") == 1.0
    )
    assert covered_share("Who is it?", "The market opens at eight.") == 1.0, "nothing is asked about"
    assert covered_share("When does the bakery open?", "The market opens at eight.") == 0.5
    assert covered_share("Wann öffnet der Markt?", "The market opens at eight.") is None
    assert [find_language(text) for text in ("What is the code?", "Wo ist der Hund?", "4417", "日本語")] == [
        "en", "de", None, None
    ]  # fmt: skip


def test_a_name_is_one_thing_that_is_asked_about() -> None:
    """Else two words of a name outweigh the one that matters."""
    assert covered_share("Which dentist does Piet Lagerholm go to?", "Piet Lagerholm builds boats.") == 0.5
    assert covered_share("Wie heißt der Hund von Frauke Dietz?", "Der Meister ist Frauke Dietz.") == 0.5


def test_what_is_plainly_not_in_english() -> None:
    german = "Der Hund ist im Garten und die Katze auf dem Dach."
    foreign = [
        german,
        "Ключ от дома.",
        "日本語のテキスト",
        "Le chat est sur le toit et le chien dans la maison.",
    ]
    english = [
        "",
        "part,stock\nhub,3",
        "The flat is near Plaza de la Paz, and we like it.",
        "Mr de la Cruz",
        "4417",
    ]
    assert [is_foreign(text) for text in foreign + english] == [True] * 4 + [False] * 5


PAGE = "Velino City Velino Trek Silva 1 2 Night Watch cello guitar Jonas pump pumps 41 the LR-77 bicycle GSR 18 v"
COMMON = {"1", "2", "night", "watch", "jonas", "the"}
SHARED = {mark_of(word): word not in COMMON for word in PAGE.lower().replace("-", " ").split()}


@pytest.mark.parametrize(
    ("passage", "names"),
    [
        ("Our car is a Velino Trek, a grey one.", ["Velino Trek"]),
        ("The Trek of Jonas is a Velino Trek.", ["Velino Trek"]),  # once, and the longest
        ("It has a Silva 2 of 41 grams.", ["Silva 2"]),  # no number alone
        ("He plays the cello, not the guitar of Jonas.", ["cello", "guitar"]),  # Jonas is in many documents
        ("The cello stands in the Velino.", ["Velino"]),  # a name before other words
        ("We took the Night Watch tour.", []),
        ("Velino City Velino Trek Silva Night", []),  # a sentence that both have is no name
        ("An LR-77, for the bicycle pump.", ["LR-77"]),  # the question has the pump
        ("A GSR-18V, no GSR-12V.", ["GSR-18V"]),  # parts of a code are marked
        ("A GSR-12V.", ["GSR"]),
        ("It is a cart.", []),
    ],
)
def test_names_are_words_that_few_documents_of_both_have(passage: str, names: list[str]) -> None:
    assert list(shared_names("Where is the pump?", [passage], SHARED)) == names


def test_names_come_before_other_words_that_documents_share() -> None:
    def found(*passages: str) -> list[str]:
        return list(shared_names("Where is the pump?", passages, SHARED))

    assert found("It is a Velino Trek.", "A cello and a Silva 2.") == ["Velino Trek", "Silva 2"]
    assert found("A cello and a guitar.", "The Velino, and a bicycle.") == ["cello", "guitar", "Velino"]
    assert found("A cart.", "A bicycle.") == ["bicycle"]
    assert found() == []
    kinds = shared_names("Where is the pump?", ["A cello.", "The Velino, and a bicycle."], SHARED)
    assert kinds == {"cello": False, "Velino": True}


NOTES = ("The pump is a Silva 2 of 41 kilograms, for rainy days.", "Die Pumpe ist grau.")


@pytest.mark.parametrize(
    ("answer", "is_empty"),
    [
        ("41 kilograms", False),
        ("Its weight is 14 kilograms.", True),  # no note has 14
        ("A rain pump of one kilogram", False),  # other forms
        ("The pump is a Silva 2.", True),  # the name alone
        ("It's what the pumps weigh.", True),  # the question's words
        ("No.", False),
        ("No, the pump weighs that.", False),
        ("Schwerer als sie war.", True),
        ("", False),
    ],
)
def test_an_answer_may_tell_nothing(answer: str, is_empty: bool) -> None:
    assert tells_nothing("How much does the pump weigh?", answer, ["Silva 2"], NOTES) == is_empty


def test_words_are_sought_in_passages_of_their_language_alone() -> None:
    """Where there are none, only names and the question's words tell."""
    question, answer = "Was wiegt die Pumpe?", "Die Pumpe ist schwer und grau."
    for passages, is_empty in (((), False), (NOTES[:1], False), (NOTES, True)):
        assert tells_nothing(question, answer, [], passages) == is_empty
