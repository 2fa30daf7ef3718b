"""The initial heads of the reader: each looks where it should before anything is trained."""

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tandem.corpora import WEIGHTS
from tandem_lab.training.train import OFFSETS, Plan, make_model


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return make_model(Tokenizer.from_file(str(WEIGHTS / "tokenizer.json")), Plan())


def attention(model: LlamaForCausalLM, layer: int, ids: torch.Tensor) -> torch.Tensor:
    """Of each head: [rows, heads, asking, asked]."""
    with torch.inference_mode():
        found = model(ids, output_attentions=True).attentions[layer]
    assert isinstance(found, torch.Tensor)
    return found


def test_heads_of_the_first_layer_look_back_by_position(model: LlamaForCausalLM) -> None:
    ids = torch.randint(5, 1600, (16, 40), generator=torch.Generator().manual_seed(1))
    found = attention(model, 0, ids)
    for head, offset in enumerate(OFFSETS):
        assert torch.stack([found[:, head, place, place - offset] for place in range(8, 40)]).mean() > 0.7


def test_heads_of_the_second_layer_find_where_the_same_tokens_stood(model: LlamaForCausalLM) -> None:
    """A B verb kind ... A B verb: the position of the kind, the tokens before which are these, in this order."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(5, 1600, (32, 60), generator=generator)
    rows[:, 57:60] = rows[:, 20:23]  # the kind then stands at 23
    found = attention(model, 1, rows)
    for head in (0, 1, 2):
        assert found[:, head, -1, 23].mean() > 0.6
    assert found[:, 3, -1, 23].mean() < 0.1


def test_what_followed_is_said_before_anything_is_trained(model: LlamaForCausalLM) -> None:
    rows = torch.randint(5, 1600, (64, 60), generator=torch.Generator().manual_seed(3))
    rows[:, 57:60] = rows[:, 20:23]
    with torch.inference_mode():
        said = model(rows).logits[:, -1].argmax(-1)
    assert (said == rows[:, 23]).float().mean() > 0.8
