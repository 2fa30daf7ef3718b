"""Limits on how the source tree is built. `make structure` prints the figures."""

from __future__ import annotations

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
