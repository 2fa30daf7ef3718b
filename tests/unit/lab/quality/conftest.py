"""Small random models that exercise the evaluation without a download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.engine import Engine
from tandem.engine.template import PlainTemplate
from tests.unit.engine.conftest import save_model, tokenizers

__all__ = ["save_model", "tokenizers"]  # fixtures

RAW = PlainTemplate(query_text="{query}")  # a query stands in its row as it is


@pytest.fixture(scope="session")
def load_engine(save_model: Callable[..., Path]) -> Callable[..., Engine]:
    """load_engine(family) -> an engine of a small random model whose queries stand as they are."""
    loaded: dict[Any, Engine] = {}

    def load(family: str = "llama", vocab_size: int = 320) -> Engine:
        key = family, vocab_size
        if key not in loaded:
            path = str(save_model(family, vocab_size))
            loaded[key] = Engine.load(path, template=RAW, num_threads=1)
        return loaded[key]

    return load
