"""Which cells a benchmark of latency measures, in what order, and how long that takes. Knows no cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby, product
from math import isfinite
from typing import Any, Literal

from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem_lab.latency.records import DataPlane, Deployment, Models, Setting
from tandem_lab.latency.systems import (
    BY_NAME,
    CLOUD_ONLY,
    DEVICE_ONLY,
    MIRROR,
    SYSTEMS,
    TOKEN_WISE,
    System,
)

FLOORS_S = (0.060, 0.025)
"""Least decode times, device and cloud: what stands for slower hardware where both share one machine."""
RTTS_S = (0.0, 0.05, 0.1, 0.2, 0.3)
ENDS_S = (0.0, 0.3)
HALF_RTTS_S, HALF_TEMPERATURES = (0.0, 0.1, 0.3), (1.0,)
TEMPERATURES = (0.0, 1.0)
LATENCY_TOKENS, TTFT_TOKENS = 48, 2
"""Longest answer. The bundled ones are shorter than the first; two tokens are the least that has a pace."""

_EVERYWHERE = (DEVICE_ONLY, CLOUD_ONLY, TOKEN_WISE, MIRROR, BY_NAME["Tandem/device"])
_BASIS = (DEVICE_ONLY, CLOUD_ONLY, TOKEN_WISE, MIRROR)
HALF_SYSTEMS = (DEVICE_ONLY, MIRROR, BY_NAME["Tandem/device"], BY_NAME["Tandem/greedy"])
"""What the case of half of the drafts accepted measures unless others are named."""
HALF_KV_STORE: Literal["memory"] = "memory"
"""Where its models keep caches of documents: the folder beside an index belongs to the configured ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPlan:
    """One setting and who is measured in it."""

    setting: Setting
    systems: tuple[System, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole benchmark. Neighbours share a cluster, or what else runs, where they can."""

    cells: tuple[CellPlan, ...]
    runs: int
    questions: tuple[str, ...]
    kv_store: tuple[str, str] = ("disk", "disk")  # where each side keeps caches of documents
    settings: str = ""  # tells one configuration from another

    def of(self, cell: CellPlan) -> dict[str, Any]:
        """What tells whether a cell of an earlier benchmark is the same."""
        return {
            "systems": [system.name for system in cell.systems],
            "runs": self.runs,
            "questions": len(self.questions),
            "kv_store": list(self.kv_store) if cell.setting.models == "configured" else [HALF_KV_STORE] * 2,
            "settings": self.settings,
        }

    def clusters(self) -> list[list[CellPlan]]:
        """The cells of each start of a deployment."""
        return _clusters(self.cells)


def plan_of(
    config: Config, cells: Sequence[CellPlan], questions: Sequence[str], num_questions: int, runs: int
) -> Plan:
    """These cells with the first questions, as `config` has them answered."""
    return Plan(
        cells=tuple(cells),
        runs=runs,
        questions=tuple(questions[:num_questions]),
        kv_store=(config.device.kv_store, config.cloud.kv_store),
        settings=sha256(repr(config).encode()).hexdigest()[:16],
    )


def _clusters(cells: Sequence[CellPlan]) -> list[list[CellPlan]]:
    """Neighbours that one start of a deployment can serve."""
    return [list(group) for _, group in groupby(cells, lambda cell: _cluster_of(cell.setting))]


def _cluster_of(setting: Setting) -> Any:
    """What is settled when the actors start."""
    return setting.group, setting.data_plane, setting.floors_s, setting.slow, setting.deployment


def in_turns(cells: Sequence[CellPlan], deployments: Sequence[Deployment]) -> tuple[CellPlan, ...]:
    """These cells over each deployment, one after the other on each link, so that what drifts drifts for all.

    The order turns around from link to link: none always comes first, and each start serves two links. A device that
    has joined a cloud has sockets as its data plane and cannot call the cloud's actors, so other planes, and systems
    that make such calls, are left out. Raises TandemError if nothing is left.
    """
    planned: list[CellPlan] = []
    deployments = tuple(dict.fromkeys(deployments))
    links = [list(group) for _, group in groupby(cells, lambda cell: _link_of(cell.setting))]
    for number, members in enumerate(links):
        for deployment in deployments if number % 2 == 0 else deployments[::-1]:
            planned += [_over(cell, deployment) for cell in members if _systems_over(cell, deployment)]
    if len({cell.setting.deployment for cell in planned}) < len(deployments):
        raise TandemError(
            "Nothing of this can be measured over a join link, whose data plane is sockets and over which nobody can "
            "call the cloud's actors; add --systems Tandem/mirror and --data-plane socket, or leave out --deployment."
        )
    return tuple(planned)


def _link_of(setting: Setting) -> Any:
    return setting.rtt_s, setting.bits_per_s


def _over(cell: CellPlan, deployment: Deployment) -> CellPlan:
    setting = replace(cell.setting, deployment=deployment)
    return CellPlan(setting=setting, systems=_systems_over(cell, deployment))


def _systems_over(cell: CellPlan, deployment: Deployment) -> tuple[System, ...]:
    """Those of a cell that can be measured."""
    if deployment == "ray":
        return cell.systems
    return tuple(s for s in cell.systems if cell.setting.data_plane == "socket" and not s.calls_cloud)


def full_cells(max_new_tokens: int) -> tuple[CellPlan, ...]:
    """The grid of the documentation: five round trips, two temperatures, both data planes, with and without floors;
    with whole answers also the case of half of the drafts accepted.
    """

    def cell(
        systems: Sequence[System],
        rtt_s: float,
        temperature: float,
        plane: DataPlane,
        floors: Any,
        models: Models = "configured",
    ) -> CellPlan:
        setting = Setting(
            data_plane=plane,
            floors_s=floors,
            rtt_s=rtt_s,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            models=models,
        )
        return CellPlan(setting=setting, systems=informative_at(systems, temperature))

    with_floors = (
        cell(SYSTEMS if rtt_s in ENDS_S else _EVERYWHERE, rtt_s, temperature, "socket", FLOORS_S)
        for rtt_s, temperature in product(RTTS_S, TEMPERATURES)
    )
    over_ray = (
        cell((DEVICE_ONLY, MIRROR), rtt_s, temperature, "ray", FLOORS_S)
        for rtt_s, temperature in product(ENDS_S, TEMPERATURES)
    )
    without = (cell(_BASIS, rtt_s, 0.0, "socket", None) for rtt_s in ENDS_S)
    half = (
        cell(HALF_SYSTEMS, rtt_s, temperature, "socket", FLOORS_S, "half")
        for rtt_s, temperature in product(HALF_RTTS_S, HALF_TEMPERATURES)
        if max_new_tokens > TTFT_TOKENS
    )
    return (*with_floors, *over_ray, *without, *half)


def select_cells(
    systems: Sequence[System],
    rtts_s: Sequence[float],
    temperatures: Sequence[float],
    planes: Sequence[DataPlane],
    floors: Sequence[tuple[float, float] | None],
    max_new_tokens: int,
    models: Models = "configured",
) -> tuple[CellPlan, ...]:
    """Every combination. Raises TandemError if nothing is left to measure in one."""
    cells = []
    for floors_s, plane, rtt_s, temperature in product(floors, planes, rtts_s, temperatures):
        setting = Setting(
            data_plane=plane,
            floors_s=floors_s,
            rtt_s=rtt_s,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            models=models,
        )
        left = informative_at(systems, temperature)
        if not left:
            raise TandemError(
                "Algorithm 1 draws only above temperature 0, but nothing else is to be measured at 0; "
                "add --temperature 1, or another system."
            )
        cells.append(CellPlan(setting=setting, systems=left))
    return tuple(cells)


def informative_at(systems: Sequence[System], temperature: float) -> tuple[System, ...]:
    """At temperature 0 both draft rules are one, so the rows of Algorithm 1 are left out."""
    return tuple(system for system in systems if temperature > 0 or not system.is_stochastic_only)


START_S, QUESTION_S = 30.0, 0.35
"""Of a cluster; of a question beside its tokens and round trips."""
ROUND_TRIPS = 2.5
"""Of a question beside its tokens: until the first one, and to ask the actors for their counters."""


def estimated_s(
    plan: Plan,
    num_tokens: Callable[[Setting], float],
    token_s: Callable[[System, Setting], float],
    cells: Sequence[CellPlan],
) -> float:
    """How long measuring `cells` takes. num_tokens: of one answer. token_s: predicted, may be nan."""
    total_s = 0.0
    num_questions = plan.runs * len(plan.questions) + 1  # one is not measured
    for cell in cells:
        for system in cell.systems:
            predicted_s = token_s(system, cell.setting)
            pace_s = predicted_s if isfinite(predicted_s) else 0.03 + cell.setting.rtt_s / 2
            question_s = QUESTION_S + ROUND_TRIPS * cell.setting.rtt_s + num_tokens(cell.setting) * pace_s
            total_s += num_questions * question_s
    return total_s + START_S * len(_clusters(cells))
