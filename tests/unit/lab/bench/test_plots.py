"""The pictures of all suites are drawn from cells, whatever was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import TandemError
from tandem_lab.bench import dual, federated, speculative
from tandem_lab.bench.records import Cell
from tandem_lab.bench.systems import DUAL, FEDERATED, SPECULATIVE
from tandem_lab.netlab.bundled import bundled
from tandem_lab.simulation.pacing import Conditions, play_answer
from tests.unit.lab.bench.cells import (
    PROPOSING,
    SETTING,
    VOTING,
    WORKERS_S,
    cell,
    proposing_cell,
    voted,
    voting_cell,
)
from tests.unit.lab.timeline.test_pipeline import words

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")

from tandem_lab.bench import plots

AT_300_S = {
    "CRCG/device": 0.06,
    "CRCG/cloud": 0.027,
    "DRCG/Text": 0.062,
    "DRCG/KV": 0.061,
    "DRDG/TW": 0.33,
    "DRDG/SW-dense": 0.075,
    "DRDG/SW": 0.066,
    "Tandem/mirror": 0.055,
    "Tandem/device": 0.065,
    "Tandem/cloud": 0.155,
    "Tandem/greedy": 0.064,
    "Tandem/random": 0.14,
}


def cells() -> list[Cell]:
    """Two temperatures, three round trips, a second deployment, a cell without floors."""
    found = []
    for temperature in (0.0, 1.0):
        for rtt_s in (0.0, 0.1, 0.3):
            paces = {
                name: [max(0.06, at_300_s * rtt_s / 0.3) * run for run in (1.0, 1.05, 1.2)]
                for name, at_300_s in AT_300_S.items()
                if rtt_s in (0.0, 0.3) or name in ("CRCG/device", "DRDG/TW", "Tandem/mirror")
            }
            found.append(cell(paces, setting=replace(SETTING, rtt_s=rtt_s, temperature=temperature)))
    joined = replace(SETTING, deployment="join", rtt_s=0.3)
    found.append(cell({"Tandem/mirror": [0.09, 0.1]}, setting=joined))
    found.append(cell({"Tandem/mirror": [0.02]}, setting=replace(SETTING, floors_s=None, rtt_s=0.0)))
    return found


def draw(cells: list[Cell], folder: Path) -> None:
    plots.plot_latency(dual.LATENCY, cells, folder)


@pytest.mark.parametrize("systems", [DUAL, SPECULATIVE, FEDERATED])
def test_every_system_has_a_look_of_its_own(systems: Any) -> None:
    looks = {tuple(sorted(plots.LOOK[system.name].items(), key=str)) for system in systems}
    assert len(looks) == len(systems)


def test_figures_are_drawn(tmp_path: Path) -> None:
    draw(cells(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(dual.LATENCY.pictures)
    assert all(path.stat().st_size > 20_000 for path in tmp_path.iterdir())
    draw(cells()[:1], tmp_path)


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="cannot be written"):
        draw(cells()[:1], tmp_path / "none")


# ---- speculative and federated -----------------------------------------------------------------------------------


def test_throughput_and_lengths_are_drawn(tmp_path: Path) -> None:
    found = [
        proposing_cell(replace(PROPOSING, bits_per_s=rate, rtt_s=rtt_s))
        for rate in (1e4, None)
        for rtt_s in (0.0, 0.1)
    ]
    joined = [proposing_cell(replace(each.setting, deployment="join")) for each in found]
    plots.plot_throughput(speculative.SUITE, [*found, *joined], tmp_path)
    assert all((tmp_path / name).stat().st_size > 1000 for name in speculative.SUITE.pictures)
    timing = play_answer(Conditions(rtt_s=0.1), "stop_and_wait", 3, lambda step: step % 4 > 0, 40)
    plots.plot_lengths({"always 3": timing}, bundled("walk"), tmp_path / "one.svg")
    assert "always 3" in words(tmp_path / "one.svg")


def test_a_picture_has_every_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the last plot, too, whose times are the longest."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    slow = tuple(voted(name, 3 * pace_s) for name, pace_s in WORKERS_S.items())
    more = replace(voting_cell(records=slow), setting=replace(VOTING, num_workers=4))
    plots.plot_times(federated.SUITE, [voting_cell(), more], tmp_path)
    low, high = figures[0].axes[-1].get_ylim()
    assert low == 0.0
    assert high > 3 * 128
