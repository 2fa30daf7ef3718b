"""What each part may import, checked in fresh processes.

The pure packages work without Ray; the processes on the path of every token never load torch.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tandem
from tests import structure

ROOT = Path(tandem.__file__).parent

WITH_RAY = {"plugins.ray", "tandem_lab"}
"""Packages that may import Ray; of every other one each module works without it."""
PURE = ("aggregation", "codecs", "engine", "modes", "profiler", "protocol", "retrieval", "scheduler")


SCRIPT = """
import importlib, json, sys
for name in {blocked!r}:
    sys.modules[name] = None
for name in {names!r}:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) & {{"torch", "transformers", "sentence_transformers", "faiss", "ray"}})))
"""


def modules_of(part: str) -> list[str]:
    """Every module of a part of tandem, a package or a single module."""
    path = ROOT.joinpath(*part.split("."))
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    names = [".".join(file.relative_to(ROOT.parent).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith(".__main__")]


def imported(names: list[str], *, blocked: list[str]) -> set[str]:
    """Which heavy packages a fresh process holds after importing some modules."""
    script = SCRIPT.format(names=names, blocked=blocked)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout)) - set(blocked)


def pure_parts() -> list[str]:
    entries = [path for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    return sorted({path.stem for path in entries} - {"__init__"})


def test_every_pure_part_works_without_ray() -> None:
    names = [
        name
        for part in pure_parts()
        for name in modules_of(part)
        if structure.package_of(name) not in WITH_RAY
    ]
    assert {"tandem.aggregation", "tandem.retrieval", "tandem.engine.engine"} <= set(names)
    imported(names, blocked=["ray"])


def test_modules_that_name_ray_are_those_that_may() -> None:
    naming = {
        name
        for name, path in structure.modules().items()
        if re.search(r"^\s*(import|from) ray\b", path.read_text("utf-8"), re.MULTILINE)
    }
    assert {structure.package_of(name) for name in naming} == {"plugins.ray"}


def test_pure_parts_name_no_asyncio_clock_or_global_randomness() -> None:
    forbidden = ("import asyncio", "import time", "from time import", "import random", "from random import")
    for part in PURE:
        for name in modules_of(part):
            path = ROOT.parent.joinpath(*name.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
            assert not [line for line in lines if line.startswith(forbidden)], name


def test_draft_queue_and_aggregator_modules_load_no_torch() -> None:
    pytest.importorskip("tandem.actors")
    names = [f"tandem.actors.{name}" for name in ("base", "draft_queue", "aggregator", "stateless")]
    there = [name for name in names if name in modules_of("actors")]
    assert there
    assert imported(there, blocked=[]) <= {"ray"}


def test_light_imports_stay_light() -> None:
    """Those of the command line, and what the generated pages of the documentation are made from."""
    parts = (
        "cli",
        "cli.options",
        "client.request",
        "codecs.top_p",
        "config",
        "corpora",
        "messages",
        "retrieval",
    )
    assert imported(["tandem", *(f"tandem.{part}" for part in parts)], blocked=[]) == set()
