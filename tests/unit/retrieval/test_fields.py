"""Metadata that files bring along: front matter of Markdown, fields of JSON lines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tandem.retrieval.documents import Document
from tandem.retrieval.readers import READERS
from tandem.system.file_kinds import FILE_KINDS, as_markdown, as_text


def read(path: Path, data: str) -> tuple[list[Document], list[str]]:
    path.write_text(data)
    problems: list[str] = []
    return list(READERS[path.suffix](path, path.name, problems)), problems


def test_front_matter_is_metadata_and_not_text(tmp_path: Path) -> None:
    page = "---\ntitle: Plan\nday: 2024-05-06\ntags: [a, b]\nsource: x\ndone: true\nby:\n---\n# Heading\n\nText.\n"
    documents, problems = read(tmp_path / "a.md", page)
    assert [document.page_content for document in documents] == ["# Heading\n\nText.\n"]
    assert documents[0].metadata == {
        "title": "Plan",
        "day": "2024-05-06",
        "tags": ["a", "b"],
        "given_source": "x",
        "done": True,
        "source": "a.md",
    }
    assert problems == []


def test_fields_that_are_not_plain_are_named(tmp_path: Path) -> None:
    documents, problems = read(tmp_path / "a.md", "---\nwho: {name: Mira}\nyear: 2024\n---\nText.")
    assert documents[0].metadata == {"year": 2024, "source": "a.md"}
    assert problems == [
        "a.md: the field who was ignored: its value is no text, number, truth value, date or list of these; "
        "flatten what should be metadata."
    ]


@pytest.mark.parametrize(
    "text",
    [
        "---\nJust a line.\n---\nMore.",
        "Text\n---\na: b\n---\n",
        "---\nno end: here\n",
        "--- \n- a\n---\nlist",
    ],
)
def test_lines_across_the_page_are_no_front_matter(tmp_path: Path, text: str) -> None:
    documents, problems = read(tmp_path / "a.md", text)
    assert [document.page_content for document in documents] == [text]
    assert (documents[0].metadata, problems) == ({"source": "a.md"}, [])


@pytest.mark.parametrize(
    ("matter", "flaw"),
    [
        ("a: [1\n", r".*expected ',' or '\]'.* in line 3"),
        ("day: 2024-13-45\n", r"month must be in 1\.\.12.*"),
    ],
)
def test_front_matter_that_is_not_yaml(tmp_path: Path, matter: str, flaw: str) -> None:
    text = f"---\n{matter}---\nText."
    documents, problems = read(tmp_path / "a.md", text)
    assert documents[0].page_content == text
    (problem,) = problems
    sentence = rf"a\.md: its front matter was read as text: it is not valid YAML \({flaw}\); repair it\."
    assert re.fullmatch(sentence, problem)


def test_front_matter_alone(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="it holds no text"):
        read(tmp_path / "a.md", "---\ntitle: Plan\n---\n")


def test_other_fields_of_a_line_are_metadata(tmp_path: Path) -> None:
    lines = [
        {"text": "One.", "year": 2024, "tags": ["a"], "who": {"name": "Mira"}, "metadata": {"lang": "en"}},
        {"text": "Two.", "year": 1999, "metadata": {"year": 2000}, "none": None, "who": [{}]},
    ]
    documents, problems = read(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert [document.metadata for document in documents] == [
        {"year": 2024, "tags": ["a"], "lang": "en", "source": "a.jsonl", "line": 1},
        {"year": 2000, "source": "a.jsonl", "line": 2},
    ]
    assert problems == [
        "a.jsonl: the field who was ignored: its value is no text, number, truth value, date or list of these; "
        "flatten what should be metadata."
    ]


def test_the_table_of_kinds_names_every_ending_that_is_read() -> None:
    listed = [ending for kind in FILE_KINDS for ending in kind.endings]
    assert sorted(listed) == sorted(READERS)
    for shown in (as_markdown(), as_text()):
        assert all(ending in shown for ending in READERS)
        assert all(kind.metadata.split(",")[0] in shown.replace("`", "") for kind in FILE_KINDS)
