"""Template: text only, from template.json or the default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.engine.template import Template
from tandem.errors import GenerationError


def test_braces_in_texts_stay() -> None:
    template = Template(document="<{document}>", query="{query}?")
    assert template.document_text("{query} {document} {0}") == "<{query} {document} {0}>"
    assert template.query_text("{document}") == "{document}?"
    assert template.document_start == 1


def test_load_default_and_file(tmp_path: Path) -> None:
    assert Template.load(str(tmp_path)) == Template.load("org/name") == Template()
    (tmp_path / "template.json").write_text(json.dumps({"document": "{document}\n"}))
    assert Template.load(str(tmp_path)) == Template(document="{document}\n")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "must be readable JSON"),
        ('["x"]', "it has list"),
        ('{"documents": "{document}"}', "it has ['documents']"),
        ('{"document": "x"}', "'document' must be a text that holds {document} once, it is 'x'"),
        ('{"query": 3}', "it is 3"),
    ],
)
def test_wrong_files_are_one_sentence(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "template.json").write_text(content)
    with pytest.raises(GenerationError) as raised:
        Template.load(str(tmp_path))
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)
