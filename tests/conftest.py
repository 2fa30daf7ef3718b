"""How a run is divided among processes, and why tests were skipped: one line for each reason.

One process runs what shares clusters, one what starts clusters by commands, one all networks; who is done goes on with
the rest.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported: the processes of a run fill the cores
os.environ["TANDEM_MODEL"] = "bundled"  # golden answers and most tests are of the toy, whatever is installed
COMMANDS = ("bad_input", "connect", "extensions", "ten_minutes")
"""Modules of tests/cluster each of whose tests starts a cluster of its own, mostly by a command of Tandem."""
SHARES = ("tests/cluster", "tests/cluster commands", "tests/network", "tests/server")
"""Each is run by one process."""
LONG = (
    *SHARES[:3],
    "tests/unit/lab/simulation/test_fuzz.py",
    "tests/unit/lab/simulation/test_mutants.py",
    "tests/unit/lab/simulation/test_equality.py",
    "tests/unit/lab/simulation/test_chain.py",
    "tests/unit/lab/test_reliability.py",
    "tests/unit/sites/test_joined.py",
    "tests/unit/sites/test_answers.py",
    "tests/unit/test_benchmarks.py",
    "tests/unit/test_docs.py",
    "tests/server",  # last, since nodes that are starting give up where they have to wait for the processor
)
"""What begins first, since it takes half a minute or more: were it the last, the other processes would wait for it."""


def share_of(nodeid: str) -> str:
    """What goes to one process together: one of SHARES, or a file."""
    file = nodeid.partition("::")[0]
    folder, _, name = file.rpartition("/")
    if folder == "tests/cluster" and name.removeprefix("test_").removesuffix(".py") in COMMANDS:
        return "tests/cluster commands"
    return folder if folder in SHARES else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first."""
    order = {share: number for number, share in enumerate(LONG)}
    items.sort(key=lambda item: order.get(share_of(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Divides by `share_of`, in the order of the collection."""
    from xdist.scheduler import LoadFileScheduling

    class ShareScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return ShareScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ").replace("\n", " ")
