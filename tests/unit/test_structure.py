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


def test_no_class_is_several_things() -> None:
    assert structure.large_classes() == []


ONE_THING = """
@dataclass
class Record: pass
class Link: pass
class Log: pass
class Session:
    def __init__(self, log: Log, links: Mapping[str, Link], spec: Record, party: str) -> None:
        self.log, self.links = log, links
    def act(self, other):
        self.count += 1
        self.log.view = other.view = 1
"""


def test_the_size_of_a_class_is_seen() -> None:
    *_, session = structure.class_figures(ONE_THING, {"Link", "Log"})
    assert session == structure.ClassFigures("Session", num_lines=6, num_attributes=3, num_parts=2)
    assert session.problems == []
    large = session._replace(num_lines=701, num_attributes=13, num_parts=3)
    assert large.problems == [
        "Session: 701 lines",
        "Session: 13 attributes",
        "Session: 3 objects of its package in its constructor",
    ]


def test_packages_import_what_their_layer_allows() -> None:
    assert structure.layer_breaks() == []


def test_the_core_imports_no_plugin_and_a_plugin_no_other() -> None:
    assert structure.plugin_breaks() == []
    assert any(structure.is_plugin(structure.package_of(name)) for name in structure.modules())


def test_features_stay_in_few_files() -> None:
    for feature, most in structure.MAX_FEATURE_FILES.items():
        files = structure.feature_files(feature)
        assert 0 < len(files) <= most, files


def test_every_folder_keeps_to_its_budget() -> None:
    lines = structure.folder_lines()
    assert lines.keys() == structure.BUDGETS.keys()
    over = {folder: number for folder, number in lines.items() if number > structure.BUDGETS[folder]}
    assert over == {}, "beyond BUDGETS in tests/structure.py: take something out, or raise it and say why"


def test_no_experiment_reaches_into_the_product() -> None:
    assert structure.experiment_settings() == []
    assert structure.baseline_methods() == []


def test_tests_use_public_names() -> None:
    assert structure.private_accesses() == []
