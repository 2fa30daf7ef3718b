"""The deployments of a benchmark side by side: each system on a Ray cluster, and over a join link, on the same link."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tandem_lab.latency.records import Cell
from tandem_lab.numbers import ratio

HEADER = f"{'ray/join':25} {'ms/token':>13} {'join/ray':>8} {'TTFT ms':>11} {'up B':>11} {'down B':>11} {'wrong':>7}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is compared of a row. nan: not known."""

    token_s: float
    first_s: float
    up_bytes: float  # a token, on the data connection with headers
    down_bytes: float
    num_wrong: int | None  # None: its tokens need not be those of another run


def side_by_side(
    cells: Sequence[Cell],
    rows_of: Callable[[Cell], Mapping[str, Any]],
    figures_of: Callable[[Any], Figures],
) -> Iterator[str]:
    """Lines for a person; none where one deployment was measured. rows_of: of a cell, by system."""
    on_ray = {cell.setting: cell for cell in cells if cell.setting.deployment == "ray"}
    for cell in cells:
        setting = replace(cell.setting, deployment="ray")
        if cell.setting.deployment == "ray" or setting not in on_ray:
            continue
        yield f"deployments side by side: {setting}"
        yield HEADER
        rows = rows_of(on_ray[setting])
        for name, row in rows_of(cell).items():
            if name in rows:
                yield _line(name, figures_of(rows[name]), figures_of(row))
        yield ""


def _line(name: str, on_ray: Figures, joined: Figures) -> str:
    def both(form: str, of: Callable[[Figures], float]) -> str:
        return "/".join(format(of(figures), form) for figures in (on_ray, joined))

    wrong = "" if joined.num_wrong is None else f"{on_ray.num_wrong}/{joined.num_wrong}"
    return (
        f"{name:25} {both('.1f', lambda f: 1e3 * f.token_s):>13} {ratio(joined.token_s, on_ray.token_s):>8.2f} "
        f"{both('.0f', lambda f: 1e3 * f.first_s):>11} {both('.0f', lambda f: f.up_bytes):>11} "
        f"{both('.0f', lambda f: f.down_bytes):>11} {wrong:>7}"
    ).rstrip()
