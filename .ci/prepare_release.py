"""Prepares a checkout for its release: checks that version, tag and changelog agree, and writes addresses into it.

    python .ci/prepare_release.py https://github.com/OWNER/tandem v0.2.0

Where the repository lives is known to who releases it, not to the repository: the metadata gets `[project.urls]`, and
the links and pictures of the README, which are relative here, lead to the files of that tag.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = (".png", ".svg")


def prepare(root: Path, address: str, tag: str) -> str:
    """Rewrite pyproject.toml and README.md; returns the release's part of the changelog.

    address: of the repository, without a slash at its end. SystemExit with a sentence where something disagrees.
    """
    version = runpy.run_path(str(root / "tandem" / "system" / "version.py"))["__version__"]
    if tag != f"v{version}":
        sys.exit(
            f"The tag is {tag}, but the version is {version}; change tandem/system/__init__.py, or tag v{version}."
        )
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    closed = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    notes = re.search(closed, changelog, re.MULTILINE | re.DOTALL)
    if notes is None:
        sys.exit(f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`; close it first.")
    project = root / "pyproject.toml"
    project.write_text(project.read_text("utf-8") + urls(address, tag), "utf-8")
    readme = root / "README.md"
    readme.write_text(with_addresses(readme.read_text("utf-8"), address, tag), "utf-8")
    return with_addresses(notes[1].strip(), address, tag) + "\n"


def urls(address: str, tag: str) -> str:
    """The table `[project.urls]`."""
    return f"""
[project.urls]
Repository = "{address}"
Documentation = "{address}/tree/{tag}/docs"
Changelog = "{address}/blob/{tag}/CHANGELOG.md"
Issues = "{address}/issues"
"""


def with_addresses(text: str, address: str, tag: str) -> str:
    """Markdown whose relative links and pictures are those of the repository at that tag."""

    def replace(match: re.Match[str]) -> str:
        path = match[1]
        kind = "raw" if path.endswith(PICTURES) else "blob"
        return f"]({address}/{kind}/{tag}/{path})"

    return re.sub(r"\]\((?!https?://|mailto:|#)([^)\s]+)\)", replace, text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.stdout.write(prepare(ROOT, sys.argv[1].rstrip("/"), sys.argv[2]))
