"""The forms that a draft token takes from the logits to the client's event: at most 12, and those that the page names.

Every record of these packages that has a token, or a record with one, is a form, an envelope of one, or something else
that is named here with a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("aggregation", "engine", "actors", "protocol", "messages", "modes", "events")
FORMS = {
    "Logits", "Step", "Vote", "Ballot", "Distribution", "RaceList", "Verification", "RaceResult", "VerifyResult",
    "Verdict", "ProvisionalEvent", "TokenEvent",
}  # fmt: skip
MAX_FORMS = 12
ENVELOPES = {"Local", "LinkFrame", "Send", "ClientEvent"}
"""These hold a form, and add where it goes."""
OTHERS = {
    "Forward": "a step to be computed, after these tokens",
    "DraftPlace": "where a draft is drawn, and another party's that it answers",
    "Segment": "tokens of prompts and answers, as the model gets them",
    "Resync": "the committed tokens, once more",
    "TokenLogprob": "a token that is not drawn, but was likely",
    "Answer": "the whole of it, as the client gives it back",
    "Vocabulary": "all tokens there are",
}
TOKEN_FIELDS = {"token", "tokens", "payload", "payloads", "target", "winner"}


def records(source: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Dataclasses, named tuples and messages of a module: the fields of each, with their annotations."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            marks = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
            if re.search(r"\b(dataclass|NamedTuple|registry)\b", marks):
                fields = (each for each in node.body if isinstance(each, ast.AnnAssign))
                yield node.name, {ast.unparse(each.target): ast.unparse(each.annotation) for each in fields}


def holders(source: str) -> set[str]:
    """Records of a module that have a token, or hold a form."""
    form = re.compile(rf"\b({'|'.join(FORMS)})\b")
    return {
        name
        for name, fields in records(source)
        if TOKEN_FIELDS & fields.keys() or any(map(form.search, fields.values()))
    }


def sources() -> list[str]:
    """The modules of the packages."""
    paths = [ROOT / "tandem" / package for package in PACKAGES]
    files = [
        file
        for path in paths
        for file in (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")])
    ]
    return [file.read_text("utf-8") for file in files]


def test_every_record_with_a_token_is_named() -> None:
    found = set().union(*map(holders, sources()))
    assert found - FORMS - ENVELOPES - OTHERS.keys() == set()
    assert OTHERS.keys() - found == set()
    assert len(FORMS) <= MAX_FORMS


def test_every_form_exists() -> None:
    whole = "\n".join(sources())
    assert set(re.findall(r"^(?:class )?(\w+)(?: = Any$|[:(])", whole, re.MULTILINE)) >= FORMS | ENVELOPES


def test_the_page_names_the_same_forms() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    (table,) = re.findall(r"^\| form \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    named = [
        name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(named) == sorted(FORMS)


def test_a_sixth_form_of_a_vote_is_found() -> None:
    assert holders("@dataclass(frozen=True)\nclass Entry:\n    token: int | None = None\n") == {"Entry"}
    assert holders("class Kept(NamedTuple):\n    vote: tuple[Vote, ...]\n") == {"Kept"}
    assert holders("@registry.message(7)\nclass Said(Message):\n    masses: Float32s\n") == set()
