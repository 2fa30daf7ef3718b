"""`tandem config`: the settings in force, as a file to begin with."""

from __future__ import annotations

from tandem.cli.options import ConfigFile, Overrides, load_settings
from tandem.cli.output import emit

HEADER = """\
# Settings of Tandem. What is left out keeps its default.
# Use: tandem ask --config FILE; a file called tandem.toml is used from its own folder without that."""


def config(config_file: ConfigFile = None, overrides: Overrides = None) -> int:
    """Print the settings as TOML, each with its meaning."""
    emit(HEADER, load_settings(config_file, overrides).to_toml(), sep="\n\n", end="")
    return 0
