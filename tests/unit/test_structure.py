"""Limits on how the source tree is built. `make structure` prints the figures."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import tandem
from tandem import errors, events
from tests import structure


def test_the_product_never_imports_the_laboratory() -> None:
    assert structure.lab_imports() == []
    assert any(each.source.startswith("tandem_lab") for each in structure.imports()), (
        "the reader finds imports"
    )


def test_nothing_imports_in_circles() -> None:
    known = [set(each) for each in structure.KNOWN_CIRCLES]
    assert [each for each in structure.module_circles() if not any(set(each) <= of for of in known)] == []
    assert structure.package_circles() == []


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert structure.circles(edges) == [["a", "b", "c"]]


ONE_THING = """
@dataclass
class Record: pass
class Link: pass
class Log: pass
class Session:
    def __init__(self, log: Log, links: Mapping[str, Link], spec: Record, party: str) -> None: pass
"""


def test_no_class_is_several_things() -> None:
    assert structure.classes_of_many_parts() == []
    assert structure.num_parts(ONE_THING, {"Link", "Log"})["Session"] == 2, "a record is a value"


def test_packages_import_what_their_layer_allows() -> None:
    assert structure.layer_breaks() == []


def test_the_core_imports_no_plugin_and_a_plugin_no_other() -> None:
    assert structure.plugin_breaks() == []
    assert any(structure.is_plugin(structure.package_of(name)) for name in structure.modules())


def test_there_is_no_more_than_a_reader_can_hold() -> None:
    figures = structure.figures()
    assert figures.keys() == structure.LIMITS.keys()
    over = {name: number for name, number in figures.items() if number > structure.LIMITS[name]}
    assert over == {}, (
        "beyond LIMITS in tests/structure.py: take something out, or raise it in a commit of its own"
    )


def test_a_limit_rises_in_a_commit_of_its_own() -> None:
    assert [sentence for commit in structure.commits() for sentence in structure.raised_beside(commit)] == []


def test_a_feature_lives_in_few_files() -> None:
    assert structure.wide_features(structure.commits()) == []
    wide = structure.Commit("a1", "Add a thing", tuple(f"tandem/{number}.py" for number in range(6)))
    assert structure.wide_features([wide, wide._replace(subject="Move a thing")]) == [
        "a1 (Add a thing) changes 6 files"
    ]


def test_no_experiment_reaches_into_the_product() -> None:
    assert structure.experiment_settings() == []
    assert structure.baseline_methods() == []


def test_tests_use_public_names() -> None:
    assert structure.private_accesses() == []


def test_every_name_can_be_imported() -> None:
    assert tandem.__all__ == sorted(tandem.__all__)
    for name in tandem.__all__:
        assert getattr(tandem, name) is not None
    assert set(tandem.__all__) <= set(dir(tandem))


def test_every_error_and_every_event_is_public() -> None:
    raised = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    yielded = [kind.__name__ for kind in events.Event.__args__]
    assert set(raised) | set(yielded) <= set(tandem.__all__)


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
