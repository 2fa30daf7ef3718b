"""Acceptance sequences have the rates that were asked for, and recorded ones are read as written."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tandem.errors import TandemError
from tandem.topology import Party
from tandem_lab.simulation.study import (
    draw_acceptance,
    parse_steps,
    phases,
    rates,
    read_acceptance,
    read_decode_times,
)


def test_drawn_rates() -> None:
    """20,000 steps: 0.02 is more than five standard deviations."""
    for joint, neither in (("independent", 0.3 * 0.4), ("exclusive", 0.0)):
        steps = draw_acceptance(20_000, 0.7, 0.6, Random(1), joint)  # type: ignore[arg-type]
        found = rates(steps)
        assert found[Party.DEVICE] == pytest.approx(0.7, abs=0.02)
        assert found[Party.CLOUD] == pytest.approx(0.6, abs=0.02)
        assert steps.count((False, False)) / len(steps) == pytest.approx(neither, abs=0.02)


def test_phases_alternate() -> None:
    steps = phases(100, 1.0, 0.0, 25, Random(2))
    runs = [set(steps[first : first + 25]) for first in range(0, 100, 25)]
    assert len(steps) == 100
    assert all(len(run) == 1 for run in runs)
    assert runs[0] == runs[2] != runs[1] == runs[3]
    assert len(phases(30, 1.0, 0.0, 25, Random(2))) == 30


def test_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps({"sequences": {"0": ["BDCN"]}, "decode_ms": {"device": [5.0], "cloud": [2.5]}})
    )
    assert read_acceptance(path) == {"0": [[(True, True), (True, False), (False, True), (False, False)]]}
    assert read_decode_times(path) == {Party.DEVICE: [0.005], Party.CLOUD: [0.0025]}


def test_another_letter_is_refused() -> None:
    with pytest.raises(TandemError, match=r"consists of B, D, C, N, but 'X' is in it; record it again"):
        parse_steps("BX")
