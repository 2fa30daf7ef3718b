"""Who said each word of an answer: the shares of the home party's documents, and of the others.

A token's share of document d is the posterior of that document under the mixture that the token was chosen from. Within
the home party it is the update of the evidence weights, w_d(t) p_d(x) / sum_e w_e(t) p_e(x) with p at temperature 1;
between the parties it is what the votes say. A word has the mean of its tokens' shares. `docs/explanation/citations.md`
defines all of this; the sums are those of mixtures, so shares of one token, word or answer add up to 1.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import NamedTuple, Protocol

CLEAR = 0.5
"""A share above it is a citation: more than of all other documents and parties together, so a word has at most one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """Who said a token, or more of the answer. What is left of 1 was said by no document: by a row without any."""

    documents: tuple[
        float, ...
    ]  # [k] share of each document of the home party, as its sources; or [0]: of none
    others: float = 0.0  # of all other parties; where not enough is known of them, the most that it can be

    @property
    def document(self) -> int | None:
        """The document with a clear share; None: there is none."""
        best = max(range(len(self.documents)), key=self.documents.__getitem__, default=None)
        return best if best is not None and self.documents[best] > CLEAR else None

    @property
    def nobody(self) -> float:
        """The share of no document."""
        return max(0.0, 1.0 - sum(self.documents) - self.others)


class Part(NamedTuple):
    """How much of a token the home party said, as far as the votes tell."""

    share: float  # of the home; exact, or before the token is known
    most: float | None = None  # that all others together give the token; None: the share is exact

    def of(self, probability: float) -> float:
        """The home's share, or the least that it can be. probability: that its rows give the token."""
        if self.most is None or self.share == 1.0:
            return self.share
        own, others = self.share * probability, (1.0 - self.share) * self.most
        return own / (own + others)


def cite(masses: Sequence[float], part: Part) -> Citation:
    """The shares of a token. masses: [k + 1] w_d(t) p_d(x) of each document, then of rows without; not all are 0."""
    total = sum(masses)
    own = part.of(min(1.0, total))
    return Citation(documents=tuple(own * mass / total for mass in masses[:-1]), others=1.0 - own)


class HasCitation(Protocol):
    """A token of an answer, as far as citations go."""

    @property
    def text(self) -> str:
        """The text that it adds to the answer."""

    @property
    def citation(self) -> Citation | None:
        """Who said it; None: it is not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word of an answer, and who said it."""

    start: int  # characters of the answer before it
    end: int
    citation: Citation


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a sentence that one document said: from its first to its last word with a clear share of that document,
    with no word in between of which another document has one."""

    start: int  # characters of the answer before it
    end: int
    document: int  # of the home party, by its place among that party's sources
    share: float  # of the document, the mean of the words


def find_words(tokens: Sequence[HasCitation]) -> list[Word]:
    """The words whose shares are known, in order, placed in the answer's text, which has no space around it.

    A word is what stands between spaces, without the punctuation around it; a character of Chinese or Japanese is one.
    Its shares are the means of those of the tokens that have some of its characters, as far as they are known.
    """
    text = "".join(token.text for token in tokens)
    num_before = len(text) - len(text.lstrip())
    ends = list(accumulate(len(token.text) for token in tokens))
    words, first = list[Word](), 0
    for match in _WORD.finditer(text):
        start, end = match.span()
        first = bisect_right(ends, start, first)  # the token that has the first character
        last = bisect_left(ends, end, first)
        citation = _mean([token.citation for token in tokens[first : last + 1] if token.text])
        if citation is not None:
            words.append(Word(start=start - num_before, end=end - num_before, citation=citation))
    return words


def find_spans(tokens: Sequence[HasCitation]) -> list[Span]:
    """The parts of an answer that are cited, in order."""
    text = "".join(token.text for token in tokens).strip()
    borders = [match.end() for match in SENTENCE_END.finditer(text)]
    runs: list[list[Word]] = []  # each with the words between its first and last clear one
    pending: list[Word] = []  # since then
    for word in find_words(tokens):
        document = word.citation.document
        if document is None:
            pending.append(word)
            continue
        last = runs[-1] if runs else None
        if last and last[0].citation.document == document and not _is_apart(last[-1], word, borders):
            last += [*pending, word]
        else:
            runs.append([word])
        pending = []
    return [_span(run) for run in runs]


def _span(run: Sequence[Word]) -> Span:
    document = run[0].citation.document
    assert document is not None
    share = sum(sum(word.citation.documents[document : document + 1]) for word in run) / len(run)
    return Span(start=run[0].start, end=run[-1].end, document=document, share=share)


def _is_apart(word: Word, later: Word, borders: Sequence[int]) -> bool:
    return bisect_right(borders, word.end) < bisect_right(borders, later.start)


def _mean(citations: Sequence[Citation | None]) -> Citation | None:
    """The shares of several tokens together; None: none of them is known."""
    cited = [citation for citation in citations if citation is not None]
    if len(cited) < 2:
        return next(iter(cited), None)
    columns = zip_longest(*(citation.documents for citation in cited), fillvalue=0.0)
    return Citation(
        documents=tuple(sum(column) / len(cited) for column in columns),
        others=sum(citation.others for citation in cited) / len(cited),
    )


_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts that put no space between words."""
_WORD = re.compile(rf"[{_SINGLE}]|[^\W{_SINGLE}](?:[^\s{_SINGLE}]*[^\W{_SINGLE}])?")
SENTENCE_END = re.compile(r"[.!?\u2026][\"'\u2019\u201d\u00bb)\]]*\s+|[\u3002\uff01\uff1f]|\n+")
"""The end of a sentence or of a line, with the space behind it. An abbreviation counts, too, and costs a mark more."""
