"""Small random models, a scripted retriever and a case that exercise the evaluation without a download."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.engine import Engine
from tandem.engine.template import PlainTemplate
from tandem.topology import Party
from tandem_lab.quality.document_sets import Counts, DocumentSet
from tests.unit.engine.conftest import save_model, tokenizers

__all__ = ["save_model", "tokenizers"]  # fixtures

TEXTS = (
    "Mira likes puzzle games.",
    "The best rated puzzle game is Vantelu Cor.",
    "Question",
    "games of Mira",
    "Answer: Vantelu",
    "rated best",
)
RAW = PlainTemplate(query_text="{query}")  # a query stands in its row as it is


def score(text: str, number: int) -> float:
    """A score that depends on every letter of a text."""
    return ((sum(place * ord(letter) for place, letter in enumerate(text, 1)) * (number + 3)) % 101) / 101


def make_found(is_halved: bool = False, num_device: int = 3) -> DocumentSet:
    """Six documents: the first `num_device` are the device's, or all belong to a corpus that both share."""
    everything = tuple(range(len(TEXTS)))
    ranked = {Party.DEVICE: everything[:num_device], Party.CLOUD: everything[num_device:]}
    if is_halved:
        ranked = {Party.DEVICE: everything, Party.CLOUD: everything}
    return DocumentSet(TEXTS, ranked, is_halved, lambda text: [score(text, number) for number in everything])


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


@pytest.fixture
def counts() -> Sequence[Counts]:
    return [Counts(0, 0), Counts(1, 1), Counts(2, 3), Counts(0, 2), Counts(3, 0)]
