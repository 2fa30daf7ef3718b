"""Stories of queries: `transcript` says how they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.protocol.transcript import play, stories

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
STORIES = {
    f"{path.stem}: {title}": story
    for path in FILES
    for title, story in stories(path.read_text("utf-8")).items()
}


@pytest.mark.parametrize("name", STORIES)
def test_what_is_sent_is_what_is_written_down(name: str) -> None:
    assert play(STORIES[name]) == STORIES[name]


if "REWRITE" in os.environ:

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
    def test_rewrite(path: Path) -> None:
        played = [f"== {play(story)}" for story in stories(path.read_text("utf-8")).values()]
        path.write_text("\n\n".join(played) + "\n", "utf-8")
