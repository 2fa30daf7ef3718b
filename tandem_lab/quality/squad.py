"""Reads questions in SQuAD's form (XQuAD, MLQA, ...), whose paragraphs are dealt in turn to device and cloud."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from tandem.corpora import CORPORA
from tandem.support import find_language
from tandem.system.paths import cache_folder, write_whole
from tandem.topology import PARTIES
from tandem_lab.errors import EvaluationError
from tandem_lab.quality.questions import Question


def read_squad(path: Path) -> tuple[str, list[Question]]:
    """The questions of a file, and the name of their documents, which from now on settings know.

    Each paragraph becomes a file in the user's cache folder. The first half of the articles is to tune with, the other
    is held out. Raises EvaluationError for a file of another form, or without a question.
    """
    try:
        content = path.read_bytes()
        articles = json.loads(content)["data"]
        paragraphs = list(_paragraphs(articles))
        read = [
            (entry, source, split)
            for source, paragraph, split in paragraphs
            for entry in paragraph["qas"]
            if entry["answers"]
        ]
        texts = {source: str(paragraph["context"]) for source, paragraph, _ in paragraphs}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise EvaluationError(
            f"{path} is not in SQuAD's form ({error!r:.80}); name a file like xquad.en.json, or jsonl with a question "
            "per line."
        ) from None
    if not read:
        raise EvaluationError(f"{path} has no question that can be answered; name another file.")
    name = f"squad-{sha256(content).hexdigest()[:16]}"
    folder = CORPORA[name] = cache_folder() / name
    for source, text in texts.items():
        if not (file := folder / source).exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text.encode())
    language = find_language(" ".join(texts.values())) or ""
    return name, [
        Question(
            text=entry["question"],
            answers=tuple(answer["text"] for answer in entry["answers"]),
            id=f"squad-{number}",
            needs=source.partition("/")[0],
            sources=(source,),
            language=language,
            split=split,
        )
        for number, (entry, source, split) in enumerate(read)
    ]


def _paragraphs(articles: list[Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The file of each paragraph, itself, and its half."""
    number = 0
    for place, article in enumerate(articles):
        split = "tune" if 2 * place < len(articles) else "held-out"
        for paragraph in article["paragraphs"]:
            yield f"{PARTIES[number % 2]}/{number:05}.md", paragraph, split
            number += 1
