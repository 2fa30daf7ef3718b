"""A head that teaches itself: it learns what was committed, its trunk stays, and it goes on after a restart."""

from __future__ import annotations

import copy
import stat
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.distillation.self_taught import SelfTaughtHead
from tandem.distillation.training import Example
from tandem.errors import GenerationError

ANSWER = Example((5, 9, 2, 7, 11, 3), 2)


@pytest.fixture
def drafter() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            tie_word_embeddings=False,
        )
    ).eval()


def loss_of(model: Any) -> float:
    ids = torch.tensor([ANSWER.ids])
    labels = ids.clone()
    labels[0, : ANSWER.start] = -100
    with torch.no_grad():
        return float(model(input_ids=ids, labels=labels).loss)


def taught(drafter: Any, num_answers: int = 10) -> SelfTaughtHead:
    head = SelfTaughtHead(copy.deepcopy(drafter), Random(1))
    for _ in range(num_answers):
        head.learn(ANSWER)
    return head


def test_it_learns_and_its_trunk_stays(drafter: Any) -> None:
    head = taught(drafter)
    assert loss_of(head.drafter) < loss_of(drafter) - 0.3
    before = dict(drafter.named_parameters())
    changed = {
        name for name, value in head.drafter.named_parameters() if not torch.equal(value, before[name])
    }
    assert changed == set(head.weights)
    assert not any("embed_tokens" in name or "layers.0." in name for name in changed)


def test_it_goes_on_from_what_was_written(drafter: Any, tmp_path: Path) -> None:
    head, path = taught(drafter), tmp_path / "learned" / "head.safetensors"
    head.save(path)
    head.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    again = SelfTaughtHead(copy.deepcopy(drafter), Random(1))
    again.load(path)
    assert loss_of(again.drafter) == loss_of(head.drafter)


@pytest.mark.parametrize(
    "content", [b"", b"nothing of the kind", None], ids=["empty", "damaged", "another's"]
)
def test_what_cannot_be_used_is_one_sentence(drafter: Any, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "head.safetensors"
    if content is None:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            tie_word_embeddings=False,
        )
        SelfTaughtHead(LlamaForCausalLM(config), Random(1)).save(path)
    else:
        path.write_bytes(content)
    with pytest.raises(
        GenerationError, match=r"had learned cannot be used \(.*\); delete .* to begin again\.$"
    ):
        SelfTaughtHead(drafter, Random(1)).load(path)
