"""Limits on how the source tree is built. `make structure` prints the figures."""

from __future__ import annotations

from tests import structure


def test_the_product_never_imports_the_laboratory() -> None:
    assert structure.lab_imports() == []
    assert any(each.source.startswith("tandem_lab") for each in structure.imports()), (
        "the reader finds imports"
    )


def test_nothing_imports_in_circles() -> None:
    assert structure.module_circles() == []
    assert structure.package_circles() == []


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert structure.circles(edges) == [["a", "b", "c"]]


def test_packages_import_what_their_layer_allows() -> None:
    assert structure.layer_breaks() == []


def test_every_folder_keeps_to_its_budget() -> None:
    lines = structure.folder_lines()
    assert lines.keys() == structure.BUDGETS.keys()
    assert {folder: number for folder, number in lines.items() if number > structure.BUDGETS[folder]} == {}


def test_no_experiment_reaches_into_the_product() -> None:
    assert structure.experiment_settings() == []
    assert structure.baseline_methods() == []


def test_tests_use_public_names() -> None:
    assert structure.private_accesses() == []
