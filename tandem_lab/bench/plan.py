"""Which cells a benchmark measures, in what order, and how long that takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Any, Literal

from tandem.config.schema import Config
from tandem.errors import TandemError
from tandem_lab.bench.records import Deployment, Setting
from tandem_lab.bench.systems import System

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
        return [list(group) for _, group in groupby(self.cells, lambda cell: _cluster_of(cell.setting))]


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


def _cluster_of(setting: Setting) -> Any:
    """What is settled when the actors start."""
    return setting.group, setting.floors_s, setting.slow, setting.deployment


def in_turns(cells: Iterable[CellPlan], deployments: Sequence[Deployment]) -> tuple[CellPlan, ...]:
    """These cells over each deployment, one after the other on each link, so that what drifts drifts for all.

    The order turns around from link to link: none always comes first, and each start serves two links. A device that
    has joined a cloud cannot call the cloud's actors, so systems that make such calls are left out. Raises TandemError
    if nothing is left.
    """
    planned: list[CellPlan] = []
    deployments = tuple(dict.fromkeys(deployments))
    links = [list(group) for _, group in groupby(cells, lambda cell: _link_of(cell.setting))]
    for number, members in enumerate(links):
        for deployment in deployments if number % 2 == 0 else deployments[::-1]:
            planned += [_over(cell, deployment) for cell in members if _systems_over(cell, deployment)]
    if len({cell.setting.deployment for cell in planned}) < len(deployments):
        raise TandemError(
            "Nothing of this can be measured over a join link, over which nobody can call the cloud's actors; add "
            "--systems Tandem/mirror, or leave out --deployment."
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
    return tuple(s for s in cell.systems if not s.calls_cloud)


def informative_at(systems: Sequence[System], temperature: float) -> tuple[System, ...]:
    """At temperature 0 both draft rules are one, so the rows of Algorithm 1 are left out."""
    return tuple(system for system in systems if temperature > 0 or not system.is_stochastic_only)
