"""What a benchmark keeps: one record of each answered question, one cell of each setting of the link.

A cell is measured as a whole and written as one line of JSON, so that a benchmark that was interrupted continues with
the next one. A run is one pass over the questions. Knows nothing of clusters, clocks or summaries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tandem.client.answers import to_plain
from tandem.errors import TandemError
from tandem_lab.numbers import from_plain

FORMAT = 2
"""Version of a line."""
Deployment: TypeAlias = Literal["ray", "join"]
"""A Ray cluster of both parties, or a device that has joined a cloud by a link, each of them one process."""
Models: TypeAlias = Literal["configured", "half", "close"]
"""The parties' language models: those of the settings, or two of `tandem_lab.bench.models`."""

_MODELS = {"configured": "", "half": "half of the drafts accepted, ", "close": "models close to each other, "}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same in a whole cell."""

    floors_s: (
        tuple[float, float] | None
    )  # least decode time, device and cloud, or server and worker; None: as fast as the machine
    rtt_s: float  # injected
    temperature: float
    max_new_tokens: int
    models: Models = "configured"
    bits_per_s: float | None = None  # of the link, each way; None: as fast as the machine can
    num_workers: int = (
        0  # of mode "federated", whose server and workers are in place of device and cloud; 0: these
    )
    slow: float = 1.0  # how many times as long the last worker's passes take as those of the others
    deployment: Deployment = "ray"

    @property
    def workers(self) -> tuple[str, ...]:
        """What the workers are called, in their order."""
        return tuple(f"worker-{number}" for number in range(1, self.num_workers + 1))

    @property
    def group(self) -> str:
        """Settings that have the models in common."""
        return f"{self.models}/{self.num_workers}" if self.num_workers else self.models

    @property
    def variant(self) -> str:
        """What sets this apart from a Ray cluster; empty: nothing."""
        return "join link" if self.deployment == "join" else ""

    def __str__(self) -> str:
        rate = "" if self.bits_per_s is None else f", {self.bits_per_s / 1e3:g} kbit/s"
        link = f"RTT {1e3 * self.rtt_s:g} ms{rate}"
        text = f"{self.variant or 'cluster'}, {floors_text(self.floors_s)}, {link}, T {self.temperature:g}"
        return f"{_MODELS[self.models]}{self._workers_text}{text}"

    @property
    def _workers_text(self) -> str:
        if not self.num_workers:
            return ""
        slow = "" if self.slow == 1.0 else f", one {self.slow:g} times as slow"
        return f"{self.num_workers} workers{slow}, "


def floors_text(floors_s: tuple[float, float] | None) -> str:
    """Decode floors for a person."""
    if floors_s is None:
        return "no decode floors"
    return f"decode floors {1e3 * floors_s[0]:g} ms device, {1e3 * floors_s[1]:g} ms cloud"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One answered question.

    Times are seconds since the query was opened on the device, by its clock, which is one call after the person asked;
    of `CRCG/cloud` since it was opened on the cloud, by its clock; of DRCG and DRDG/SW, which do something before or
    after, since the person asked. What is by side has the keys "device" and "cloud"; nan and None: not known.
    """

    system: str
    run: int  # 0-based
    question: int  # position among the bundled ones, and the seed
    token_ids: tuple[int, ...]
    committed_s: tuple[float, ...]  # one for each token
    drafted_s: float = nan  # when the device's first draft was there; sequence-wise synchronisation only
    num_accepted: dict[str, int] = field(default_factory=dict)  # drafts that were committed
    expected_acceptance: dict[str, float] = field(default_factory=dict)  # by the formula of the draft rule
    num_forwards: dict[str, int] = field(
        default_factory=dict
    )  # of each side's decoder; abandoned ones are not in it
    num_abandoned: dict[str, int] = field(default_factory=dict)  # of unwanted drafts
    decode_s: dict[str, float] = field(default_factory=dict)  # of the forwards
    waited_s: float = nan  # for the link: pairs that came later than the slower decoder takes
    cpu_s: dict[str, float] = field(default_factory=dict)  # by actor, "side/role"
    frame_bytes: dict[str, int] = field(
        default_factory=dict
    )  # Tandem's frames by sender; payloads of DRCG and SW
    num_frames: dict[str, int] = field(default_factory=dict)
    num_messages: dict[str, int] = field(default_factory=dict)  # writes or calls that carried those frames
    waited_for: dict[str, int] = field(default_factory=dict)  # tokens for which a worker's vote came last
    wire_bytes: dict[str, dict[str, int]] = field(
        default_factory=dict
    )  # on the link by sender, then "data", "ray", "other"
    num_resyncs: int = 0
    num_resent: int = 0
    asked_at_s: float = nan  # of time.time()
    done_at_s: float = nan
    settled_at_s: float = nan  # when the actors had told their counters

    @property
    def num_tokens(self) -> int:
        """How many were committed."""
        return len(self.token_ids)

    @property
    def ttft_s(self) -> float:
        """Until the first token."""
        return self.committed_s[0] if self.committed_s else nan

    @property
    def span_s(self) -> float:
        """What the tokens after the first took: since the first one, or since the first draft where there is one."""
        if not self.committed_s:
            return nan
        return self.committed_s[-1] - (self.drafted_s if isfinite(self.drafted_s) else self.committed_s[0])

    def lost_s(self, party: str) -> float:
        """Decode time of its drafts that were thrown away."""
        return lost_s(self.num_forwards.get(party, 0), self.num_tokens, self.decode_s.get(party, nan))


def lost_s(num_forwards: int, num_tokens: int, decode_s: float) -> float:
    """Decode time of one side's drafts that were thrown away, which is what rollback costs: each committed token takes
    one draft, and the others take their share of `decode_s`. At most: the wait for a decode floor ends when the draft
    is no longer wanted, and counts whole here. nan: it drafted nothing.
    """
    return max(0, num_forwards - num_tokens) / num_forwards * decode_s if num_forwards else nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one system should show in one setting. nan: nothing is said."""

    token_s: float
    acceptance: dict[str, float] = field(default_factory=dict)  # by party that drafts
    forwards: dict[str, float] = field(default_factory=dict)  # a token, by party
    also: dict[str, float] = field(default_factory=dict)  # further quantities, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """All that was measured in one setting."""

    setting: Setting
    plan: dict[str, Any]  # what must be the same to go on with an old file
    records: tuple[Record, ...]
    predictions: dict[str, Prediction]  # by system
    reference: tuple[tuple[int, ...], ...]  # tokens that the draft-free loop commits, by question
    ping_s: tuple[float, ...]  # round trips seen during the cell
    idle_bytes_per_s: dict[str, float] = field(default_factory=dict)  # on the link by sender, nobody asking

    def of(self, system: str) -> tuple[Record, ...]:
        """The records of one system."""
        return tuple(record for record in self.records if record.system == system)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(to_plain({"format": FORMAT, **asdict(self)}))

    @classmethod
    def from_json(cls, line: str) -> Cell:
        """Inverse of `to_json`. Raises ValueError, KeyError or TypeError for another line."""
        values = json.loads(line)
        if values.pop("format") != FORMAT:
            raise ValueError("another format")
        floors = values["setting"]["floors_s"]
        values["setting"]["floors_s"] = None if floors is None else tuple(floors)
        values["setting"] = Setting(**values["setting"])
        values["records"] = tuple(_record(each) for each in values["records"])
        predictions = values["predictions"].items()
        values["predictions"] = {name: Prediction(**from_plain(each)) for name, each in predictions}
        values["reference"] = tuple(map(tuple, values["reference"]))
        values["ping_s"] = tuple(values["ping_s"])
        return cls(**values)


def read_cells(path: Path) -> list[Cell]:
    """The cells of a file, none if it is not there; a last line that was cut short is left out. Raises TandemError."""
    if not path.exists():
        return []
    cells, lines = [], path.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            cells.append(Cell.from_json(line))
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise TandemError(
                f"Every line of {path} must be one cell of this benchmark, but line {number} is not; "
                "give another folder."
            ) from None
    return cells


def append_cell(path: Path, cell: Cell) -> None:
    """Adds a cell at once; the rest of a line that was cut short goes."""
    kept = [each.to_json() for each in read_cells(path)]
    whole = path.with_suffix(".new")
    whole.write_text("".join(f"{line}\n" for line in [*kept, cell.to_json()]), "utf-8")
    os.replace(whole, path)


def latest(cells: Iterable[Cell], setting: Setting, plan: Mapping[str, Any]) -> Cell | None:
    """The last cell of a setting that was measured as planned."""
    same = [cell for cell in cells if cell.setting == setting and cell.plan == dict(plan)]
    return same[-1] if same else None


def _record(values: dict[str, Any]) -> Record:
    known: dict[str, Any] = {name: from_plain(value) for name, value in values.items()}
    return Record(
        **(known | {"token_ids": tuple(values["token_ids"]), "committed_s": tuple(values["committed_s"])})
    )
