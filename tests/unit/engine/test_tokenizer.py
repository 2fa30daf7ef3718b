"""Text of tokens, whole and streamed, stop rules; the vocabulary's fingerprint; and that none of it needs torch."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders

from tandem.engine.tokenizer import (
    Detokenizer,
    StopRule,
    TextStream,
    find_eos_token_ids,
    fingerprint_vocabulary,
    vocab_size,
)
from tandem.errors import ClusterError, GenerationError
from tandem.sites.agreement import HANDSHAKE_FIELDS, compare
from tandem.topology import PARTIES

TEXTS = [
    "Mira likes puzzle games, so try Vantelu Cor.",
    "naïve 日本語 😀😀 €5",
    " leading",
    "a  b\n\nc",
    "\ufffd x \ufffd",
]
KINDS = ["byte_level", "metaspace"]


def detokenizer(tokenizers: dict[str, Tokenizer], kind: str) -> Detokenizer:
    return Detokenizer(tokenizers[kind].to_str())


def encode(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> list[int]:
    return list(tokenizers[kind].encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS[:4])
def test_text_comes_back(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    got = detokenizer(tokenizers, kind).text(encode(tokenizers, kind, text))
    assert got.lstrip(" ") == text.lstrip(" ")


def test_prefix_space(tokenizers: dict[str, Tokenizer]) -> None:
    """The first word of an answer: byte-level keeps its space, SentencePiece drops it."""
    byte, meta = (detokenizer(tokenizers, kind) for kind in KINDS)
    assert byte.text(encode(tokenizers, "byte_level", " Mira likes")) == " Mira likes"
    assert meta.text(encode(tokenizers, "metaspace", "Mira likes")) == "Mira likes"


def test_special_tokens_are_left_out(tokenizers: dict[str, Tokenizer]) -> None:
    ids = encode(tokenizers, "byte_level", "Cor")
    assert detokenizer(tokenizers, "byte_level").text([0, *ids, 1]) == "Cor"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_add_up_and_are_never_broken(
    tokenizers: dict[str, Tokenizer], kind: str, text: str
) -> None:
    whole = detokenizer(tokenizers, kind)
    ids = encode(tokenizers, kind, text)
    stream = TextStream(StopRule((1,), (), 1000, whole))
    pieces = [stream.push([token]) for token in ids]
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + stream.finish() == whole.text(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_random_tokens_add_up(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    """Random bytes are rarely UTF-8; pieces still add up to the decoded whole, whatever the grouping."""
    whole = detokenizer(tokenizers, kind)
    for seed in range(60):
        draw = random.Random(seed)
        ids = [draw.randrange(3, tokenizers[kind].get_vocab_size()) for _ in range(30)]
        rule = StopRule((), ("ab", "e"), 1000, whole) if seed % 2 else StopRule((), (), 1000, whole)
        stream, text, fed = TextStream(rule), "", 0
        while fed < len(ids) and rule.find_reason(ids[:fed]) is None:
            count = draw.randint(1, 3)
            text += stream.push(ids[fed : fed + count])
            fed += count
        assert text + stream.finish() == rule.text(ids[:fed])


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_within_a_run_of_bytes_lose_no_text(
    tokenizers: dict[str, Tokenizer], kind: str
) -> None:
    """3,000 random answers of bytes, special tokens, ids without a token and a few words, streamed one by one."""
    tokenizer = tokenizers[kind]
    whole = detokenizer(tokenizers, kind)
    rule = StopRule((), (), 1000, whole)
    vocabulary = tokenizer.get_vocab_size()
    pools = (range(3, 259), range(3), range(259, vocabulary), (vocabulary + 5,))
    for seed in range(3000):
        draw = random.Random(seed)
        ids = [draw.choice(pool) for pool in draw.choices(pools, (12, 4, 2, 1), k=12)]
        stream = TextStream(rule)
        streamed = "".join(stream.push([token]) for token in ids) + stream.finish()
        assert streamed == tokenizer.decode(ids), ids


def test_incomplete_character_is_held_back(tokenizers: dict[str, Tokenizer]) -> None:
    ids = encode(tokenizers, "byte_level", "€")
    assert len(ids) == 3
    stream = TextStream(StopRule((), (), 99, detokenizer(tokenizers, "byte_level")))
    assert [stream.push([token]) for token in ids] == ["", "", "€"]
    stream = TextStream(StopRule((), (), 2, detokenizer(tokenizers, "byte_level")))
    assert stream.push(ids[:2]) == "\ufffd"  # the answer ends here, and says that a character is broken


def test_possible_stop_string_is_held_back(tokenizers: dict[str, Tokenizer]) -> None:
    rule = StopRule((), ("xyz",), 99, detokenizer(tokenizers, "byte_level"))
    stream = TextStream(rule)
    pieces = [stream.push(encode(tokenizers, "byte_level", character)) for character in "axyxyza"]
    assert pieces == ["a", "", "", "xy", "", "", ""]
    stream = TextStream(rule)
    assert [stream.push(encode(tokenizers, "byte_level", character)) for character in "axy"] == ["a", "", ""]
    assert stream.finish() == "xy"


def test_finished_is_a_function_of_the_tokens(tokenizers: dict[str, Tokenizer]) -> None:
    whole = detokenizer(tokenizers, "byte_level")
    ids = encode(tokenizers, "byte_level", "try Vantelu Cor.\n\nQuestion")
    rule = StopRule((1,), ("\n\n",), 64, whole)
    reasons = [rule.find_reason(ids[:count]) for count in range(len(ids) + 1)]
    first = reasons.index("stop")
    assert set(reasons[:first]) == {None}
    assert set(reasons[first:]) == {"stop"}
    assert rule.text(ids) == rule.text(ids[:first]) == "try Vantelu Cor."


def test_eos_length_and_the_text_before_them(tokenizers: dict[str, Tokenizer]) -> None:
    whole = detokenizer(tokenizers, "byte_level")
    ids = encode(tokenizers, "byte_level", "Cor")
    assert StopRule((1, 7), (), 64).find_reason([*ids, 7]) == "eos"
    assert StopRule((1,), (), len(ids) + 1).find_reason([*ids, 1]) == "eos"  # both: the model said so itself
    assert StopRule((1,), (), len(ids)).find_reason(ids) == "length"
    assert StopRule((1,), (), len(ids) + 1).find_reason(ids) is None
    assert StopRule((), (), 0).find_reason([]) == "length"
    plain = encode(tokenizers, "byte_level", "x")[0]  # an end that the tokenizer does not call special
    assert StopRule((plain,), (), 64, whole).text([*ids, plain, *ids]) == "Cor"


def test_wrong_rules_are_one_sentence(tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(GenerationError, match="need a detokenizer to be found in text; pass one"):
        StopRule((1,), ("x",), 4)
    with pytest.raises(GenerationError, match="A stop string is empty; leave it out"):
        StopRule((1,), ("",), 4, detokenizer(tokenizers, "byte_level"))
    with pytest.raises(GenerationError, match="max_new_tokens is -1; set it to at least 0"):
        StopRule((1,), (), -1)
    with pytest.raises(
        GenerationError, match=r"is not the JSON of a fast tokenizer.*use Engine\.tokenizer_json\.$"
    ):
        Detokenizer("{}")


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = (
        "import sys; sys.modules.update(torch=None, transformers=None, ray=None);"
        "import tandem.engine.tokenizer, tandem.engine.prompt, tandem.engine.model, tandem.actors.loading,"
        "tandem.engine.drafter,"
        "tandem.aggregation.document_weights as w; print(w.log_weight([0.0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- vocabulary ----------------------------------------------------------------------------------------------


def test_fingerprint_is_equal_for_two_loads_and_differs_for_others(tokenizers: dict[str, Tokenizer]) -> None:
    one = tokenizers["byte_level"]
    again = Tokenizer.from_str(one.to_str())
    assert fingerprint_vocabulary(one) == fingerprint_vocabulary(again)
    assert len(fingerprint_vocabulary(one)) == 32
    assert fingerprint_vocabulary(one) != fingerprint_vocabulary(tokenizers["metaspace"])


@pytest.mark.parametrize("token", [AddedToken("<x>", special=True), AddedToken("<x>", special=False)])
def test_one_more_token_is_another_vocabulary(tokenizers: dict[str, Tokenizer], token: AddedToken) -> None:
    other = Tokenizer.from_str(tokenizers["byte_level"].to_str())
    other.add_tokens([token])
    assert fingerprint_vocabulary(other) != fingerprint_vocabulary(tokenizers["byte_level"])


def test_special_tokens_count(tokenizers: dict[str, Tokenizer]) -> None:
    plain, special = (Tokenizer.from_str(tokenizers["byte_level"].to_str()) for _ in range(2))
    plain.add_tokens([AddedToken("<x>", special=False)])
    special.add_tokens([AddedToken("<x>", special=True)])
    assert fingerprint_vocabulary(plain) != fingerprint_vocabulary(special)


def test_decoders_count(tokenizers: dict[str, Tokenizer]) -> None:
    """Same vocabulary, same special tokens, other text: the sides would find a stop string at different steps."""
    one, other = (Tokenizer.from_str(tokenizers["metaspace"].to_str()) for _ in range(2))
    other.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert one.get_vocab() == other.get_vocab()
    ids = one.encode("Mira likes", add_special_tokens=False).ids
    assert one.decode(ids) != other.decode(ids)
    described = {
        party: {**dict.fromkeys(HANDSHAKE_FIELDS, "same"), "vocabulary_fingerprint": print_}
        for party, print_ in zip(PARTIES, map(fingerprint_vocabulary, (one, other)), strict=True)
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
    assert fingerprint_vocabulary(one) == fingerprint_vocabulary(other)


def test_size_is_the_tokenizers_and_must_fit_the_model(tokenizers: dict[str, Tokenizer]) -> None:
    assert vocab_size(tokenizers["byte_level"], 320, "m") == 300
    with pytest.raises(
        GenerationError, match=r"of 'm' does not .* ids reach 299 and the model has 299 outputs; use"
    ):
        vocab_size(tokenizers["byte_level"], 299, "m")


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
    assert find_eos_token_ids(generation_config, models, wrapper, 50) == expected
