"""Citations at a coordinator: what is said ahead of a commit and after it, again, and of other documents."""

from __future__ import annotations

from typing import Any

from tandem.citations import Citation
from tandem.events import CitationEvent
from tandem.messages import Attribution, DecoderReady, Verdict, VerifyResult
from tandem.protocol.citing import CitedTokens
from tandem.protocol.prefix import Prefix
from tandem.topology import Party
from tandem_lab.simulation.specs import make_spec


def ready(*names: str, masses: tuple[float, ...] = ()) -> DecoderReady:
    scores = (0.5,) * len(names)
    return DecoderReady(
        session=1, sources=names, scores=scores, retrieve_us=1, prefill_us=1, notes=(), masses=masses
    )


def cited(party: str = Party.DEVICE, **changes: Any) -> CitedTokens:
    made = CitedTokens(make_spec(session=1, device_documents=2, cloud_documents=2, **changes).rules, party)
    made.begin(ready("a", "b"))
    return made


def of(*tokens: int, masses: tuple[float, ...] = (0.3, 0.1, 0.0)) -> Attribution:
    return Attribution(step=len(tokens) - 1, digest=Prefix(1, tokens).digest, masses=masses)


def commit(made: CitedTokens, *tokens: int, own: tuple[float, ...] = (0.5,)) -> Citation | None:
    """The last token is committed, decided here by the votes of both."""
    verdict = Verdict(
        step=len(tokens) - 1, tokens=tokens[-1:], accepted=(1, 1), acceptance=(), next_decider=0
    )
    result = VerifyResult(
        session=1, view=0, digest=bytes(8), step=len(tokens) - 1, voters=(0, 1), tokens=tokens[-1:], own=own
    )
    return made.commit(Prefix(1, tokens), verdict, 0, result)


def test_what_was_said_before_the_commit_is_there_at_once() -> None:
    made = cited()
    assert made.take([of(7)], 0) == []
    assert commit(made, 7) == Citation(documents=(0.5 * 0.3 / 0.4, 0.5 * 0.1 / 0.4), others=0.5)
    assert made.take([of(7)], 1) == [], "once"


def test_what_is_said_later_comes_as_an_event_of_its_step() -> None:
    made = cited()
    made.take([of(7)], 0)
    assert commit(made, 9) is None, "another branch"
    assert commit(made, 9, 4) is None
    (event,) = made.take([of(9, 4)], 2)
    assert (event.step, event.citation.others) == (1, 0.5)
    (event,) = made.take([of(7), of(9), of(9, 4)], 2)
    assert isinstance(event, CitationEvent)
    assert event.step == 0


def test_the_first_word_counts() -> None:
    made = cited()
    made.take([of(7), of(7, masses=(0.0, 0.9, 0.0))], 0)
    citation = commit(made, 7, own=(1.0,))
    assert citation is not None
    assert citation.document == 0


def test_a_token_of_the_others_waits_for_nobody() -> None:
    assert commit(cited(), 7, own=(0.0,)) == Citation(documents=(), others=1.0)


def test_a_lone_row_needs_no_word_for_each_token() -> None:
    made = CitedTokens(make_spec(session=1, device_documents=1, cloud_documents=0).rules, Party.DEVICE)
    made.begin(ready("a", masses=(1.0, 0.0)))
    assert commit(made, 7, own=(0.8,)) == Citation(documents=(0.8,), others=1.0 - 0.8)


def test_other_documents_in_mid_answer_end_the_citations() -> None:
    made = cited()
    made.begin(ready("a", "b"))
    made.take([of(7)], 0)
    assert commit(made, 7) is not None
    made.begin(ready("a", "c"))
    made.take([of(7, 8)], 1)
    assert commit(made, 7, 8) is None
    assert made.take([of(7, 8)], 2) == []


def test_no_party_but_the_home_cites() -> None:
    made = cited(Party.CLOUD)
    made.take([of(7)], 0)
    assert commit(made, 7) is None
