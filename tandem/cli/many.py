"""Prints the answers to many questions in the order of the questions, each as soon as those before it are there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tandem.cli.output import json_safe, plural, warn
from tandem.topology import PARTIES, in_words

if TYPE_CHECKING:
    from tandem.client.batch import BatchItem, BatchProgress
    from tandem.events import Answer, Source


def progress_of(questions: Sequence[str]) -> BatchProgress | None:
    """A count on stderr, where it is a terminal that the answers do not go to."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        return None
    width = len(str(len(questions)))

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else "\r"
        print(f"{done:{width}} of {total} answered", end=end, file=sys.stderr, flush=True)

    return show


def print_items(items: Iterable[BatchItem], *, as_json: bool, is_quiet: bool) -> int:
    """Print every item and return the command's exit code: 1 if a question failed."""
    num_items, errors = 0, list[Exception]()
    for item in in_order(items):
        num_items += 1
        errors += [item.error] if item.error else []
        if as_json:
            print(json.dumps(json_safe(as_dict(item)), ensure_ascii=False), flush=True)
        else:
            _print_text(item, is_quiet=is_quiet)
    if errors:
        warn(f"{len(errors)} of {plural(num_items, 'question')} failed; the first: {errors[0]}")
    return 1 if errors else 0


def in_order(items: Iterable[BatchItem]) -> Iterator[BatchItem]:
    """Items by their index, each as soon as all before it are there."""
    waiting: dict[int, BatchItem] = {}
    position = 0
    for item in items:
        waiting[item.index] = item
        while position in waiting:
            yield waiting.pop(position)
            position += 1


def as_dict(item: BatchItem) -> dict[str, Any]:
    """For --json; what only an answer has is null where there is none."""
    answer = item.answer
    return {
        "index": item.index,
        "question": item.question,
        "answer": answer.text if answer else None,
        "error": str(item.error) if item.error else None,
        "reason": answer.reason if answer else None,
        "seed": answer.seed if answer else None,
        "degraded": answer.degraded_reason if answer else None,
        "sources": [asdict(source) for source in answer.sources] if answer else [],
        "notes": list(answer.notes) if answer else [],
        "statistics": asdict(answer.statistics) if answer else None,
    }


def _print_text(item: BatchItem, *, is_quiet: bool) -> None:
    text = f"(failed: {item.error})" if item.answer is None else item.answer.text
    if is_quiet:
        print(text, flush=True)
        return
    lines = [] if item.answer is None else _notes(item.answer)
    print(
        *([""] if item.index else []),
        f"{item.index + 1}. {item.question}",
        text,
        *lines,
        sep="\n",
        flush=True,
    )


def _notes(answer: Answer) -> list[str]:
    """What stands below an answer: why it is degraded, where it came from."""
    reason = answer.degraded_reason
    return [*([f"   {reason}"] if reason else []), f"   from {_origin(answer.sources)}"]


def _origin(sources: Sequence[Source]) -> str:
    """Titles where they are known, and how many documents stay with each party."""
    titles = [source.title for source in sources if source.title is not None]
    parties = dict.fromkeys([*PARTIES, *(each.party for each in sources)])
    opaque = {party: sum(each.party == party and each.title is None for each in sources) for party in parties}
    counts = [f"{plural(count, 'document')} of {in_words(party)}" for party, count in opaque.items() if count]
    return ", ".join([*dict.fromkeys(titles), *counts]) or "no document"
