"""Hypothesis without deadline and with fixed examples."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine must fail no property, and a run must repeat the last one.
settings.register_profile("tandem", deadline=None, derandomize=True)
settings.load_profile("tandem")
