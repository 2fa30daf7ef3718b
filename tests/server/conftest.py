"""One server for all modules of this folder: the inline runtime with the bundled models, in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

from tandem import Config, Tandem
from tests.server.running import Served, serving


@pytest.fixture(scope="session")
def tandem() -> Iterator[Tandem]:
    with Tandem.launch(Config(), runtime="inline") as launched:
        yield launched


@pytest.fixture(scope="session")
def served(tandem: Tandem) -> Iterator[Served]:
    """Without a key."""
    with serving(tandem) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=180) as client:
        yield client


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[Any]:
    """That of the `openai` package."""
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made
