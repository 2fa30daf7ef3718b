"""The picture of a pipeline: what is in it, and what a person is told where there is none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.errors import TandemError
from tandem_lab.simulation.link import Link
from tandem_lab.timeline.intervals import timeline
from tandem_lab.timeline.pipeline import plot_pipeline
from tests.unit.lab.timeline.timelines import by_hand, run, token


@pytest.fixture(autouse=True)
def needs_matplotlib(request: pytest.FixtureRequest) -> None:
    if "without" not in request.node.name:
        pytest.importorskip("matplotlib")


def words(path: Path) -> str:
    """The text of an svg, of which matplotlib keeps a comment each."""
    return "\n".join(re.findall(r"<!-- (.+?) -->", path.read_text("utf-8")))


def test_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "out.svg"
    plot_pipeline(timeline(by_hand(), "greedy"), file, title="costs $5 and $6_")
    shown = words(file)
    for word in ("cloud decodes", "device decodes", "commits", "aggregator", "RTT (ms)", "costs $5 and $6_"):
        assert word in shown
    for key in ("both accepted", "cloud's accepted", "device's accepted", "neither", "handover to the cloud"):
        assert key in shown
    assert "handover to the device" not in shown
    assert "verdict on its way" in shown
    assert "time since the query was opened on the device (s)" in shown


@pytest.mark.parametrize("placement", ["cloud", "mirror", "random"])
def test_of_runs(tmp_path: Path, placement: str) -> None:
    file = tmp_path / "out.svg"
    plot_pipeline(run(3, placement, Link(delay_s=0.25)), file, steps=(4, 12))
    shown = words(file)
    assert ("not seen by the device" in shown) == (placement == "cloud")
    assert ("verdict on its way" in shown) == (placement != "mirror")
    numbers = {int(word) for word in re.findall(r"^\d+$", shown, re.MULTILINE)}
    assert {5, 6} <= numbers
    assert 14 not in numbers


def test_a_png_is_one(tmp_path: Path) -> None:
    file = tmp_path / "out.png"
    plot_pipeline(timeline([token(0, 0.3, float("nan"), 0.5, rtt_s=float("nan"))]), file)
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (
            None,
            "A plot needs at least one committed token, but of 0 there is none; choose other steps, or ask again.",
        ),
        ((7, 9), "but of 0 there is none from 7 to 9"),
    ],
)
def test_no_steps(tmp_path: Path, steps: tuple[int, int] | None, sentence: str) -> None:
    with pytest.raises(TandemError, match=re.escape(sentence)):
        plot_pipeline(timeline([]), tmp_path / "out.png", steps=steps)


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    one = timeline([token(0, 0.3, 0.4, 0.5)])
    with pytest.raises(TandemError, match=r"cannot be written to .*none/out.png .*choose another file"):
        plot_pipeline(one, tmp_path / "none" / "out.png")
    with pytest.raises(TandemError, match=r"but the file is 'out\.abc'; rename it"):
        plot_pipeline(one, tmp_path / "out.abc")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tandem_lab.timeline.pipeline.find_spec", lambda name: None)
    with pytest.raises(TandemError, match="A plot needs matplotlib, which is not installed; run `"):
        plot_pipeline(timeline(by_hand()), tmp_path / "out.png")


def test_modules_without_heavy_imports() -> None:
    heavy = '{"matplotlib", "torch", "ray", "asyncio"}'
    modules = ", ".join(f"tandem_lab.timeline.{name}" for name in ("intervals", "perfetto", "pipeline"))
    script = f"import sys, {modules}; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
