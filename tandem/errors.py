"""Errors that a user can cause. Each message is one sentence with the problem, the value seen and the remedy."""

from __future__ import annotations


class TandemError(Exception):
    """Base of everything that Tandem raises on purpose; its text can be shown to a user as it is."""


class ConfigError(TandemError):
    """A setting is unknown, of the wrong type or out of range."""


class RetrievalError(TandemError):
    """A corpus or an index cannot be read, built or used."""


class GenerationError(TandemError):
    """A model or tokenizer cannot be loaded, or a prompt does not fit."""


class ProtocolError(TandemError):
    """A frame or a handshake breaks the protocol."""


class ClusterError(TandemError):
    """Nodes or actors cannot be started, found or reached."""


class CallError(ClusterError):
    """A call to an actor did not come back: its process has ended, or it failed on what no user can cause."""


class FilterError(RetrievalError):
    """A filter names metadata that no document has."""


class QueryError(TandemError):
    """A query cannot be answered as asked (bad argument, peer lost, cancelled)."""


class NetLabError(TandemError):
    """The test network cannot be built, changed or removed, or a trace for it cannot be read."""


class EvaluationError(TandemError):
    """Questions or a text cannot be used for an evaluation."""
