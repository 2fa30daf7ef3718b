"""Reads questions: with their answers for an evaluation, or their texts alone for a run.

A file is UTF-8, a question a line: {"question": text, "answers": [text, ...]}, where `answer` with one text may stand
for `answers`, as in the bundled questions. A line may also say which documents hold the answer, and to which half of
its set it belongs, as in HOUSEHOLD. Where texts alone are wanted, a line may also be the bare question, and needs no
answers. Knows files, not models.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tandem.client.ask import entry_of, read_lines, read_texts, text_of
from tandem.config.schema import Config
from tandem.corpora import CORPORA
from tandem.topology import PARTIES
from tandem_lab import bundled
from tandem_lab.errors import EvaluationError

HOUSEHOLD = Path(__file__).parent / "household.jsonl"
"""200 questions about `tandem/corpora/household`: half of them to tune with, the others held out."""
BRIDGES = Path(__file__).parent / "bridges.jsonl"
"""64 questions about the folder `bridges` beside it, each of which needs a note and a page; halves likewise."""
SETS = {"household": HOUSEHOLD, "bridges": BRIDGES}
"""Questions that have a name, which is that of their documents, too."""
SPLITS = ("tune", "held-out", "all")


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask, and every text that counts as right. What a line does not say is empty."""

    text: str
    answers: tuple[str, ...]  # at least one
    id: str = ""
    needs: str = ""  # whose documents hold the answer: "device", "cloud" or "both"
    sources: tuple[str, ...] = ()  # these documents, as "device/name.md"
    language: str = ""  # "en" or "de"
    split: str = ""  # "tune" or "held-out"


def read_questions(path: Path) -> list[Question]:
    """The questions of a file, in order. Raises TandemError that names file, line and field."""
    return [_question(line, where) for line, where in read_lines(path)]


def read_household(split: str) -> list[Question]:
    """`read_set` of the household."""
    return read_set("household", split)


def read_set(name: str, split: str) -> list[Question]:
    """Those of a set in one of SPLITS, shuffled alike each time: the first few tell something of every kind."""
    return shuffle(select_split(read_questions(SETS[name]), split))


def shuffle(questions: Sequence[Question]) -> list[Question]:
    """Questions with numbered ids in an order that is always the same: the first few tell something of every kind."""
    return sorted(questions, key=lambda question: int(question.id.rpartition("-")[2]) * 37 % 101)


def select_split(questions: Sequence[Question], split: str) -> list[Question]:
    """The questions of one of SPLITS. Raises EvaluationError if there is none."""
    selected = [question for question in questions if split in ("all", question.split)]
    if not selected:
        raise EvaluationError(
            f'No question has "split": "{split}"; add it to their lines, or ask all with `--split all`.'
        )
    return selected


def with_documents(config: Config, name: str) -> Config:
    """The settings with the documents of a set at each party that has no index of its own.

    From then on settings know the documents by this name.
    """
    if name in SETS:
        CORPORA.setdefault(name, SETS[name].with_suffix(""))
    device, cloud = (
        replace(party, index=name) if party.has_given_documents else party
        for party in (config.device, config.cloud)
    )
    return replace(config, device=device, cloud=cloud)


def question_texts(path: Path | None, config: Config) -> list[str]:
    """The questions of a file without their answers. Without one those that the parties' documents answer: about the
    household the ones that are not held out, else the bundled ones. Raises TandemError as above."""
    if path is not None:
        return read_texts(str(path))
    config = config.with_names()
    if any(config.party(party).index == "household" for party in PARTIES):
        return [question.text for question in read_household("tune")]
    return [each.question for each in bundled.read_bundled_questions()]


def _question(line: str, where: str) -> Question:
    entry = entry_of(line, where)
    answers = entry.get("answers", entry.get("answer"))
    listed = [answers] if isinstance(answers, str) else answers
    text = text_of(entry, where)
    if not (
        isinstance(listed, list) and listed and all(isinstance(each, str) and each.strip() for each in listed)
    ):
        raise EvaluationError(
            f'{where}: "answers" must be a list of texts that are not empty, it is {answers!r}; correct it.'
        )
    return Question(
        text,
        tuple(listed),
        id=str(entry.get("id", "")),
        needs=_label(entry, "needs"),
        sources=_sources(entry),
        language=_label(entry, "language"),
        split=_label(entry, "split"),
    )


def _label(entry: dict[str, Any], field: str) -> str:
    """A text, or "" where there is none: files of other origin may use these names for something else."""
    value = entry.get(field)
    return value if isinstance(value, str) else ""


def _sources(entry: dict[str, Any]) -> tuple[str, ...]:
    value = entry.get("sources")
    return tuple(source for source in value if isinstance(source, str)) if isinstance(value, list) else ()


# ---- Answers --------------------------------------------------------------------------------------------------------


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """Lower case, without punctuation and English articles, single spaces: as in SQuAD."""
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
