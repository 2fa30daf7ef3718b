"""What the site does to a page before it is rendered; mkdocs.yml names this file."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Keeps the text of links to files outside docs/, such as pyproject.toml, which the site does not hold."""
    folder = posixpath.dirname(page.file.src_uri)

    def rewrite(link: re.Match[str]) -> str:
        leaves_docs = posixpath.normpath(posixpath.join(folder, link[2])).startswith("../")
        return link[1] if leaves_docs and "://" not in link[2] else link[0]

    return LINK.sub(rewrite, markdown)
