"""What benchmarks share: the environment of a figure, summaries, the JSON line at the end."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.config import Config
    from tandem.lab.quality.local import LocalPair

PACKAGES = ("tandem-rag", "ray", "torch", "transformers", "sentence-transformers", "faiss-cpu", "numpy")


def environment() -> dict[str, Any]:
    """Commit, versions and hardware."""
    root = Path(__file__).parent.parent
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "cpu": _cpu(),
        "num_cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


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
    from tandem.codecs import codec_of
    from tandem.lab.quality.local import LocalPair
    from tandem.loading import load_engine
    from tandem.retrieval.embedding import Embedder
    from tandem.retrieval.factory import build_bundled_index
    from tandem.retrieval.retriever import Retriever
    from tandem.topology import PARTIES

    engine, embedder = load_engine(config.device, num_threads=1), Embedder.load("offline", num_threads=1)
    retrievers = {party: Retriever.open(build_bundled_index(party, embedder), embedder) for party in PARTIES}
    return LocalPair(dict.fromkeys(PARTIES, engine), retrievers, codec_of(config.codec))


def finish(result: dict[str, Any]) -> None:
    """The last line of stdout: one JSON object."""
    print(json.dumps(result | {"environment": environment()}, default=str))


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
