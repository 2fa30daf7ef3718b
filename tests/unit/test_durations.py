"""What begins first, and which long tests give no reason (`tests.durations`)."""

from __future__ import annotations

import pytest

from tests.conftest import share_of
from tests.durations import LONG_S, Durations


def report(name: str, seconds: float, *keywords: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(
        name, ("", 0, ""), dict.fromkeys(keywords, 1), "passed", None, when, duration=seconds
    )  # type: ignore[arg-type]


def test_a_long_test_needs_a_reason() -> None:
    seen = Durations(share_of, is_recording=False)
    for each in (
        report("tests/unit/test_a.py::test_short", LONG_S - 1),
        report("tests/unit/test_a.py::test_long", LONG_S + 1),
        report("tests/unit/test_a.py::test_explained", LONG_S + 1, "slow"),
        report("tests/unit/test_a.py::test_of_the_night", LONG_S + 1, "nightly"),
        report("tests/unit/test_b.py::test_starts_a_cluster", LONG_S + 1, when="setup"),
    ):
        seen.pytest_runtest_logreport(each)
    assert list(seen.unexplained) == ["tests/unit/test_a.py::test_long"]
    assert seen.seconds == {"tests/unit/test_a.py": 4 * LONG_S + 2, "tests/unit/test_b.py": LONG_S + 1}


def test_shares_go_to_one_process() -> None:
    assert share_of("tests/cluster/test_golden.py::test_a") == share_of("tests/cluster/test_alone.py::test_b")
    assert share_of("tests/cluster/test_connect.py::test_a") == "tests/cluster commands"
    assert share_of("tests/unit/codecs/test_top_p.py::test_a") == "tests/unit/codecs/test_top_p.py"
