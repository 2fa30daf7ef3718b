"""The papers of an invented company, for tests: 30 private notes and 100 public pages."""

from __future__ import annotations

from pathlib import Path

PEOPLE = ("Ada", "Bruno", "Chiara", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas")
PROJECTS = ("Lantern", "Harbour", "Quill")
ROOMS = ("Cedar", "Willow", "Maple", "Aspen", "Rowan")
TOPICS = (
    *("travel", "holidays", "equipment", "training", "expenses"),
    *("security", "visitors", "releases", "support", "pay"),
)


def write_notes(folder: Path) -> None:
    """30 notes of one person about meetings, with front matter."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(30):
        person, room, project = PEOPLE[number % 10], ROOMS[number % 5], PROJECTS[number % 3]
        (folder / f"note-{number:02}.md").write_text(
            f"---\nproject: {project}\nweek: {number + 1}\n---\n# Week {number + 1}\n\n"
            f"{person} and I met in the {room} room about {project}. {person} wants the budget raised to "
            f"{20 + 3 * number} thousand and asked me to order {number + 2} new sensors. "
            f"Next meeting in week {number + 2}.\n"
        )


def write_pages(folder: Path) -> None:
    """100 pages of a handbook in HTML: ten rules on each of ten topics."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(100):
        topic, rule = TOPICS[number // 10], number % 10 + 1
        title = f"{topic.capitalize()}, rule {rule}"
        (folder / f"{topic}-{rule:02}.html").write_text(
            f"<html><head><title>{title}</title></head><body><h1>{title}</h1><p>Rule {rule} on {topic}: requests "
            f"of the grade {rule} are decided by {PEOPLE[number % 10]} within {rule + 1} working days. "
            f"The form is {topic[:3].upper()}-{rule:02}.</p></body></html>"
        )
