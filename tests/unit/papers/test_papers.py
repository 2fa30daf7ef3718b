"""The wheel holds the papers."""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages

import tandem

PACKAGE = Path(tandem.__file__).parent


def test_they_are_packages() -> None:
    assert {"tandem.plugins.papers", "tandem.plugins.papers.flexspec"} <= set(find_packages(PACKAGE.parent))
