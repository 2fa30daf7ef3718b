"""A tokenizer seen from a model: vocabulary, text as it grows, when an answer ends."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tandem.config.schema import SamplingParams
from tandem.engine import tokenizer
from tandem.engine.tokenizer import (
    Detokenizer,
    StopRule,
    TextStream,
    TokenizerInfo,
    Vocabulary,
    find_eos_token_ids,
    is_loop,
)
from tandem.errors import GenerationError
from tests.unit.engine.builders import byte_level

TEXTS = [
    "Mira likes puzzle games, so try Vantelu Cor.",
    "naïve 日本語 😀😀 €5",
    " leading",
    "a  b\n\nc",
    "\ufffd x \ufffd",
]


@pytest.fixture(params=["byte_level", "metaspace"])
def backend(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers[request.param]


@pytest.fixture
def whole(backend: Tokenizer) -> Detokenizer:
    return Detokenizer(backend.to_str())


def encode(backend: Tokenizer, text: str) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_add_up_to_the_text_and_are_never_broken(
    backend: Tokenizer, whole: Detokenizer, text: str
) -> None:
    ids = encode(backend, text)
    stream = TextStream(StopRule((1,), (), 1000, whole))
    pieces = [stream.push([token]) for token in ids]
    if "\ufffd" not in text:
        assert "\ufffd" not in "".join(pieces)
    streamed = "".join(pieces) + stream.finish()
    assert streamed == whole.text(ids)
    assert streamed.lstrip(" ") == text.lstrip(" ")


def test_streams_of_random_tokens_add_up(backend: Tokenizer, whole: Detokenizer) -> None:
    """Random bytes are rarely UTF-8; pieces still add up to the decoded whole, whatever the grouping."""
    for seed in range(60):
        draw = random.Random(seed)
        ids = [draw.randrange(3, backend.get_vocab_size()) for _ in range(30)]
        rule = StopRule((), ("ab", "e"), 1000, whole) if seed % 2 else StopRule((), (), 1000, whole)
        stream, text, fed = TextStream(rule), "", 0
        while fed < len(ids) and rule.find_reason(ids[:fed]) is None:
            count = draw.randint(1, 3)
            text += stream.push(ids[fed : fed + count])
            fed += count
        assert text + stream.finish() == rule.text(ids[:fed])


def test_special_tokens_within_a_run_of_bytes_lose_no_text(backend: Tokenizer, whole: Detokenizer) -> None:
    """3,000 random answers of bytes, special tokens, ids without a token and a few words, streamed one by one."""
    rule = StopRule((), (), 1000, whole)
    vocabulary = backend.get_vocab_size()
    pools = (range(3, 259), range(3), range(259, vocabulary), (vocabulary + 5,))
    for seed in range(3000):
        draw = random.Random(seed)
        ids = [draw.choice(pool) for pool in draw.choices(pools, (12, 4, 2, 1), k=12)]
        stream = TextStream(rule)
        streamed = "".join(stream.push([token]) for token in ids) + stream.finish()
        assert streamed == backend.decode(ids), ids


def test_possible_stop_string_is_held_back(backend: Tokenizer, whole: Detokenizer) -> None:
    rule = StopRule((), ("tyz",), 99, whole)
    stream = TextStream(rule)
    characters = [backend.token_to_id(character) for character in "atytyza"]
    assert [stream.push([token]) for token in characters] == ["a", "", "", "ty", "", "", ""]
    stream = TextStream(rule)
    assert [stream.push([token]) for token in characters[:3]] == ["a", "", ""]
    assert stream.finish() == "ty"


def test_eos_length_and_the_text_before_them(backend: Tokenizer, whole: Detokenizer) -> None:
    ids = encode(backend, "Cor")
    assert StopRule((1, 7), (), 64).find_reason([*ids, 7]) == "eos"
    assert StopRule((1,), (), len(ids) + 1).find_reason([*ids, 1]) == "eos"  # both: the model said so itself
    assert StopRule((1,), (), len(ids)).find_reason(ids) == "length"
    assert StopRule((1,), (), len(ids) + 1).find_reason(ids) is None
    assert StopRule((), (), 0).find_reason([]) == "length"
    plain = backend.token_to_id("e")  # an end that the tokenizer does not call special
    assert StopRule((plain,), (), 64, whole).text([*ids, plain, *ids]) == "Cor"


def test_what_is_no_tokenizer_is_one_sentence() -> None:
    with pytest.raises(
        GenerationError, match=r"is not the JSON of a fast tokenizer.*use Engine\.tokenizer_json\.$"
    ):
        Detokenizer("{}")


# ---- vocabulary ----------------------------------------------------------------------------------------------


def copied_with(backend: Tokenizer, *names: str, special: bool = False) -> Tokenizer:
    """With more tokens."""
    other = Tokenizer.from_str(backend.to_str())
    other.add_tokens([AddedToken(name, special=special) for name in names])
    return other


def test_beginnings_are_the_same_in_vocabularies_with_more_or_fewer_tokens(backend: Tokenizer) -> None:
    """Whatever follows them, special or not."""
    few = Vocabulary.of(backend)
    for special in (False, True):
        longer = Vocabulary.of(copied_with(backend, *(f"<{number}>" for number in range(5)), special=special))
        assert longer.size == few.size + 5
        assert longer.prefixes[5:][: len(few.prefixes)] == few.prefixes[: len(longer.prefixes) - 5]
        assert len({*longer.prefixes, *few.prefixes}) == len({*longer.prefixes})


def test_fingerprints_are_those_of_the_tokens_and_ids_without_a_token_are_holes(
    tokenizers: dict[str, Tokenizer],
) -> None:
    backend = tokenizers["byte_level"]
    state = json.loads(backend.to_str())
    state["model"]["vocab"] = {
        token: index + (index > 290) for token, index in state["model"]["vocab"].items()
    }
    moved = Tokenizer.from_str(json.dumps(state))
    vocabulary = Vocabulary.of(moved)
    assert (vocabulary.size, vocabulary.find_holes()) == (301, [291])
    assert Vocabulary.of(backend).prefixes[0] == Vocabulary.of(copied_with(backend)).prefixes[0]
    more = [copied_with(backend, "<x>", special=special) for special in (False, True)]
    prints = [Vocabulary.of(each).prefixes[0] for each in (backend, tokenizers["metaspace"], moved, *more)]
    assert [len(each) for each in prints] == [32] * 5
    assert prints[0] not in prints[1:]


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
    info = TokenizerInfo("", {}, (), tokenizer, None, ())
    assert find_eos_token_ids(generation_config, models, info, 50) == expected


# ---- Answers that repeat themselves end: a function of the committed tokens, at one step, only at temperature 0


def ends_with_blocks(tokens: list[int]) -> bool:
    """The slow oracle: tile every possible block and compare."""
    for period in range(1, len(tokens) + 1):
        span = max(24, 4 * period)
        if span <= len(tokens):
            block = tokens[len(tokens) - span :][:period]
            if tokens[len(tokens) - span :] == (block * span)[:span]:
                return True
    return False


def cases() -> list[list[int]]:
    """Beginnings of answers that fall into loops of every length, some broken by one token."""
    rng = random.Random(1)
    answers = []
    for _ in range(300):
        head = [rng.randrange(50) for _ in range(rng.randrange(12))]
        block = [rng.randrange(3) for _ in range(rng.randrange(1, 14))]
        answer = head + (block * 60)[: rng.randrange(20, 60)]
        if rng.random() < 0.3:
            answer[rng.randrange(len(answer))] = 7
        answers.append(answer)
    return answers


def test_it_is_what_the_oracle_says() -> None:
    found = [is_loop(answer) for answer in cases()]
    assert found == [ends_with_blocks(answer) for answer in cases()]
    assert 50 < sum(found) < 250


@pytest.mark.parametrize(("name", "value"), [("LOOP_REPEATS", 3), ("LOOP_TOKENS", 23), ("LOOP_TOKENS", 25)])
def test_a_rule_that_is_off_by_one_is_found(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, name, value)
    assert [is_loop(answer) for answer in cases()] != [ends_with_blocks(answer) for answer in cases()]


def test_only_the_most_probable_tokens_are_cut() -> None:
    tokens = [5] * 24
    assert StopRule.of((), SamplingParams(max_new_tokens=99), None).find_reason(tokens) == "loop"
    assert StopRule.of((), SamplingParams(max_new_tokens=99), None).find_reason(tokens[:-1]) is None
    assert (
        StopRule.of((), SamplingParams(max_new_tokens=99, temperature=0.1), None).find_reason(tokens) is None
    )
    assert StopRule.of((5,), SamplingParams(), None).find_reason(tokens) == "eos"
    for sampling, grammar in (({}, "{}"), ({"presence_penalty": 1.0}, ""), ({"frequency_penalty": -0.1}, "")):
        rule = StopRule.of((), SamplingParams(max_new_tokens=99, **sampling), None, grammar)  # type: ignore[arg-type]
        assert rule.find_reason(tokens) is None, "something leads out of it"


# ---- What a token spells by itself, in the vocabularies of two families ------------------------------


def test_bytes_of_all_tokens_are_the_text() -> None:
    tokenizer = byte_level("<end>", texts=[""], vocab_size=257, plain=("né",))
    text = " tea \u2615 \xad\n\x00~"
    spellings = [Detokenizer(tokenizer).spell(token) for token in tokenizer.encode(text).ids]
    assert b"".join(bytes(spelling.utf8 or ()) for spelling in spellings).decode() == text
    assert spellings[0].text == " "
    assert spellings[5] == ("\\xe2", (0xE2,)), "a part of a character is named by its byte"
