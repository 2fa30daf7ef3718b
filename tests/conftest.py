"""How a run is divided among processes, and why tests were skipped: one line for each reason.

One process runs what shares clusters, one what starts clusters by commands, one all networks; who is done goes on with
the rest.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from tests import durations
from tests.durations import Durations

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported: the processes of a run fill the cores
os.environ["TANDEM_MODEL"] = "bundled"  # golden answers and most tests are of the toy, whatever is installed
COMMANDS = ("bad_input", "connect", "ten_minutes")
"""Modules of tests/cluster each of whose tests starts a cluster of its own, mostly by a command of Tandem."""
SHARES = ("tests/cluster", "tests/cluster commands", "tests/network", "tests/server", "tests/unit/sites")
"""Each is run by one process, since its modules share what takes seconds to start."""


def share_of(nodeid: str) -> str:
    """What goes to one process together: one of SHARES, or a file."""
    file = nodeid.partition("::")[0]
    folder, _, name = file.rpartition("/")
    if folder == "tests/cluster" and name.removeprefix("test_").removesuffix(".py") in COMMANDS:
        return "tests/cluster commands"
    return folder if folder in SHARES else file


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations", action="store_true", help="note what each share took in tests/durations.json"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # of a job in the background; children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # one process reports
        config.pluginmanager.register(Durations(share_of, config.getoption("record_durations")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: were it the last, the other processes would wait for it."""
    for item in items:
        if share_of(item.nodeid) == "tests/network" or item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.nightly("builds networks, measures times or drives a browser"))
    seconds = durations.read()
    items.sort(key=lambda item: -seconds.get(share_of(item.nodeid), 0.0))
    for item in items:
        for marker in item.iter_markers():
            if marker.name in durations.REASONS and not marker.args:
                raise pytest.UsageError(f"{item.nodeid} is marked {marker.name} without a reason.")


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
