"""What the simulated benchmarks share: the recorded data, the look of strategies in plots, the folder for them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import new_parser
from tandem.topology import Party
from tandem_lab.simulation.study import Strategy

RECORDED = Path(__file__).parent / "data" / "acceptance.json"
OUT = Path(__file__).parent / "out"
LOOK: dict[Strategy, dict[str, Any]] = {
    # Colours that stay apart for colour-blind readers; marker and dash say the same once more.
    "device": {"color": "#0072B2", "marker": "s", "linestyle": "--"},
    "cloud": {"color": "#E69F00", "marker": "^", "linestyle": "--"},
    "random": {"color": "#777777", "marker": "x", "linestyle": ":"},
    "greedy": {"color": "#009E73", "marker": "o", "linestyle": "-"},
    "mirror": {"color": "#CC3377", "marker": "D", "linestyle": "-"},
    "token-wise": {"color": "#000000", "marker": "+", "linestyle": ":"},
}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC3377", "#56B4E9")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """With the options that all of them have."""
    made = new_parser(doc)
    made.add_argument("--out", type=Path, default=OUT, help="folder for the plot")
    made.add_argument("--smoke", action="store_true", help="few runs, at most 20 s")
    return made


def seconds(device_ms: float, cloud_ms: float) -> dict[Party, float]:
    """Decode times."""
    return {Party.DEVICE: device_ms / 1e3, Party.CLOUD: cloud_ms / 1e3}


def axes(num_columns: int, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure with plots side by side; needs the extra [plot]."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    width = 4.2 * num_columns + 0.6
    figure, found = pyplot.subplots(1, num_columns, figsize=(width, height), squeeze=False)
    for one in found[0]:
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, list(found[0])


def save(figure: Any, folder: Path, name: str) -> str:
    """Write a PNG; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=130, bbox_inches="tight")
    print(f"plot: {path}")
    return str(path)
