"""Errors of the laboratory, beside those of the product."""

from __future__ import annotations

from tandem.errors import TandemError


class NetLabError(TandemError):
    """The test network cannot be built, changed or removed, or a trace for it cannot be read."""


class EvaluationError(TandemError):
    """Questions or a text cannot be used for an evaluation."""
