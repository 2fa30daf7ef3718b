"""Fixtures of the engine's tests."""

from tests.unit.engine.conftest import save_model, tokenizers

__all__ = ["save_model", "tokenizers"]  # fixtures
