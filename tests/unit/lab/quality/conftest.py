"""The tiny models of the engine's tests."""

from __future__ import annotations

from tests.unit.engine.conftest import save_model, tokenizers

__all__ = ["save_model", "tokenizers"]
