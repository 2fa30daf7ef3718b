"""The bundled drafter: what its training compares, and that the weights that come with Tandem draft for the reader."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from glob import glob
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import tandem
from tandem.actors.loading import load_engine
from tandem.aggregation.distributions import Distribution
from tandem.aggregation.rules import proposal_rule
from tandem.config.schema import Config
from tandem.corpora import DRAFTER, WEIGHTS
from tandem.engine.drafter import mix_rows
from tandem.engine.engine import Engine
from tandem.engine.places import read_card
from tandem.errors import ConfigError
from tandem.plugins.papers.flexspec.build import fingerprints
from tandem.plugins.papers.flexspec.training import distillation_loss, logits_of
from tandem_lab.training import drafter as training
from tandem_lab.training.batches import NOT_COUNTED
from tandem_lab.training.drafter import LESSON, SHARED, draw_pairs, measure_agreement
from tandem_lab.training.train import Plan, Stage, make_model
from tests.laws.proposals import verify

TINY = Plan(hidden=32, num_layers=2, num_heads=4, inner=16, num_threads=1, steps_per_measurement=2)
QUESTION = "Which game should Mira try?"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


@pytest.fixture(scope="module")
def drafter() -> Engine:
    return load_engine(Config.load(None, ["device.model=bundled-drafter"]).device)


@pytest.fixture(scope="module")
def reader() -> Engine:
    return load_engine(Config().cloud)


# ---- training ------------------------------------------------------------------------------------------------


def test_both_see_the_same_answers_and_the_drafter_no_page(tokenizer: Tokenizer) -> None:
    for pair in draw_pairs(Random(1), tokenizer, 1, 8, 4):
        own, read = (batch.labels != NOT_COUNTED for batch in (pair.drafter, pair.reader))
        assert own.sum(1).tolist() == read.sum(1).tolist()
        own, read = (np.roll(counted, 1, axis=1) for counted in (own, read))  # the tokens that are foretold
        assert pair.drafter.ids[own].tolist() == pair.reader.ids[read].tolist()
        for ids in pair.drafter.ids.tolist():
            prompt, _, answer = tokenizer.decode(ids).partition("Answer:")
            title = answer.partition(" try ")[2].partition(".")[0]
            assert title
            assert title not in prompt


def test_a_drafter_that_is_the_reader_loses_nothing(tokenizer: Tokenizer) -> None:
    """On notes, which both see."""
    torch.manual_seed(0)
    model = make_model(tokenizer, TINY)
    pairs = [replace(pair, drafter=pair.reader) for pair in draw_pairs(Random(2), tokenizer, 0, 4, 2)]
    for pair in map(training.sides, pairs):
        logits = (logits_of(model, side) for side in pair)
        assert distillation_loss(*logits).item() == pytest.approx(0, abs=1e-6)
    agreement = measure_agreement(model, model, tokenizer, num_samples=8)
    assert (agreement.note_same_argmax, agreement.note_overlap) == pytest.approx((1, 1))
    assert agreement.bare_overlap < 0.999


def test_a_tiny_run_leaves_what_loads(tmp_path: Path) -> None:
    stage = Stage(LESSON, 2, 2, 1e-3, 1, 0)
    training.train_drafter(tmp_path, stage, TINY)
    log = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert [line.get("step") for line in log] == [None, None, 2]
    assert Engine.load(str(tmp_path), num_threads=1).vocab_size == 1636


# ---- the weights that come with Tandem -----------------------------------------------------------------------


def test_checksum_size_and_precision() -> None:
    weights = (DRAFTER / "model.safetensors").read_bytes()
    digests = json.loads((DRAFTER / "checksum.json").read_text())
    assert digests == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert len(weights) <= 2e6
    assert json.loads((DRAFTER / "config.json").read_text())["dtype"] == "float16"


def test_at_most_a_million_parameters(drafter: Engine) -> None:
    count = sum(weight.numel() for weight in drafter.runner.model.parameters())
    assert count <= 1e6
    assert json.loads((DRAFTER / "training.jsonl").read_text().splitlines()[0])["num_parameters"] == count


def test_one_vocabulary_with_the_reader(drafter: Engine, reader: Engine) -> None:
    assert drafter.vocabulary_fingerprint == reader.vocabulary_fingerprint
    assert drafter.eos_token_ids == reader.eos_token_ids
    assert all((DRAFTER / name).read_bytes() == (WEIGHTS / name).read_bytes() for name in SHARED)


def test_the_log_ends_with_these_weights(drafter: Engine, reader: Engine, tokenizer: Tokenizer) -> None:
    last = json.loads((DRAFTER / "training.jsonl").read_text().splitlines()[-1])
    found = measure_agreement(drafter.runner.model, reader.runner.model, tokenizer)
    assert found.bare_overlap == pytest.approx(last["bare_overlap"], abs=0.01)
    assert found.bare_same_argmax == pytest.approx(last["bare_same_argmax"], abs=0.03)
    assert found.bare_overlap >= 0.94


def answer(engine: Engine, temperature: float, seed: int) -> Iterator[tuple[int, Distribution]]:
    """An answer to QUESTION without documents, token by token."""
    rule, tokens = proposal_rule("coupled", temperature), list[int]()
    engine.close("answer")
    engine.open("answer", QUESTION, [], 24)
    while not tokens or tokens[-1] not in engine.eos_token_ids:
        dense = mix_rows(engine.next_logits("answer", tokens), [0.0], temperature)
        distribution = Distribution(np.arange(dense.size), dense)
        tokens.append(rule.draft(distribution, seed=seed, step=len(tokens)))
        yield tokens[-1], distribution


def test_its_card_names_the_reader_that_is_bundled(reader: Engine) -> None:
    """So that beside any other model of the vocabulary a line says that it was made for another."""
    card = read_card(DRAFTER)
    assert card is not None
    assert card.fingerprints == fingerprints(str(WEIGHTS))
    assert reader.weights_fingerprint in card.fingerprints.values()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_question_gets_the_same_answer(drafter: Engine, temperature: float) -> None:
    tokens = [token for token, _ in answer(drafter, temperature, 3)]
    again = load_engine(Config.load(None, ["device.model=bundled-drafter"]).device)
    assert tokens == [token for token, _ in answer(again, temperature, 3)]
    text = drafter.text(tokens).strip()
    assert text.startswith("Mira likes ")
    assert " games, so try " in text
    assert text.endswith(".")


def test_its_drafts_of_the_phrases_stand(drafter: Engine, reader: Engine) -> None:
    """All but the kind and the title, in blocks that the reader verifies."""
    wanted = list(answer(reader, 1.0, 5))
    tokens, targets = [token for token, _ in wanted], [distribution for _, distribution in wanted]
    rule = proposal_rule("coupled", 1.0)
    drafter.close("draft")
    drafter.open("draft", QUESTION, [], 24)
    for first, last in ((0, 3), (4, 8)):  # " Mi ra likes", then " games, so try" behind the kind
        proposed = list(tokens[:first])
        for step in range(first, last):
            dense = mix_rows(drafter.next_logits("draft", proposed), [0.0], 1.0)
            proposed.append(rule.draft(Distribution(np.arange(dense.size), dense), seed=5, step=step))
        outcome = verify(rule, proposed[first:], targets[first : last + 1], seed=5, step=first)
        assert outcome.num_accepted == last - first


def test_the_wheel_holds_every_file_of_the_bundled_data() -> None:
    """What package-data names, since a wheel holds nothing else besides modules."""
    package = Path(tandem.__file__).parent
    project = package.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("pyproject.toml is not part of this installation")
    named = tomllib.loads(project.read_text("utf-8"))["tool"]["setuptools"]["package-data"]["tandem"]
    held = {package / name for pattern in named for name in glob(pattern, root_dir=package, recursive=True)}
    data = {path for path in (package / "corpora").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert data - held <= {package / "corpora" / "__init__.py"}
    assert {DRAFTER / name for name in (*SHARED, "model.safetensors", "config.json")} <= held


@pytest.mark.parametrize("name", ["bundled-draftr", "bundled_drafter", "bundledd"])
def test_a_wrong_name_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^There is no bundled model '{name}'; did you mean bundled"):
        Config.load(None, [f"device.model={name}"])
    assert Config.load(None, [f"device.model=./{name}"]).device.model.endswith(name)
