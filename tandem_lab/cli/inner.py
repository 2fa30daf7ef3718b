"""The two processes of a command that measures over a test network: the outer one checks, and starts the inner one."""

from __future__ import annotations

import os

import typer

from tandem.cli.output import StageLog
from tandem_lab.netlab import NetLab, tools


def run_inside(context: typer.Context, log: StageLog) -> int:
    """This command again in the device's host of a network of its own, with `--within NAME`. Raises TandemError."""
    from tandem_lab.netlab.inside import inside
    from tandem_lab.netlab.pcap import check_dpkt

    tools.require()
    check_dpkt()
    for program in ("ping", "taskset", "tcpdump"):
        tools.which(program)
    lab = NetLab(f"bench-{os.getpid()}")
    log(f"network: {lab.name}")
    return inside(lab, [*context.find_root().obj, "--within", lab.name])
