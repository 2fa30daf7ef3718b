"""Figures 6 and 7 are drawn from cells, whatever was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tandem.errors import TandemError
from tandem_lab.latency.records import Cell
from tandem_lab.latency.systems import SYSTEMS
from tests.unit.lab.latency.cells import SETTING, cell
from tests.unit.lab.timeline.test_pipeline import words

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")

from tandem_lab.latency.plot import FIRST, LOOK, TOKEN, plot_latency

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
    """Two temperatures, three round trips, a second data plane, a cell without floors."""
    found = []
    for temperature in (0.0, 1.0):
        for rtt_s in (0.0, 0.1, 0.3):
            paces = {
                name: [max(0.06, at_300_s * rtt_s / 0.3) * run for run in (1.0, 1.05, 1.2)]
                for name, at_300_s in AT_300_S.items()
                if rtt_s in (0.0, 0.3) or name in ("CRCG/device", "DRDG/TW", "Tandem/mirror")
            }
            found.append(cell(paces, setting=replace(SETTING, rtt_s=rtt_s, temperature=temperature)))
    over_ray = replace(SETTING, data_plane="ray", rtt_s=0.3)
    found.append(cell({"Tandem/mirror": [0.09, 0.1]}, setting=over_ray))
    found.append(cell({"Tandem/mirror": [0.02]}, setting=replace(SETTING, floors_s=None, rtt_s=0.0)))
    return found


def test_every_system_has_a_look_of_its_own() -> None:
    assert list(LOOK) == [system.name for system in SYSTEMS]
    looks = {tuple(sorted(look.items(), key=str)) for look in LOOK.values()}
    assert len(looks) == len(SYSTEMS)


@pytest.mark.parametrize("quantity", [TOKEN, FIRST])
def test_a_figure_is_drawn(quantity: object, tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    plot_latency(cells(), path, quantity)  # type: ignore[arg-type]
    assert path.stat().st_size > 20_000
    plot_latency(cells()[:1], path, quantity)  # type: ignore[arg-type]


def test_one_round_trip_is_drawn_as_bars(tmp_path: Path) -> None:
    paces = {"CRCG/device": [0.061], "DRDG/TW": [0.165, 0.175, 0.185], "Tandem/mirror": [0.064]}
    over_ray = cell({"Tandem/mirror": [0.09]}, setting=replace(SETTING, data_plane="ray"))
    joined = cell({"Tandem/mirror": [0.063]}, setting=replace(SETTING, deployment="join"))
    plot_latency([cell(paces), over_ray, joined], tmp_path / "bars.svg", TOKEN)
    shown = words(tmp_path / "bars.svg")
    of_mirror = (
        "Tandem/mirror",
        "Tandem/mirror, ray plane",
        "Tandem/mirror, join link",
        "64.0",
        "90.0",
        "63.0",
    )
    for word in ("CRCG/device", "61.0", "175.0", "RTT 300 ms", *of_mirror):
        assert word in shown
    assert "injected round trip (ms)" not in shown


def test_deployments_are_lines_of_their_own(tmp_path: Path) -> None:
    paces = {"CRCG/device": [0.06], "Tandem/device/algorithm1": [0.07], "Tandem/mirror": [0.065]}
    settings = [
        replace(SETTING, rtt_s=rtt_s, deployment=deployment)
        for rtt_s in (0.0, 0.3)
        for deployment in ("ray", "join")
    ]
    plot_latency([cell(paces, setting) for setting in settings], tmp_path / "lines.svg", TOKEN)
    shown = words(tmp_path / "lines.svg")
    for name in paces:
        assert {name, f"{name}, join link"} <= set(shown.splitlines())


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TandemError, match="cannot be written"):
        plot_latency(cells()[:1], tmp_path / "none" / "figure.png", TOKEN)
