"""`tandem config`: the settings in force, as a file to begin with."""

from __future__ import annotations

from argparse import Namespace

from tandem.cli.terminal import settings

HEADER = "# Settings of Tandem; what is left out keeps its default. Use: tandem ask --config FILE, or call it tandem.toml."


def run(args: Namespace) -> int:
    """Prints the settings as TOML. Raises ConfigError."""
    print(HEADER, settings(args).to_toml(), sep="\n\n", end="")
    return 0
