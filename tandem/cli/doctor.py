"""`tandem doctor`: what this machine has, what it lacks, and what to do about it."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from tandem.cli.checks import all_checks
from tandem.cli.findings import Check
from tandem.cli.terminal import print_json, settings


def run(args: Namespace) -> int:
    """Prints every check; 1 if something essential is missing. Raises ConfigError."""
    checks = all_checks(settings(args))
    is_well = not any(check.status == "missing" for check in checks)
    if args.json:
        print_json({"is_well": is_well, "checks": [asdict(check) for check in checks]})
        return int(not is_well)
    for check in checks:
        print(_line(check))
    print("\nTandem can run here." if is_well else "\nTandem cannot run here yet: see what is missing above.")
    return int(not is_well)


def _line(check: Check) -> str:
    line = f"{check.status:<8} {check.name:<16} {check.found}"
    return f"{line}\n{'':<9}{'':<16} remedy: {check.remedy}" if check.remedy else line
