"""The grid of a benchmark, and the names of systems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.errors import TandemError
from tandem_lab.bench.dual import FLOORS_S, LATENCY, TOKEN_WISE, TTFT, full_cells
from tandem_lab.bench.plan import CellPlan, Plan, estimated_s, in_turns
from tandem_lab.bench.records import Setting
from tandem_lab.bench.suite import Axes
from tandem_lab.bench.systems import DUAL, FEDERATED, SPECULATIVE, System, select_systems

PLAN = Plan(cells=full_cells(LATENCY), runs=5, questions=("a", "b", "c"))


def num_tokens(setting: Setting) -> float:
    """Bundled answers have 14 tokens; random models write up to the limit."""
    return setting.max_new_tokens if setting.models == "half" else 14


def test_the_full_grid_holds_what_the_figures_need() -> None:
    cells = PLAN.cells
    found = {
        (cell.setting.floors_s, cell.setting.rtt_s, cell.setting.temperature): {
            system.name for system in cell.systems
        }
        for cell in cells
        if cell.setting.models == "configured"
    }
    assert len({cell.setting for cell in cells}) == len(cells), "no setting twice"
    for rtt_s in (0.0, 0.05, 0.1, 0.2, 0.3):
        for temperature in (0.0, 1.0):
            names = found[FLOORS_S, rtt_s, temperature]
            assert {"Tandem/mirror", "Tandem/device", "DRDG/TW", "CRCG/device", "CRCG/cloud"} <= names
    everything = {system.name for system in DUAL}
    for rtt_s in (0.0, 0.3):
        assert found[FLOORS_S, rtt_s, 1.0] == everything
        at_0 = found[FLOORS_S, rtt_s, 0.0]
        assert at_0 == {name for name in everything if not name.endswith("algorithm1")}
    assert "Tandem/mirror" in found[None, 0.0, 0.0]


def test_the_full_grid_holds_the_case_of_half_of_the_drafts_accepted() -> None:
    half = [cell for cell in PLAN.cells if cell.setting.models == "half"]
    for rtt_s in (0.0, 0.1, 0.3):
        (names, *_) = [
            {system.name for system in cell.systems} for cell in half if cell.setting.rtt_s == rtt_s
        ]
        assert names == {"CRCG/device", "Tandem/mirror", "Tandem/device", "Tandem/greedy"}
    assert {cell.setting.models for cell in full_cells(TTFT)} == {"configured"}, (
        "two tokens say nothing of it"
    )


def test_what_was_measured_tells_where_caches_were_kept() -> None:
    stores = {cell.setting.models: PLAN.of(cell)["kv_store"] for cell in PLAN.cells}
    assert stores == {"configured": ["disk", "disk"], "half": ["memory", "memory"]}


def test_a_cluster_is_started_once_for_all_its_cells() -> None:
    clusters = PLAN.clusters()
    assert len(clusters) == 3
    assert sum(map(len, clusters)) == len(PLAN.cells)


def test_the_full_grid_takes_about_an_hour() -> None:
    """With the device's pace for all but the token-wise loop, which takes a round trip more."""

    def token_s(system: System, setting: Setting) -> float:
        return 0.06 + setting.rtt_s * (system is TOKEN_WISE)

    assert 1200 < estimated_s(PLAN, num_tokens, token_s, PLAN.cells) < 4000


def test_the_estimate_grows_with_what_is_asked() -> None:
    def seconds(plan: Plan) -> float:
        return estimated_s(plan, num_tokens, lambda system, setting: 0.06, plan.cells)

    assert seconds(replace(PLAN, runs=10)) > 1.8 * seconds(PLAN) - 200
    assert estimated_s(PLAN, num_tokens, lambda system, setting: float("nan"), PLAN.cells) > 0


def select(
    *systems: str, rtts_s: tuple[float, ...] = (0.1,), temperatures: tuple[float, ...] = (0.0, 1.0)
) -> tuple[CellPlan, ...]:
    axes = Axes(systems=systems, rtts_s=rtts_s, temperatures=temperatures)
    return LATENCY.cells(axes, (), is_smoke=False)


def test_algorithm_1_is_left_out_at_temperature_0() -> None:
    cold, warm = select("Tandem/device/algorithm1", "Tandem/mirror")
    assert [system.name for system in cold.systems] == ["Tandem/mirror"]
    assert len(warm.systems) == 2
    with pytest.raises(TandemError, match="nothing else is to be measured at 0; add --temperature 1"):
        select("Tandem/device/algorithm1", temperatures=(0.0,))


def test_deployments_take_turns_on_each_link() -> None:
    whole = ["CRCG/device", "CRCG/cloud", "DRCG/KV", "Tandem/mirror"]
    cells = select(*whole, rtts_s=(0.0, 0.1, 0.3))
    planned = in_turns(cells, ["ray", "join", "ray"])
    assert len(planned) == 2 * len(cells)
    plan = replace(PLAN, cells=planned)
    assert [
        (group[0].setting.deployment, sorted({cell.setting.rtt_s for cell in group}))
        for group in plan.clusters()
    ] == [("ray", [0.0]), ("join", [0.0, 0.1]), ("ray", [0.1, 0.3]), ("join", [0.3])]
    for cell in planned:
        names = [system.name for system in cell.systems]
        assert names == (whole if cell.setting.deployment == "ray" else ["CRCG/device", "Tandem/mirror"]), (
            "nobody can call a joined cloud's actors"
        )
    assert in_turns(cells, ["ray"]) == cells


def test_what_cannot_be_measured_over_a_join_link_is_one_sentence() -> None:
    with pytest.raises(TandemError, match="Nothing of this can be measured over a join link"):
        in_turns(select("CRCG/cloud"), ["ray", "join"])


def test_an_unknown_system_names_the_nearest() -> None:
    with pytest.raises(TandemError, match="'Tandem/miror' is none; the nearest is 'Tandem/mirror'"):
        select_systems(["CRCG/device", "Tandem/miror"], DUAL, "page")


def test_every_system_is_described() -> None:
    for systems in (DUAL, SPECULATIVE, FEDERATED):
        assert len({system.name for system in systems}) == len(systems)
        assert all(system.what for system in systems)
    for system in DUAL:
        assert system.dragon or system.name == "Tandem/mirror"
        assert (system.kind == "together") == ("placement" in system.options)
