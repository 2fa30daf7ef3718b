"""Drafters of FlexSpec: rows to learn from follow the target's law, training brings the drafter near it, and what is
made loads by the ordinary path and says what it was made for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tandem.actors.loading import load_engine
from tandem.aggregation.rules import coupled_acceptance
from tandem.config.schema import Config
from tandem.engine.engine import Engine
from tandem.engine.places import CARD, describe_card, find_mismatch
from tandem.errors import GenerationError
from tandem.plugins.papers.flexspec.build import Recipe, check_out, make_drafter, train_drafter, trunk_blocks
from tandem.plugins.papers.flexspec.training import (
    Acceptance,
    Example,
    Loss,
    Schedule,
    acceptance_of,
    answer_rows,
    check_rows,
    collate,
    distil,
    distillation_loss,
    draw_answers,
    draw_pairs,
    logits_of,
    measure,
    pair_of,
    text_rows,
    whole,
)
from tandem.plugins.torch.model import load_model

QUESTION, DOCUMENT = "Which game should Mira try?", "Mira likes puzzle games."


@pytest.fixture(scope="module")
def engine(save_model: Callable[..., Path]) -> Engine:
    return Engine.load(str(save_model("llama")), num_threads=1)


def test_texts_are_cut_into_rows_in_which_all_counts(engine: Engine) -> None:
    rows = text_rows(engine, ["Mira likes puzzle games, so try Vantelu Cor. " * 4, "Answer"], 10)
    heads = {own.ids[0] for own, _ in rows}
    assert len(heads) == 1  # beginning-of-sequence
    assert all(own is other and own.start == 1 for own, other in rows)
    text = engine.detokenizer.text([token for own, _ in rows for token in own.ids[1:]])
    assert text == "Mira likes puzzle games, so try Vantelu Cor. " * 4 + "Answer"
    assert max(len(own.ids) for own, _ in rows) == 11


def test_both_see_the_answer_and_the_drafter_half_of_the_documents(engine: Engine) -> None:
    rows = answer_rows(engine, [QUESTION], [DOCUMENT], num_answers=40, max_new_tokens=4, rng=Random(1))
    assert len(rows) == 40
    for own, other in rows:
        assert own.ids[own.start :] == other.ids[other.start :]
        assert DOCUMENT in engine.detokenizer.text(other.ids)
    num_hidden = sum(DOCUMENT not in engine.detokenizer.text(own.ids) for own, _ in rows)
    assert 8 <= num_hidden <= 32  # binomial(40, 1/2): out of this with probability 2e-4, for a fixed seed
    again = answer_rows(engine, [QUESTION], [DOCUMENT], num_answers=40, max_new_tokens=4, rng=Random(1))
    assert rows == again
    assert not engine.runner.sessions


def p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Of a chi-square test; tokens that are expected less than 5 times count as one."""
    expected = law * counts.sum()
    is_common = expected >= 5
    found = [*counts[is_common], counts[~is_common].sum()]
    wanted = [*expected[is_common], expected[~is_common].sum()]
    return float(stats.chisquare(found, wanted).pvalue)


@pytest.mark.nightly("samples many answers")
def test_answers_follow_the_target_at_temperature_1(engine: Engine) -> None:
    """First tokens of 2,000 answers; false alarm 1e-9. The law at temperature 0.8 must be told apart."""
    engine.open("law", QUESTION, [DOCUMENT], 1)
    logits = engine.next_logits("law", [])[0].double()
    engine.close("law")
    answers = draw_answers(engine, [(QUESTION, [DOCUMENT])] * 2000, 1, Random(3))
    counts = np.bincount([tokens[0] for tokens in answers], minlength=len(logits))
    assert p_value(counts, logits.softmax(-1).numpy()) > 1e-9
    assert p_value(counts, (logits / 0.8).softmax(-1).numpy()) < 1e-9


def test_too_little_to_learn_from_is_one_sentence() -> None:
    with pytest.raises(
        GenerationError, match=r"^There are 0 rows to learn from, .*; name more text, or more"
    ):
        check_rows([], 1)


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
        "weights_fingerprint": engine.runner.weights_fingerprint,
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


EXAMPLES = [Example(tuple(Random(n).choices(range(300), k=4 + n % 5)), 1 + n % 3) for n in range(12)]
ROWS = [(example, example) for example in EXAMPLES]


def random_laws(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(40, 0.2), 6)


def test_losses_are_the_divergence_and_the_distance_of_the_target() -> None:
    """KL(p || q), not KL(q || p); TV = 1 - sum min(p, q), not twice that."""
    q, p = random_laws(1) + 1e-9, random_laws(2) + 1e-9
    q, p = q / q.sum(-1, keepdims=True), p / p.sum(-1, keepdims=True)
    student, teacher = (torch.from_numpy(np.log(law)) for law in (q, p))
    kl = (p * np.log(p / q)).sum(-1).mean()
    assert distillation_loss(student, teacher, "kl").item() == pytest.approx(kl, rel=1e-5)
    assert (q * np.log(q / p)).sum(-1).mean() != pytest.approx(kl, rel=0.02)
    tv = 1 - np.minimum(p, q).sum(-1).mean()
    assert distillation_loss(student, teacher, "tv").item() == pytest.approx(tv, rel=1e-5)


def test_acceptance_is_that_of_the_rules() -> None:
    q, p = random_laws(3), random_laws(4)
    expected = np.mean([coupled_acceptance(whole(a), whole(b)) for a, b in zip(q, p, strict=True)])
    found = acceptance_of(q, p)
    assert found.coupled == pytest.approx(expected, abs=1e-12)
    assert found.rejection == pytest.approx(np.minimum(q, p).sum(-1).mean(), abs=1e-12)
    assert found.greedy == np.mean(q.argmax(-1) == p.argmax(-1))
    assert acceptance_of(p, p) == Acceptance(pytest.approx(1), pytest.approx(1), 1.0, 6)


def test_company_in_a_batch_changes_no_logits(save_model: Callable[..., Path]) -> None:
    model = load_model(str(save_model("llama")), device="cpu", dtype="float32")
    with torch.inference_mode():
        together = logits_of(model, collate(EXAMPLES))
        alone = torch.cat([logits_of(model, collate([example])) for example in EXAMPLES])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert len(alone) == sum(len(example.ids) - example.start for example in EXAMPLES)


@pytest.mark.parametrize("loss", ["kl", "tv"])
def test_a_drafter_learns_and_its_trunk_stays(loss: Loss, save_model: Callable[..., Path]) -> None:
    target = load_model(str(save_model("llama")), device="cpu", dtype="float32")
    torch.manual_seed(0)
    drafter = make_drafter(target, (0,))
    pair = pair_of(ROWS)
    frozen = {name: value.clone() for name, value in drafter.named_parameters() if not value.requires_grad}
    head = {name: value.clone() for name, value in drafter.named_parameters() if value.requires_grad}
    own = {name: value.clone() for name, value in target.named_parameters()}
    before = measure(drafter, target, [pair])
    losses: list[float] = []
    schedule = Schedule(num_steps=40, peak_rate=5e-3, num_warmup_steps=2, loss=loss)
    distil(drafter, target, draw_pairs(Random(1), ROWS, 4), schedule, lambda _, value: losses.append(value))
    after = measure(drafter, target, [pair])
    assert len(losses) == 40
    assert after.coupled > before.coupled + 0.1
    assert after.rejection > before.rejection + 0.1
    named = dict(drafter.named_parameters())
    assert all(torch.equal(named[name], value) for name, value in frozen.items())
    assert not [name for name, value in head.items() if torch.equal(named[name], value) and value.ndim > 1]
    assert all(torch.equal(value, own[name]) for name, value in target.named_parameters())


# ---- what a drafter is built of: copies of the target's blocks, of every family, and what of it may learn ----


IDS = torch.tensor([[5, 9, 14, 200, 3, 77]])
FAMILIES = ("llama", "llama-grouped", "qwen2", "qwen2-sliding", "phi", "gpt-neox", "opt")


def load(path: Path) -> Any:
    return load_model(str(path), device="cpu", dtype="float32")


def test_blocks_of_each_trunk() -> None:
    assert [trunk_blocks(trunk, 4) for trunk in ("first", "last", "first+last", "2", "4")] == [
        (0,),
        (3,),
        (0, 3),
        (0, 1),
        (0, 1, 2, 3),
    ]
    assert trunk_blocks("first+last", 1) == (0,)


@pytest.mark.parametrize("trunk", ["0", "5", "middle", "-1", ""])
def test_a_wrong_trunk_is_one_sentence(trunk: str) -> None:
    with pytest.raises(
        GenerationError,
        match=rf"^A trunk is one of .*, or a number of blocks from 1 to the target's 4 \(got '{trunk}'\); .*\.$",
    ):
        trunk_blocks(trunk, 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_all_blocks_it_is_the_target(family: str, save_model: Callable[..., Path]) -> None:
    """Two blocks as trunk and a head that has not learned yet: the target's three blocks, norm and projection."""
    target = load(save_model(family))
    drafter = make_drafter(target, (0, 1))
    with torch.inference_mode():
        torch.testing.assert_close(drafter(IDS).logits, target(IDS).logits, rtol=1e-5, atol=1e-5)
        other = make_drafter(target, (1, 0))(IDS).logits
    assert (other - target(IDS).logits).abs().max() > 1e-3  # the order of blocks matters
