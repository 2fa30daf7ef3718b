"""What a drafter is built of: copies of the target's blocks, of every family, and what of it may learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.errors import GenerationError
from tandem.plugins.papers.flexspec.trunk import make_drafter, trunk_blocks
from tandem.plugins.torch.model import load_model

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
