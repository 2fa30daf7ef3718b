"""The papers are plug-ins: nothing of the core imports them, and the wheel holds them."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages

import tandem

PACKAGE = Path(tandem.__file__).parent


def test_only_the_command_that_makes_drafters_imports_them() -> None:
    importing = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "papers" not in path.parts
        and re.search(r"^\s*(from|import) tandem\.papers", path.read_text("utf-8"), re.MULTILINE)
    }
    assert importing == {"cli/draft.py"}


def test_they_are_packages() -> None:
    assert {"tandem.papers", "tandem.papers.flexspec"} <= set(find_packages(PACKAGE.parent))
