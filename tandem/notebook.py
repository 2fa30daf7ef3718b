"""How an answer looks in a notebook: its text, why it is degraded, its sources; everything escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import isnan
from typing import TYPE_CHECKING

from tandem.topology import PARTIES

if TYPE_CHECKING:
    from tandem.events import Answer, Source


def as_html(answer: Answer) -> str:
    """The answer as a fragment of HTML."""
    reason = answer.degraded_reason
    warning = f"<p><em>{escape(reason)}</em></p>" if reason else ""
    parties = dict.fromkeys([*PARTIES, *(source.party for source in answer.sources)])
    items = "".join(f"<li>{line}</li>" for party in parties for line in _lines(answer.sources, party))
    sources = f"<p>Sources</p><ul>{items}</ul>" if items else "<p>Sources: none</p>"
    return f'<div><p style="white-space: pre-wrap">{escape(answer.text)}</p>{warning}{sources}</div>'


def _lines(sources: tuple[Source, ...], party: str) -> Iterator[str]:
    """A line for each document with a title, its passage folded away; one for all whose titles stay away."""
    own = [source for source in sources if source.party == party]
    for source in own:
        if source.title is not None:
            is_scored = source.score is not None and not isnan(source.score)
            score = f" ({source.score:.2f})" if is_scored else ""
            page = "" if source.page is None else f", page {source.page}"
            heading = f"{party}: {escape(source.title)}{page}{score}"
            passage = f"<details><summary>{heading}</summary>{escape(source.text or '')}</details>"
            yield passage if source.text else heading
    num_opaque = sum(source.title is None for source in own)
    if num_opaque:
        noun = "document" if num_opaque == 1 else "documents"
        yield f"{party}: {num_opaque} {noun} that stay there"
