"""Whether the documents that an answer cites say it: checks of words, at home, where the passages are.

A citation tells which row wrote a word, and a row writes inventions, too. So what can be looked up is looked up:
numbers, codes and names of a cited part have to stand in its passage, or it loses its mark; and a cited passage has to
speak of what was asked, or nothing supports the answer. `docs/explanation/citations.md` has the measurements.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress, groupby
from typing import Protocol

from tandem.citations import SENTENCE_END, HasCitation, Span, find_spans

LEAST_COVERED = 0.5
"""More than this share of what a question asks about stands in the passages that support its answer."""
UNSUPPORTED = "None of your documents says this."
SMALL_WORDS: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": """
            the a an of in on at to for and or is are was were be been do does did what which who whom whose when
            where why how much many our my your his her its their it he she they we you with from by as has have had
            not no this that there will would may might must can could should than then us me him them one two if
            into up out about over under after before name called like love want need go goes get take give make
            keep kept eat come find say tell know use see look put let work start begin end happen stand lie live
            hold held pay bring leave left belong done got taken given made came found said told knew used seen
        """,
        "de": """
            der die das den dem des ein eine einen einem einer eines und oder ist sind war waren wird werden wurde
            was welche welcher welches welchen wer wem wen wann wo wohin woher warum wie viel viele unser unsere
            unserem mein meine dein ihr ihre sein seine es er sie wir ich du mit von vom zu zum zur im in am an auf
            aus bei für nach vor über unter nicht kein keine hat haben hatte kann soll muss man heißt mag möchte
            will braucht geht kommt gibt gehört steht liegt
        """,
        "fr": """
            le la les un une des du de au aux et ou est sont était que quel quelle quels qui quand où pourquoi
            comment combien notre nos mon ma mes ton son sa ses leur il elle nous vous ils avec par pour dans sur
            pas ce cette a ont été
        """,
        "es": """
            el la los las un una unos de del al y o es son era que qué cuál quién cuándo dónde por cómo cuánto
            cuántos nuestro nuestra mi tu su sus él ella nosotros con para en sobre no este esta ha han
        """,
        "it": """
            il lo la i gli le un uno una di del della dei al alla e o è sono era che cosa quale chi quando dove
            perché come quanto quanti nostro nostra mio tuo suo con per in su non questo questa ha hanno
        """,
        "nl": """
            de het een en of is zijn was waren wat welke wie wanneer waar waarom hoe veel onze ons mijn jouw haar
            hun hij zij wij met van voor naar in op aan niet geen dit dat heeft hebben
        """,
    }.items()
}
"""Words of a language that a question is asked with, not about."""
_SMALL = frozenset(chain.from_iterable(SMALL_WORDS.values()))
"""Those of all languages."""
YES_OR_NO = frozenset(["yes", "no", "ja", "nein", "nee", "oui", "non", "si"])
LEAST_FOREIGN = 5
"""Small words of another language, of which a name or a quotation has fewer."""
LAST_LATIN = "\u024f"
MAX_ENDING = 3
"""Letters by which two forms of a word differ at most."""
MAX_NAME = 5
"""Words of a shared name at most: what has more is a sentence."""
_OPENING = "\"'(\u00ab\u201e\u201c\u2018[*- "
"""What may stand before the first word of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """What the home's own passages say for an answer."""

    is_supported: bool | None
    """None: question and passages are in different languages."""
    missing: tuple[str, ...] = ()  # numbers, codes and names of cited parts that their passages do not have
    tokens: tuple[
        bool | None, ...
    ] = ()  # by step: False: of a cited part with one that is missing; None: not cited


class HasPassage(Protocol):
    """A document that an answer has read, as far as it is known here."""

    @property
    def title(self) -> str | None:
        """The name of its file."""

    @property
    def text(self) -> str | None:
        """What was read of it."""

    @property
    def score(self) -> float | None:
        """Its relevance; None: it is another party's."""


def supported_spans(tokens: Sequence[HasCitation], support: Support | None) -> list[Span]:
    """The cited parts of an answer, but those with a word that is missing in the passage; none of an answer that
    nothing supports."""
    spans = find_spans(tokens)
    if support is None:
        return spans
    is_kept = [support.tokens[steps.start] is not False for steps in _steps_of(spans, tokens)]
    return [] if support.is_supported is False else list(compress(spans, is_kept))


def judge(question: str, tokens: Sequence[HasCitation], sources: Sequence[HasPassage]) -> Support | None:
    """Compare an answer with the passages of the home that it cites; None where nobody can tell here, for others wrote
    most of it or none is known."""
    from tandem.retrieval.words import parts_of

    known = [token.citation for token in tokens if token.citation is not None]
    passages = [f"{source.title} {source.text}" for source in sources if source.score is not None]
    if not known or not passages or sum(each.others for each in known) > len(known) / 2:
        return None
    text = "".join(token.text for token in tokens).strip()
    spans = [span for span in find_spans(tokens) if span.document < len(passages)]
    cited = [passages[place] for place in dict.fromkeys(span.document for span in spans)]
    asked, in_cited = parts_of(question), parts_of(" ".join(cited))
    in_passages = {span.document: parts_of(passages[span.document]) for span in spans}
    num_new, num_missing, marked = 0, 0, dict[str, None]()
    is_said = dict.fromkeys(spans, True)
    for start, word in find_facts(text):
        span = next((span for span in spans if span.start <= start < span.end), None)
        new = parts_of(word) - asked
        num_new += bool(new)
        if new - (in_cited if span is None else in_passages[span.document]):
            num_missing += 1
            if span is not None:
                is_said[span] = False
                marked[word] = None
    by_step: list[bool | None] = [None] * len(tokens)
    for said, steps in zip(is_said.values(), _steps_of(spans, tokens), strict=True):
        by_step[steps.start : steps.stop] = [said] * len(steps)
    told = " ".join(text for text in cited if not _differ_in_language(question, text))
    is_supported = None if cited and not told else (covered_share(question, told) or 0.0) > LEAST_COVERED
    if not spans or (num_new and num_missing == num_new):
        is_supported = False
    return Support(is_supported=is_supported, missing=tuple(marked), tokens=tuple(by_step))


def _steps_of(spans: Sequence[Span], tokens: Sequence[HasCitation]) -> list[range]:
    """The tokens that have some of the characters of each span."""
    text = "".join(token.text for token in tokens)
    num_before = len(text) - len(text.lstrip())
    ends = list(accumulate(len(token.text) for token in tokens))
    return [
        range(bisect_right(ends, span.start + num_before), bisect_left(ends, span.end + num_before) + 1)
        for span in spans
    ]


def find_facts(text: str) -> list[tuple[int, str]]:
    """The numbers, codes and names of a text, each with its place: words with a digit, and those with a capital letter
    that do not begin a sentence."""
    begins = [0, *(match.end() for match in SENTENCE_END.finditer(text))]
    words = [(match.start(), match[0]) for match in re.finditer(r"[^\W_](?:\S*[^\W_])?", text)]
    return [
        (start, word)
        for start, word in words
        if re.search(r"\d", word) or (word[0].isupper() and not _begins(start, text, begins))
    ]


def _begins(start: int, text: str, begins: Sequence[int]) -> bool:
    """Whether nothing but opening signs stands between the last of these places and a word."""
    return begins[bisect_right(begins, start) - 1] >= len(text[:start].rstrip(_OPENING))


def shared_names(question: str, passages: Sequence[str], shared: Mapping[bytes, bool]) -> dict[str, bool]:
    """What passages call by shared words, each once, and whether it is a name or a code: a rare word that is not small,
    and that the question has in no form, with neighbours of this kind, and with shared names, numbers and codes beside
    it; no number alone. Names and codes come first: other words count in the best passage where it has none, in the
    others where nothing else does. shared: whether a word is rare, by its mark (`retrieval.words.mark_of`)."""
    from tandem.retrieval.words import fold

    asked = [word for word in re.findall(r"\w+", fold(question)) if len(word) > 2]
    of_each = [_shared_runs(asked, passage, shared) for passage in passages]
    facts = [[run for run in runs if run[1]] for runs in of_each]
    best = facts[:1] if any(facts[:1]) else of_each[:1]
    called = [*chain(*best, *facts[1:])] or [*chain(*of_each)]
    names = {fold(text): (text, is_fact) for text, is_fact in reversed(called)}
    return {
        text: is_fact
        for key, (text, is_fact) in reversed(names.items())
        if not any(key != other and re.search(rf"\b{re.escape(key)}\b", other) for other in names)
    }


def _shared_runs(asked: Sequence[str], passage: str, shared: Mapping[bytes, bool]) -> list[tuple[str, bool]]:
    """The words of `shared_names` with their neighbours, in order, and whether one of them is a name or a code."""
    from tandem.retrieval.words import fold, mark_of, parts_of

    facts = {place for start, word in find_facts(passage) for place in range(start, start + len(word))}
    runs, end = list[list[tuple[re.Match[str], bool]]](), -1
    for match in re.finditer(r"\w+", passage):
        word = fold(match[0])
        is_rare = shared.get(mark_of(word))
        if is_rare is None and re.search(r"[\d_]", word):  # of 18V the index keeps the parts
            parts = [shared.get(mark_of(part)) for part in parts_of(word)]
            is_rare = None if None in parts else any(parts)
        is_told = is_rare or match.start() in facts
        if is_rare is None or not is_told or word in _SMALL or _has_form(word, asked):
            continue
        runs += [] if runs and passage[end : match.start()] in (" ", "-") else [[]]
        runs[-1].append((match, is_rare and len(word) > 1 and not word.isdigit()))
        end = match.end()
    return [
        (
            passage[run[0][0].start() : run[-1][0].end()],
            any(rare and each.start() in facts for each, rare in run),
        )
        for run in runs
        if len(run) <= MAX_NAME and any(is_rare for _, is_rare in run)
    ]


def tells_nothing(question: str, answer: str, names: Sequence[str], passages: Sequence[str]) -> bool:
    """Whether an answer is none by its words: it has one of these names, with which the question is still to be asked;
    it says no more than the question; or it has a word of which neither question nor passages have a form. Small words
    do not count, and a yes or no is an answer. Without a passage in its language nobody looks for the last."""
    from tandem.retrieval.words import fold

    told = " ".join(text for text in passages if not _differ_in_language(answer, text))
    asked, read, said = (re.findall(r"\w+", fold(text)) for text in (question, told, answer))
    words = {word for word in said if word not in _SMALL and (len(word) > 1 or word.isdigit())}
    own = {word for word in words if not _has_form(word, asked)}
    is_named = any(re.search(rf"\b{re.escape(fold(name))}\b", fold(answer)) for name in names)
    is_new = bool(read) and not all(_has_form(word, read) for word in own)
    return YES_OR_NO.isdisjoint(said[:1]) and (is_named or is_new or bool(words and not own))


def _has_form(word: str, words: Sequence[str]) -> bool:
    """Whether a word is one of these, or one of more than two letters that differs from one of them in its ending."""
    return word in words or any(
        min(len(word), len(each)) > 2
        and abs(len(word) - len(each)) <= MAX_ENDING
        and (word.startswith(_beginning(each)) or each.startswith(_beginning(word)))
        for each in words
    )


def covered_share(question: str, text: str) -> float | None:
    """How much of what a question asks about stands in a text, by the beginnings of words, so that their endings may
    differ. The words of a name are one thing. None where the two are in different languages."""
    from tandem.retrieval.words import parts_of

    if _differ_in_language(question, text):
        return None
    language = find_language(question)
    small = parts_of(" ".join(_SMALL if language is None else SMALL_WORDS[language]))
    runs = groupby(question.split(), key=lambda word: word[0].isupper())
    things = chain.from_iterable([" ".join(run)] if is_name else run for is_name, run in runs)
    asked = {frozenset(word for word in parts_of(thing) - small if len(word) > 1) for thing in things}
    beginnings = [tuple(map(_beginning, words)) for words in asked if words]
    there = parts_of(text)
    found = [each for each in beginnings if any(word.startswith(each) for word in there)]
    return len(found) / len(beginnings) if beginnings else 1.0


def _differ_in_language(question: str, text: str) -> bool:
    """Whether both are plainly in a language, and not in the same."""
    language, other = find_language(question), find_language(text)
    return language != other and None not in (language, other)


def find_language(text: str) -> str | None:
    """The language of which a text has most small words; None where it has none, or as many of another one."""
    (language, most), (_, second) = _count_small_words(text).most_common(2)
    return language if most > second else None


def is_foreign(text: str) -> bool:
    """Whether a text is plainly not in English: most of its letters are no Latin ones, or it has more small words of
    another language, and some."""
    letters = [sign for sign in text if sign.isalpha()]
    counts = _count_small_words(text)
    english = counts.pop("en")
    is_latin = sum(sign <= LAST_LATIN for sign in letters) >= len(letters) / 2
    return not is_latin or max(counts.values()) >= max(LEAST_FOREIGN, english + 1)


def _count_small_words(text: str) -> Counter[str]:
    """How many words of a text are small ones of each language."""
    words = re.findall(r"[^\W\d_]+", text.casefold())
    return Counter({name: sum(word in small for word in words) for name, small in SMALL_WORDS.items()})


def _beginning(word: str) -> str:
    return word[: max(3, len(word) - 2)] if len(word) > 4 else word
