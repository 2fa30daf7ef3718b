"""The pictures of all suites are drawn from cells, whatever was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="plots need the extra [lab]")

from tandem_lab.bench import dual, federated, plots, speculative
from tandem_lab.bench.systems import DUAL
from tandem_lab.netlab.schedule import bundled
from tandem_lab.simulation.pacing import Conditions, play_answer
from tests.unit.lab.bench.cells import PROPOSING, SETTING, VOTING, cell, proposing_cell, voting_cell
from tests.unit.lab.test_timeline import words


def test_all_pictures_are_drawn(tmp_path: Path) -> None:
    """Every system, several round trips, a second deployment, a cell without floors, several rates."""
    paces = {system.name: [0.06, 0.07, 0.05] for system in DUAL}
    links = [cell(paces, setting=replace(SETTING, rtt_s=rtt_s)) for rtt_s in (0.0, 0.3)]
    joined = cell({"Tandem/mirror": [0.09, 0.1]}, setting=replace(SETTING, deployment="join"))
    bare = cell({"Tandem/mirror": [0.02]}, setting=replace(SETTING, floors_s=None))
    rates = [proposing_cell(replace(PROPOSING, bits_per_s=rate)) for rate in (1e4, None)]
    also = proposing_cell(replace(PROPOSING, deployment="join"))
    more = replace(voting_cell(), setting=replace(VOTING, num_workers=4))
    for suite, cells in (
        (dual.LATENCY, [*links, joined, bare]),
        (speculative.SUITE, [*rates, also]),
        (federated.SUITE, [voting_cell(), more]),
    ):
        (tmp_path / suite.name).mkdir()
        suite.draw(suite, cells, tmp_path / suite.name)
        sizes = {path.name: path.stat().st_size for path in (tmp_path / suite.name).iterdir()}
        assert set(sizes) == set(suite.pictures)
        assert min(sizes.values()) > 10_000
    timing = play_answer(Conditions(rtt_s=0.1), "stop_and_wait", 3, lambda step: step % 4 > 0, 40)
    plots.plot_lengths({"always 3": timing}, bundled("walk"), tmp_path / "one.svg")
    assert "always 3" in words(tmp_path / "one.svg")
