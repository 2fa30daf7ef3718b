"""Parts of the experiment on targets that evolve: what an update changes, what it weighs, how claims are judged."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

from tandem.plugins.papers.flexspec.training import Example
from tandem.plugins.papers.flexspec.trunk import head_parameters, make_drafter
from tandem_lab.evolve import updates
from tandem_lab.evolve.study import Row, Size, Study, follow
from tandem_lab.evolve.tables import judgements, plot_updates, text_of
from tandem_lab.evolve.targets import Target, Version, evolve


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(0, Size(), lambda line: None)


@pytest.fixture(scope="module")
def drafter(study: Study) -> Any:
    return make_drafter(study.base, (0,))


@pytest.fixture
def other(study: Study) -> Any:
    """The base, every weight of it changed a little."""
    changed = copy.deepcopy(study.base)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.01)
    return changed


def test_a_drafter_that_is_the_target_always_stands(study: Study) -> None:
    """Along answers that the engine wrote token by token, so both ways to compute agree on every winner."""
    answers = study.write(study.base, "base", "heldout", 5)
    exact, raced = follow(study.base, study.base, answers)
    assert exact.coupled == pytest.approx(1)
    assert raced == 1.0
    exact, raced = follow(make_drafter(study.base, (3,)), study.base, answers)
    assert raced < 0.5  # the answers' noise is shared, the distributions are not


def test_answers_to_learn_from_have_noise_of_their_own(study: Study) -> None:
    """Else a drafter that has learned from them knows the winners of the races that it is measured by."""
    _, raced = follow(study.base, study.base, study.write(study.base, "base", "train", 5))
    assert raced < 1.0


def test_shipped_blocks_are_the_targets_and_the_head_stays(drafter: Any, other: Any) -> None:
    made = dict(updates.ship_blocks(drafter, other, (0,)).named_parameters())
    head = head_parameters(drafter)
    assert all(torch.equal(made[name], value) for name, value in head.items())
    own = dict(other.named_parameters())
    trunk = [name for name in made if ".layers.0." in name]
    assert trunk
    assert all(torch.equal(made[name], own[name]) for name in trunk)


def loss_of(model: Any, examples: Sequence[Example]) -> float:
    """Cross-entropy of their answers, summed."""
    ids, losses = [torch.tensor([each.ids]) for each in examples], 0.0
    for row, example in zip(ids, examples, strict=True):
        labels = row.clone()
        labels[0, : example.start] = -100
        with torch.no_grad():
            losses += float(model(input_ids=row, labels=labels).loss)
    return losses


def test_a_self_taught_head_changes_nothing_else(study: Study, drafter: Any) -> None:
    before = {name: value.clone() for name, value in drafter.named_parameters()}
    examples = study.examples("strong", 3)
    made = updates.teach_itself(drafter, examples, Random(1))
    assert loss_of(made, examples) < loss_of(drafter, examples)
    assert all(torch.equal(before[name], value) for name, value in drafter.named_parameters())
    changed = {name for name, value in made.named_parameters() if not torch.equal(before[name], value)}
    assert changed
    assert changed <= set(head_parameters(drafter))


def test_bytes_of_updates(drafter: Any) -> None:
    target = Target(None, (100, 7, 7, 0))
    num_all = sum(value.numel() for value in drafter.parameters())
    num_head = sum(value.numel() for value in head_parameters(drafter).values())
    sizes = [
        updates.bytes_of(name, drafter, target, (0,))
        for name in ("frozen", "self-taught", "block adapter", "new head", "everything")
    ]
    assert sizes == [0, 0, 200, 2 * num_head, 2 * num_all]
    assert 0 < num_head < num_all


def test_adapters_leave_the_base_and_the_last_block_alone(study: Study) -> None:
    pytest.importorskip("peft", reason="the extra [train] is not installed")
    before = {name: value.clone() for name, value in study.base.named_parameters()}
    target = evolve(study.base, study.tokenizer, Version(name="v", phrase="mild", num_steps=2), 0)
    assert all(torch.equal(before[name], value) for name, value in study.base.named_parameters())
    assert target.block_parameters == (18_944, 18_944, 18_944, 0)
    merged = dict(target.model.named_parameters())
    assert set(merged) == set(before)
    changed = {name for name, value in merged.items() if not torch.equal(before[name], value)}
    assert changed
    assert not [name for name in changed if ".layers.3." in name or ".layers." not in name]


def row(version: str, update: str, coupled: float, seed: int = 0) -> Row:
    return Row(
        seed=seed,
        version=version,
        trunk="first",
        update=update,
        update_bytes=0,
        coupled=coupled,
        rejection=coupled,
        greedy=coupled,
        raced=coupled,
        num_tokens=10,
        token_s=0.05,
    )


def test_claims_hold_for_every_seed_or_not_at_all(tmp_path: Any) -> None:
    rows = [row("base", "frozen", 0.8, seed) for seed in (0, 1)]
    rows += [row("mild LoRA", "frozen", 0.72), row("mild LoRA", "frozen", 0.6, 1)]
    assert judgements(rows) == [
        "mild LoRA: frozen keeps 0.82 (0.75-0.90) of its acceptance; that it keeps 0.80 does not hold."
    ]
    low = [*rows, row("strong LoRA", "frozen", 0.25), row("strong LoRA", "self-taught", 0.35)]
    assert judgements(low)[-1] == (
        "strong LoRA: where frozen is at most 0.25, self-taught reaches 0.35; 0.35 holds."
    )
    assert "0.61" in text_of(low)  # predicted
    plot_updates(low, tmp_path / "updates.png")
    assert (tmp_path / "updates.png").stat().st_size > 1000
