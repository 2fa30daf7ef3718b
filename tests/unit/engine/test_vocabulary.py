"""Fingerprint, size and end of a vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tandem.engine import vocabulary
from tandem.errors import GenerationError


def test_fingerprint_is_equal_for_two_loads_and_differs_for_others(tokenizers: dict[str, Tokenizer]) -> None:
    one = tokenizers["byte_level"]
    again = Tokenizer.from_str(one.to_str())
    assert vocabulary.fingerprint(one) == vocabulary.fingerprint(again)
    assert len(vocabulary.fingerprint(one)) == 32
    assert vocabulary.fingerprint(one) != vocabulary.fingerprint(tokenizers["metaspace"])


@pytest.mark.parametrize("token", [AddedToken("<x>", special=True), AddedToken("<x>", special=False)])
def test_one_more_token_is_another_vocabulary(tokenizers: dict[str, Tokenizer], token: AddedToken) -> None:
    other = Tokenizer.from_str(tokenizers["byte_level"].to_str())
    other.add_tokens([token])
    assert vocabulary.fingerprint(other) != vocabulary.fingerprint(tokenizers["byte_level"])


def test_special_tokens_count(tokenizers: dict[str, Tokenizer]) -> None:
    plain, special = (Tokenizer.from_str(tokenizers["byte_level"].to_str()) for _ in range(2))
    plain.add_tokens([AddedToken("<x>", special=False)])
    special.add_tokens([AddedToken("<x>", special=True)])
    assert vocabulary.fingerprint(plain) != vocabulary.fingerprint(special)


def test_size_is_the_tokenizers_and_must_fit_the_model(tokenizers: dict[str, Tokenizer]) -> None:
    assert vocabulary.vocab_size(tokenizers["byte_level"], 320, "m") == 300
    with pytest.raises(GenerationError, match="in 'm' they reach 299 and the model has 299 outputs; use"):
        vocabulary.vocab_size(tokenizers["byte_level"], 299, "m")


@pytest.mark.parametrize(
    ("generation", "derived", "config", "tokenizer", "expected"),
    [
        (None, False, None, None, ()),
        (None, False, 2, None, (2,)),
        (None, False, 2, 5, (5,)),  # a configuration's default does not overrule the tokenizer
        ([7, 3], False, 2, 5, (3, 5, 7)),
        (2, True, 2, 5, (5,)),
        (7, False, 2, None, (7,)),
        ([7, 99], False, None, None, (7,)),  # beyond the vocabulary
        (None, False, [2, 4], None, (2, 4)),
    ],
)
def test_end_of_sequence(generation: Any, derived: bool, config: Any, tokenizer: Any, expected: Any) -> None:
    generation_config = SimpleNamespace(eos_token_id=generation, _from_model_config=derived)
    models = SimpleNamespace(eos_token_id=config)
    wrapper = SimpleNamespace(eos_token_id=tokenizer)
    assert vocabulary.eos_token_ids(generation_config, models, wrapper, 50) == expected
