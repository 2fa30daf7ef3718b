"""`tandem model profile` on the bundled model, a few tokens long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.engine.engine import Engine

from .conftest import Run

SHORT = ["--limit", "48", "--runs", "1", "--set", "device.num_documents=2"]


@pytest.fixture
def cache(folders: Path) -> Path:
    return folders / "cache"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were loaded."""
    loaded: list[str] = []
    load = Engine.load

    def recorded(model: str, **options: Any) -> Engine:
        loaded.append(model)
        return load(model, **options)

    monkeypatch.setattr(Engine, "load", recorded)
    return loaded


def test_a_line_and_where_it_is_kept(cache: Path, loads: list[str], run: Run) -> None:
    shown = run("model", "profile", "device", *SHORT, code=0)
    first, fit, what, *_, where = shown.out.splitlines()
    assert first.startswith("device   ")
    assert "ms per token after a prompt of" in first
    assert first.endswith("ms per 1000 more")
    assert fit.endswith("tokens x 1 run")
    assert "bundled, 2 rows, cpu, float32, 1 thread, " in what
    (file,) = (cache / "tandem" / "profiles").iterdir()
    assert where.strip() == f"kept in {file}"
    shown = run("model", "profile", "device", *SHORT, code=0)
    assert shown.out.splitlines()[:3] == [first, fit, what]
    assert f"cached in {file}; measure again with --force" in shown.out
    assert len(loads) == 1


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--set", "device.model=/no/such/model"], 1, "'/no/such/model' is neither"),
        ([*SHORT, "--limit", "3"], 1, "raise the limit"),
        (["--runs", "0"], 2, "--runs must be greater than or equal to 1; see "),
    ],
)
def test_wrong_models_and_limits_are_one_sentence(
    options: list[str], code: int, sentence: str, run: Run
) -> None:
    assert sentence in run("model", "profile", "device", *options, code=code).err
