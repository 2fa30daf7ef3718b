"""`tandem config`: the settings in force, as a file to begin with."""

from __future__ import annotations

from tandem.cli.options import SettingsOptions, with_options
from tandem.cli.output import emit

HEADER = """\
# Settings of Tandem. What is left out keeps its default.
# Use: tandem ask --config FILE; a file called tandem.toml is used from its own folder without that."""


@with_options()
def config(settings: SettingsOptions) -> int:
    """Print the settings as TOML, each with its meaning."""
    emit(HEADER, settings.load().to_toml(), sep="\n\n", end="")
    return 0
