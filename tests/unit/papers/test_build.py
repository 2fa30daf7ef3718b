"""A drafter's folder: loads by the ordinary path, says what it was made for, and follows from its seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.actors.loading import load_engine
from tandem.config.schema import Config
from tandem.engine.engine import Engine
from tandem.engine.places import CARD, describe_card, find_mismatch
from tandem.errors import GenerationError
from tandem.plugins.papers.flexspec.build import Recipe, check_out, train_drafter

TEXTS = [
    "Mira likes puzzle games, so try Vantelu Cor. " * 6,
    "The best rated puzzle game is Vantelu Cor. " * 6,
]
RECIPE = Recipe(num_steps=4, rows_per_batch=4, max_tokens=8)


@pytest.fixture(scope="module")
def target(save_model: Callable[..., Path]) -> str:
    return str(save_model("llama"))


@pytest.fixture(scope="module")
def made(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "drafter"
    train_drafter(target, out, texts=TEXTS, recipe=RECIPE)
    return out


def described(model: str, engine: Engine) -> dict[str, object]:
    """As a decoder reports it."""
    return {
        "model": model,
        "weights_fingerprint": engine.weights_fingerprint,
        "drafter_for": describe_card(model),
    }


def test_a_party_loads_it(made: Path, target: str) -> None:
    engine = load_engine(Config.load(None, [f"device.model={made}"]).device)
    other = Engine.load(target)
    assert engine.vocabulary_fingerprint == other.vocabulary_fingerprint
    assert engine.eos_token_ids == other.eos_token_ids
    assert engine.runner.model.config.num_hidden_layers == 2
    assert engine.template == other.template
    log = json.loads((made / "training.jsonl").read_text())
    assert len(log["losses"]) == 4


def test_it_says_what_it_was_made_for(made: Path, target: str) -> None:
    card = json.loads((made / CARD).read_text())
    assert [card[key] for key in ("target", "trunk", "blocks", "loss")] == [target, "first", [0], "kl"]
    assert 0 < card["acceptance"]["coupled"] <= 1
    for dtype in ("float32", "bfloat16"):
        cloud = Engine.load(target, dtype=dtype)
        assert find_mismatch(described(str(made), cloud), described(target, cloud)) is None


def test_another_target_is_warned_about(made: Path, save_model: Callable[..., Path]) -> None:
    other = str(save_model("llama-grouped"))
    cloud = Engine.load(other)
    sentence = find_mismatch(described(str(made), cloud), described(other, cloud))
    assert sentence is not None
    assert sentence.startswith(f"The drafter {str(made)!r} was made for ")
    assert "answers are exact" in sentence
    assert find_mismatch(described(other, cloud), described(other, cloud)) is None  # no drafter's folder
    assert find_mismatch(described(str(made), cloud), {"model": other}) is None  # nothing known


def test_a_damaged_card_is_no_obstacle(tmp_path: Path) -> None:
    assert describe_card(tmp_path) == {}
    for text in ("{", "[]", '{"target": 1}'):
        (tmp_path / CARD).write_text(text)
        assert describe_card(tmp_path) == {}


def test_no_drafter_overwrites_its_target(made: Path, tmp_path: Path) -> None:
    """Not even one that is a drafter itself, by another name, or an adapter, which has no model of its own."""
    (link := tmp_path / "link").symlink_to(made)
    with pytest.raises(GenerationError, match="which is its target's folder"):
        check_out(link, str(made))
    (adapter := tmp_path / "adapter").mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(GenerationError, match="holds a model that is no drafter"):
        check_out(adapter, "bundled")
