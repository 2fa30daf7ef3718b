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
"""A 95 % interval; None: there was only one question, which says nothing about others."""


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
    right: Share  # answers that contain an accepted text
    exact: Share
    f1: float
    by_needs: Mapping[str, Share]  # right, by whose documents hold the answer
    by_language: Mapping[str, Share]  # right
    seconds: float  # of processor time per question
    num_tokens: float  # of an answer
    num_bytes: float  # that cross the link for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that one evaluation has to say."""

    what: dict[str, Any]  # questions, models, settings that matter
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
    for name, share in (("right", row.right), ("exact", row.exact)):
        cells[name] = f"{share.value:.1%}{_brackets(share.interval)}"
    cells["F1"] = f"{row.f1:.3f}"
    for name, share in {**row.by_needs, **row.by_language}.items():
        cells[f"{name} ({share.count})"] = f"{share.value:.1%}"
    cells |= {"CPU s": f"{row.seconds:.2f}", "tokens": f"{row.num_tokens:.1f}"}
    return cells | {"bytes": f"{row.num_bytes:.0f}"}


def _brackets(interval: Interval) -> str:
    return "" if interval is None else f" [{interval[0]:.1%}, {interval[1]:.1%}]"


def write(result: Result, folder: Path) -> None:
    """result.json, table.txt and predictions.jsonl. Raises EvaluationError."""
    files: Mapping[str, str] = {
        "result.json": json.dumps(result.as_dict(), indent=2, ensure_ascii=False) + "\n",
        "table.txt": table(result) + "\n",
        "predictions.jsonl": _lines(result.predictions),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise EvaluationError(
            f"Results are written into a folder, but {folder} cannot be written ({error.strerror}); choose another."
        ) from None


def _lines(entries: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
