"""The papers of an invented company, for tests: 30 private notes and 100 public pages, of every kind that is read.

Run it: python -m tests.company NOTES PAGES
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PEOPLE = ("Ada", "Bruno", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas")
PROJECTS = ("Lantern", "Harbour", "Quill")
ROOMS = ("Cedar", "Willow", "Maple", "Aspen", "Rowan")
TOPICS = (
    *("travel", "holidays", "equipment", "training", "expenses"),
    *("security", "visitors", "releases", "support", "pay"),
)


def write_notes(folder: Path) -> None:
    """30 notes of one person about meetings: 24 of Markdown with front matter, 5 of text, and 2 lines of JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(29):
        text = _note(number)
        if number % 6 == 5 or number == 28:
            (folder / f"note-{number:02}.txt").write_text(text)
        else:
            front = f"---\nproject: {PROJECTS[number % 3]}\nweek: {number + 1}\n---\n"
            (folder / f"note-{number:02}.md").write_text(f"{front}# Week {number + 1}\n\n{text}")
    lines = [{"text": _note(number), "project": PROJECTS[number % 3]} for number in (29, 30)]
    (folder / "older.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_pages(folder: Path) -> None:
    """100 pages of a handbook: ten rules on each of ten topics, half of them HTML."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(100):
        topic, rule = TOPICS[number // 10], number % 10 + 1
        text = (
            f"Rule {rule} on {topic}: requests of the grade {rule} are decided by {PEOPLE[number % 10]} "
            f"within {rule + 1} working days. The form is {topic[:3].upper()}-{rule:02}."
        )
        title = f"{topic.capitalize()}, rule {rule}"
        if number % 2:
            page = (
                f"<html><head><title>{title}</title></head><body><h1>{title}</h1><p>{text}</p></body></html>"
            )
            (folder / f"{topic}-{rule:02}.html").write_text(page)
        else:
            (folder / f"{topic}-{rule:02}.md").write_text(f"# {title}\n\n{text}\n")


def _note(number: int) -> str:
    person, room = PEOPLE[number % 10], ROOMS[number % 5]
    return (
        f"{person} and I met in the {room} room about {PROJECTS[number % 3]}. {person} wants the budget raised to "
        f"{20 + 3 * number} thousand and asked me to order {number + 2} new sensors. "
        f"Next meeting in week {number + 2}.\n"
    )


if __name__ == "__main__":
    write_notes(Path(sys.argv[1]))
    write_pages(Path(sys.argv[2]))
