"""Fingerprint, size and end of a vocabulary."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders

from tandem.client import HANDSHAKE_FIELDS, compare
from tandem.engine import vocabulary
from tandem.errors import ClusterError, GenerationError
from tandem.topology import PARTIES


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


def test_decoders_count(tokenizers: dict[str, Tokenizer]) -> None:
    """Same vocabulary, same special tokens, other text: the sides would find a stop string at different steps."""
    one, other = (Tokenizer.from_str(tokenizers["metaspace"].to_str()) for _ in range(2))
    other.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert one.get_vocab() == other.get_vocab()
    ids = one.encode("Mira likes", add_special_tokens=False).ids
    assert one.decode(ids) != other.decode(ids)
    described = {
        party: {**dict.fromkeys(HANDSHAKE_FIELDS, "same"), "vocabulary_fingerprint": print_}
        for party, print_ in zip(PARTIES, map(vocabulary.fingerprint, (one, other)), strict=True)
    }
    with pytest.raises(ClusterError, match=r"same vocabulary, .*; use models that share a tokenizer\.$"):
        compare(described)


def test_options_of_encoding_do_not_count(tokenizers: dict[str, Tokenizer]) -> None:
    """Tokenizers of one family differ in them, and they change no text."""
    one = tokenizers["byte_level"]
    content = json.loads(one.to_str())
    content["decoder"] |= {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    other = Tokenizer.from_str(json.dumps(content))
    assert one.to_str() != other.to_str()
    ids = one.encode(" Mira likes", add_special_tokens=False).ids
    assert one.decode(ids) == other.decode(ids)
    assert vocabulary.fingerprint(one) == vocabulary.fingerprint(other)


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
