"""Unit tests start no Ray."""

from __future__ import annotations

from typing import NoReturn

import pytest


def _refuse(*_args: object, **_options: object) -> NoReturn:
    raise AssertionError(
        "a unit test must not start Ray; give the code a fake port, or move it to tests/cluster"
    )


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `ray.init` an error."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", _refuse)
