"""What benchmarks share: summaries, plots, the bundled pair, the JSON line at the end."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem_lab.environment import describe_environment

if TYPE_CHECKING:
    from tandem.config.schema import Config
    from tandem_lab.quality.local import LocalPair

os.environ.setdefault("TANDEM_MODEL", "bundled")  # what the log records was measured with the toys


def new_parser(doc: str | None) -> argparse.ArgumentParser:
    """Options of a benchmark, whose help is its docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, 95th percentile and count."""
    ordered = sorted(values)
    quartiles = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
    return {
        "p50": statistics.median(ordered),
        "p25": quartiles[0],
        "p75": quartiles[2],
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "n": len(ordered),
    }


def bundled_pair(config: Config) -> LocalPair:
    """Both sides in one process, with the bundled model and documents."""
    from tandem.actors.loading import load_engine
    from tandem.codecs import codec_of
    from tandem.plugins.embedders import Embedder
    from tandem.retrieval.retriever import Retriever, build_given_index
    from tandem.topology import PARTIES
    from tandem_lab.quality.local import LocalPair

    engine, embedder = load_engine(config.device, num_threads=1), Embedder.load("offline", num_threads=1)
    retrievers = {party: Retriever.open(build_given_index(party, embedder), embedder) for party in PARTIES}
    return LocalPair(dict.fromkeys(PARTIES, engine), retrievers, codec_of(config.codec))


def axes(num_columns: int, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure with plots side by side; needs the extra [lab]."""
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


def finish(result: dict[str, Any]) -> None:
    """The last line of stdout: one JSON object."""
    print(json.dumps(result | {"environment": describe_environment()}, default=str))
