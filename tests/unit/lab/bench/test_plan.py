"""The grid of a benchmark, in its order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.errors import TandemError
from tandem_lab.bench.dual import FLOORS_S, LATENCY, TTFT, full_cells
from tandem_lab.bench.plan import CellPlan, Plan, in_turns
from tandem_lab.bench.suite import Axes
from tandem_lab.bench.systems import DUAL

PLAN = Plan(cells=full_cells(LATENCY), runs=5, questions=("a", "b", "c"))


def test_the_full_grid_holds_what_the_figures_need() -> None:
    found = {
        (cell.setting.models, cell.setting.floors_s, cell.setting.rtt_s, cell.setting.temperature): {
            system.name for system in cell.systems
        }
        for cell in PLAN.cells
    }
    assert len({cell.setting for cell in PLAN.cells}) == len(PLAN.cells), "no setting twice"
    for rtt_s in (0.0, 0.05, 0.1, 0.2, 0.3):
        for temperature in (0.0, 1.0):
            names = found["configured", FLOORS_S, rtt_s, temperature]
            assert {"Tandem/mirror", "Tandem/device", "DRDG/TW", "CRCG/device", "CRCG/cloud"} <= names
    everything = {system.name for system in DUAL}
    for rtt_s in (0.0, 0.3):
        assert found["configured", FLOORS_S, rtt_s, 1.0] == everything
        at_0 = found["configured", FLOORS_S, rtt_s, 0.0]
        assert at_0 == {name for name in everything if not name.endswith(("algorithm1", "lottery"))}
        assert "Tandem/greedy" in found["half", FLOORS_S, rtt_s, 1.0]
    assert "Tandem/mirror" in found["configured", None, 0.0, 0.0]
    assert {cell.setting.models for cell in full_cells(TTFT)} == {"configured"}, (
        "two tokens say nothing of half"
    )
    assert len(PLAN.clusters()) == 3


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
    """Nobody can call a joined cloud's actors."""
    whole = ["CRCG/device", "CRCG/cloud", "DRCG/Text", "Tandem/mirror"]
    cells = select(*whole, rtts_s=(0.0, 0.1, 0.3))
    planned = in_turns(cells, ["ray", "join", "ray"])
    assert len(planned) == 2 * len(cells)
    clusters = [
        (group[0].setting.deployment, sorted({cell.setting.rtt_s for cell in group}))
        for group in replace(PLAN, cells=planned).clusters()
    ]
    assert clusters == [("ray", [0.0]), ("join", [0.0, 0.1]), ("ray", [0.1, 0.3]), ("join", [0.3])]
    for cell in planned:
        names = [system.name for system in cell.systems]
        assert names == (whole if cell.setting.deployment == "ray" else ["CRCG/device", "Tandem/mirror"])
    assert in_turns(cells, ["ray"]) == cells
    with pytest.raises(TandemError, match="Nothing of this can be measured over a join link"):
        in_turns(select("CRCG/cloud"), ["ray", "join"])
