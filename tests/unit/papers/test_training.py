"""The losses are those of the formulas, padding changes nothing, a frozen trunk stays as it is, drafts stand more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from tandem.aggregation.rules import coupled_acceptance
from tandem.errors import GenerationError
from tandem.plugins.papers.flexspec.build import make_drafter, trunk_blocks
from tandem.plugins.papers.flexspec.training import (
    Acceptance,
    Example,
    Loss,
    Schedule,
    acceptance_of,
    collate,
    distil,
    distillation_loss,
    draw_pairs,
    logits_of,
    measure,
    pair_of,
    whole,
)
from tandem.plugins.torch.model import load_model

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
