"""The ways of working together. `reference` says what an answer is; then one file explains one mode completely."""

from __future__ import annotations

from tandem.modes.dual import Dual
from tandem.modes.federated import Federated
from tandem.modes.mode import Mode
from tandem.modes.query import QuerySpec
from tandem.modes.solo import Solo
from tandem.modes.speculative import Speculative

MODES: dict[str, type[Mode]] = {mode.name: mode for mode in (Dual, Speculative, Federated)}
"""Modes of several parties, by name. One party alone is `Solo`, whatever the mode."""


def rules_of(spec: QuerySpec) -> Mode:
    """The rules of a query. Raises ConfigError if its mode does not allow these parties."""
    mode = MODES[spec.decoding.mode]
    if spec.only is not None:
        return Solo(spec, votes_are_tokens=mode.votes_are_tokens)
    return mode(spec)
