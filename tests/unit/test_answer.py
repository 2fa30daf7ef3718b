"""How an answer shows itself: printed, in a traceback, in a notebook; and why it is degraded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from operator import methodcaller
from typing import Any

import pytest

from tandem.citations import Citation
from tandem.client.answers import describe, to_plain
from tandem.events import (
    Answer,
    DoneEvent,
    Event,
    PeerEvent,
    SessionStatistics,
    Source,
    SourcesEvent,
    TokenEvent,
    collect,
)
from tandem.topology import Party
from tests.token_events import committed


def token(step: int, text: str) -> TokenEvent:
    return committed(step, text=text)


def answer(text: str, *events: Event, degraded_from: int | None = None) -> Answer:
    tokens = [token(step, word) for step, word in enumerate(text.split(" "))]
    spaced = [token(0, tokens[0].text), *(token(each.step, f" {each.text}") for each in tokens[1:])]
    done = DoneEvent(reason="eos", statistics=SessionStatistics(degraded_from=degraded_from))
    return collect([*events, *spaced, done], seed=7)


def sources(party: Party, *given: Source) -> SourcesEvent:
    return SourcesEvent(party=party, sources=given, retrieve_s=0.0, prefill_s=0.0)


show_in_notebook = methodcaller("_repr_html_")


def cite(*said: tuple[str, tuple[float, float]]) -> Answer:
    """An answer of tokens, each with the shares of two documents, a and b."""
    tokens = [
        replace(token(step, text), citation=Citation(documents=shares, others=1 - sum(shares)))
        for step, (text, shares) in enumerate(said)
    ]
    own = [Source(party=Party.DEVICE, id=name, title=name, score=1.0) for name in ("a", "b")]
    done = DoneEvent(reason="eos", statistics=SessionStatistics())
    return collect([sources(Party.DEVICE, *own), *tokens, done], seed=7)


def test_sources_are_in_one_order_whichever_party_was_first() -> None:
    own = sources(Party.DEVICE, Source(party=Party.DEVICE, id="a", score=1.0))
    others = sources(Party.CLOUD, Source(party=Party.CLOUD, id="b"))
    assert answer("Yes", own, others).sources == answer("Yes", others, own).sources
    assert [source.id for source in answer("Yes", others, own).sources] == ["a", "b"]


def test_citations_count_characters_of_what_is_shown() -> None:
    whole = cite(
        ("Hm</think>", (0.1, 0.1)), (" puzzle", (0.9, 0.0)), (" games", (0.0, 0.9)), (".", (0.0, 0.0))
    )
    cited = [(cited["start"], cited["end"], cited["id"]) for cited in describe(whole)["citations"]]
    assert cited == [(11, 17, "a"), (18, 23, "b")]
    for shown, left in (("puzzle games.", [(0, 6, "a"), (7, 12, "b")]), ("games.", [(0, 5, "b")]), ("", [])):
        citations = describe(whole, shown)["citations"]
        assert [(cited["start"], cited["end"], cited["id"]) for cited in citations] == left


LOST = PeerEvent(step=2, is_alone=True)
SAID = PeerEvent(step=2, is_alone=True, reason="The cloud's decoder has stopped; restart the cloud side.")
BACK = PeerEvent(step=5, is_alone=False)


@pytest.mark.parametrize(
    ("events", "degraded_from", "sentence"),
    [
        ([], None, None),
        ([LOST, PeerEvent(step=2, is_alone=False)], None, None),
        ([LOST], 2, "From token 2 on the device answered without the cloud (it fell silent)."),
        ([SAID], 3,
         "From token 3 on the device answered without the cloud (The cloud's decoder has stopped; restart the cloud "
         "side)."),
        ([LOST, BACK, PeerEvent(step=9, is_alone=True), PeerEvent(step=11, is_alone=False)], 2,
         "From token 2 on the device answered without the cloud (it fell silent); it came back at token 5."),
        ([PeerEvent(step=1, is_alone=True, party="ben")], 1,
         "From token 1 on the others answered without ben (it fell silent)."),
        ([PeerEvent(step=1, is_alone=True, party="server")], 1,
         "From token 1 on device answered without the server (it fell silent)."),
    ],
)  # fmt: skip
def test_why_an_answer_is_degraded(
    events: Sequence[Event], degraded_from: int | None, sentence: str | None
) -> None:
    given = answer("Try Pukan Vakun.", *events, degraded_from=degraded_from)
    assert given.degraded_reason == sentence
    assert given.is_degraded is (sentence is not None)


def test_a_notebook_shows_text_and_sources_escaped() -> None:
    device = sources(
        Party.DEVICE,
        Source(party=Party.DEVICE, id="d1", title="<b>a & b</b>.md", score=0.625),
        Source(party=Party.DEVICE, id="d2", title="plain.pdf", page=3, text="x < y"),
    )
    cloud = sources(Party.CLOUD, *(Source(party=Party.CLOUD, id=f"c{number}") for number in range(3)))
    given = answer("Try <script>alert(1)</script> & see.", cloud, device, SAID, degraded_from=2)
    assert show_in_notebook(given) == (
        '<div><p style="white-space: pre-wrap">Try &lt;script&gt;alert(1)&lt;/script&gt; &amp; see.</p>'
        "<p><em>From token 2 on the device answered without the cloud (The cloud&#x27;s decoder has stopped; "
        "restart the cloud side).</em></p>"
        "<p>Sources</p><ul><li>device: &lt;b&gt;a &amp; b&lt;/b&gt;.md (0.62)</li>"
        "<li><details><summary>device: plain.pdf, page 3</summary>x &lt; y</details></li>"
        "<li>cloud: 3 documents that stay there</li></ul></div>"
    )
    assert show_in_notebook(answer("Yes.")).endswith("<p>Sources: none</p></div>")


def test_events_are_plain_values_with_what_json_cannot_hold_as_null() -> None:
    source = Source(party="device", id="a", title="t", score=nan, metadata={"page": [1, inf], "x": None})
    event = SourcesEvent(party="device", sources=(source,), retrieve_s=0.5, prefill_s=nan, notes=("n",))
    plain: dict[str, Any] = to_plain(event)
    (shown,) = plain.pop("sources")
    assert plain == {"party": "device", "retrieve_s": 0.5, "prefill_s": None, "notes": ["n"], "marks": ""}
    assert shown.pop("metadata") == {"page": [1, None], "x": None}
    assert shown == {"party": "device", "id": "a", "title": "t", "score": None, "text": None, "page": None}
