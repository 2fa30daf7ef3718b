"""What an evaluation found: one row for each method and numbers of documents, as a table, as JSON and in files.

Knows rows of plain values; nothing of how they were measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tandem_lab.errors import EvaluationError
from tandem_lab.quality.document_sets import Counts

Interval = tuple[float, float] | None
"""A 95 % interval; None: there was only one question or window, which says nothing about others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of questions with its 95 % interval."""

    value: float
    interval: Interval
    count: int  # of all these questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method with so many documents a side."""

    method: str  # its name on the command line
    label: str
    counts: Counts
    perplexity: float | None  # of the scored tokens: the windows' rest, or the questions' first answers
    perplexity_interval: Interval
    right: Share | None = (
        None  # of questions only, as are all that follow: answers that contain an accepted text
    )
    exact: Share | None = None
    f1: float | None = None
    by_needs: Mapping[str, Share] = field(default_factory=dict)  # right, by whose documents hold the answer
    by_language: Mapping[str, Share] = field(default_factory=dict)  # right
    seconds: float | None = None  # of processor time per question
    num_tokens: float | None = None  # of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that one evaluation has to say."""

    kind: str  # "lm" or "qa"
    what: dict[str, Any]  # text or questions, models, settings that matter
    rows: tuple[Row, ...]
    comparisons: tuple[str, ...] = ()  # paired: sentences
    notes: tuple[str, ...] = ()
    predictions: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """As JSON, without the single predictions."""
        values = asdict(self)
        del values["predictions"]
        return values


def table(result: Result) -> str:
    """For a terminal: intervals in brackets."""
    cells = [_cells(row) for row in result.rows]
    head = list(dict.fromkeys(name for each in cells for name in each))
    lines = [head, *([each.get(name, "") for name in head] for each in cells)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    rows = [
        "  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    return "\n".join([*rows, *result.comparisons, *result.notes])


def _cells(row: Row) -> dict[str, str]:
    """What a row says, by column."""
    cells = {"documents (device + cloud)": f"{row.counts.device} + {row.counts.cloud}", "method": row.label}
    if row.perplexity is not None:
        cells["perplexity"] = f"{row.perplexity:.3f}{_brackets(row.perplexity_interval, '.3f')}"
    for name, share in (("right", row.right), ("exact", row.exact)):
        if share is not None:
            cells[name] = f"{share.value:.1%}{_brackets(share.interval, '.1%')}"
    if row.f1 is not None:
        cells["F1"] = f"{row.f1:.3f}"
    for name, share in {**row.by_needs, **row.by_language}.items():
        cells[f"{name} ({share.count})"] = f"{share.value:.1%}"
    if row.seconds is not None and row.num_tokens is not None:
        cells |= {"CPU s": f"{row.seconds:.2f}", "tokens": f"{row.num_tokens:.1f}"}
    return cells


def _brackets(interval: Interval, form: str) -> str:
    return "" if interval is None else f" [{interval[0]:{form}}, {interval[1]:{form}}]"


def write(result: Result, folder: Path) -> None:
    """result.json, table.txt and, for questions, predictions.jsonl. Raises EvaluationError."""
    files: Mapping[str, str] = {
        "result.json": json.dumps(result.as_dict(), indent=2, ensure_ascii=False) + "\n",
        "table.txt": table(result) + "\n",
        "predictions.jsonl": _lines(result.predictions),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if text:
                (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise EvaluationError(
            f"Results are written into a folder, but {folder} cannot be written ({error.strerror}); choose another."
        ) from None


def _lines(entries: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
