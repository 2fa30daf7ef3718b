"""Where a figure was measured: commit, versions and hardware, for results."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("tandem-rag", "ray", "torch", "transformers", "sentence-transformers", "faiss-cpu", "numpy")


def describe_environment() -> dict[str, Any]:
    """Plain values; what cannot be found out is "unknown"."""
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "cpu": _cpu(),
        "num_cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _commit() -> str:
    root = Path(__file__).parent.parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
