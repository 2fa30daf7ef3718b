"""`tandem config`: the settings in force, as a file to begin with."""

from __future__ import annotations

from argparse import Namespace

from tandem.cli.terminal import settings

HEADER = """\
# Settings of Tandem. What is left out keeps its default.
# Use: tandem ask --config FILE; a file called tandem.toml is used from its own folder without that."""


def run(args: Namespace) -> int:
    """Prints the settings as TOML. Raises ConfigError."""
    print(HEADER, settings(args).to_toml(), sep="\n\n", end="")
    return 0
