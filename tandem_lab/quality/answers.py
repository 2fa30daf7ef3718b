"""Exact match and F1 of an answer, normalised as in SQuAD: case, punctuation, articles and spaces do not count.
For answers in whole sentences, whether they contain one that is accepted.

Plain texts. Knows nothing of how an answer was made.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """Lower case, without punctuation and English articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(given: str, answers: Sequence[str]) -> bool:
    """Whether `given` equals one of the answers, both normalised."""
    return any(normalize(given) == normalize(answer) for answer in answers)


def contains_answer(given: str, answers: Sequence[str]) -> bool:
    """Whether `given` contains an answer as whole words; case, white space and Unicode form do not count."""
    text = _unify(given)
    return any(re.search(rf"(?<!\w){re.escape(_unify(answer))}(?!\w)", text) for answer in answers)


def _unify(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).replace("\u2019", "'").casefold().split())


def f1(given: str, answers: Sequence[str]) -> float:
    """The best F1 over the answers: harmonic mean of the shares of common words in what was given and wanted."""
    return max(_f1(normalize(given).split(), normalize(answer).split()) for answer in answers)


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    common = (Counter(given) & Counter(wanted)).total()
    return 2 * common / (len(given) + len(wanted))
