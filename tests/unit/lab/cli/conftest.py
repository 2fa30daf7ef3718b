"""Fixtures of the command line's tests."""

from tests.unit.cli.conftest import *  # noqa: F403
