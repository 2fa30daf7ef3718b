"""The picture of an answer: when the other side's drafts began, and what a picture shows."""

from __future__ import annotations

import re
from itertools import pairwise
from math import nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tandem.errors import TandemError
from tandem.events import Event, TokenEvent
from tandem.topology import PARTIES, Party
from tandem_lab.simulation.study import draw_acceptance, link_of, replay
from tandem_lab.timeline import decoded_s, plot_pipeline

DECODE_S = {Party.DEVICE: 0.1, Party.CLOUD: 0.05}


def token(step: int, device_s: float, cloud_s: float, committed_s: float, **changes: Any) -> TokenEvent:
    values: dict[str, Any] = {
        "token": 100 + step,
        "text": f" t{step}",
        "device_accepted": True,
        "cloud_accepted": True,
        "aggregator": Party.DEVICE,
        "device_decode_s": 0.1,
        "cloud_decode_s": 0.05,
        "device_acceptance": 0.6,
        "cloud_acceptance": 0.7,
        "rtt_s": 0.2,
    }
    times = {"device_arrived_s": device_s, "cloud_arrived_s": cloud_s, "committed_s": committed_s}
    return TokenEvent(step=step, **values | times | changes)


@pytest.mark.parametrize("strategy", ["device", "cloud", "greedy", "mirror", "random"])
def test_drafts_of_one_decoder_do_not_overlap_where_the_link_is_steady(strategy: Any) -> None:
    """So what is reckoned for the cloud is when it really happened, to the microseconds of the header's clock."""
    found = replay(draw_acceptance(48, 0.6, 0.7, Random(1)), DECODE_S, link_of(0.5), strategy)
    for party in PARTIES:
        spans = [each for each in (decoded_s(token, party) for token in found.tokens) if each[0] == each[0]]
        assert spans or (strategy == "cloud" and party is Party.CLOUD)
        assert all(end_s - start_s == pytest.approx(DECODE_S[party]) for start_s, end_s in spans)
        assert all(one[1] <= other[0] + 1e-5 for one, other in pairwise(spans))


def words(path: Path) -> str:
    """The text of an svg, of which matplotlib keeps a comment each."""
    return "\n".join(re.findall(r"<!-- (.+?) -->", path.read_text("utf-8")))


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    alone = {"cloud_accepted": False, "is_alone": True, "cloud_decode_s": nan}
    found: list[Event] = [
        *replay(draw_acceptance(20, 0.5, 0.5, Random(2)), DECODE_S, link_of(0.5), "greedy").events,
        token(20, 9.5, nan, 9.6, **alone),
    ]
    plot_pipeline(found, "greedy", tmp_path / "out.svg", title="costs $5 and $6_")
    shown = words(tmp_path / "out.svg")
    for word in ("device decodes", "handover to the cloud", "verdict on its way", "costs $5 and $6_"):
        assert word in shown
    plot_pipeline(found, "mirror", tmp_path / "out.png", steps=(1, 3))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TandemError, match="of 0 there is none from 7 to 9; choose other steps"):
        plot_pipeline([], "greedy", tmp_path / "out.png", steps=(7, 9))
    with pytest.raises(TandemError, match=r"cannot be written to .*none/out.png .*choose another file"):
        plot_pipeline(found, "greedy", tmp_path / "none" / "out.png")
    with pytest.raises(TandemError, match=r"but the file is 'out\.abc'; rename it"):
        plot_pipeline(found, "greedy", tmp_path / "out.abc")


def test_without_matplotlib_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tandem_lab.plots.find_spec", lambda name: None)
    with pytest.raises(TandemError, match="A plot needs matplotlib, which is not installed; run `"):
        plot_pipeline([], "greedy", tmp_path / "out.png")
