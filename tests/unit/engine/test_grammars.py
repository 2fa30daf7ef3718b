"""Grammars: what they allow, in any order of prefixes, and what they may cost."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("llguidance", reason="answers that follow a grammar need llguidance (extra [grammar])")

from tandem.corpora import model_path
from tandem.engine.tokenizer import Detokenizer
from tandem.errors import Code, GenerationError, QueryError
from tandem.plugins.grammars.following import (
    LIMITS,
    FollowedGrammar,
    ForkServer,
    Limits,
    Masks,
    find_server,
    read_tokenizer,
)
from tandem.plugins.grammars.schemas import split_pattern
from tests.hostile_grammars import hostile_grammars
from tests.unit.engine.followers import followers
from tests.waiting import wait_until

TOKENIZER = (Path(model_path("bundled")) / "tokenizer.json").read_text("utf-8")
VOCAB, END = 1636, 1
MODEL = TOKENIZER, VOCAB, (END,)
SCHEMA = {
    "type": "object",
    "properties": {"game": {"type": "string", "maxLength": 12}, "years": {"type": "integer", "maximum": 99}},
    "required": ["game", "years"],
    "additionalProperties": False,
}
HOSTILE = {"json_schema": {"type": "integer", "multipleOf": 19_999_999}}
"""45 bytes that llguidance computes for minutes, and gigabytes, before the first token."""
ENDLESS = Limits(build_s=600.0, memory_mb=4_000)


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return find_server(*MODEL)


Open = Callable[..., FollowedGrammar]


@pytest.fixture
def open_grammar(server: ForkServer) -> Iterator[Open]:
    opened: list[FollowedGrammar] = []

    def open_one(limits: Limits | None = None, **grammar: Any) -> FollowedGrammar:
        opened.append(FollowedGrammar(server, json.dumps(grammar), VOCAB, (END,), limits))
        return opened[-1]

    yield open_one
    for grammar in opened:
        grammar.close()


def allowed_tokens(mask: bytes) -> list[int]:
    bits: NDArray[np.uint8] = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def write(allowed: Callable[[Sequence[int]], bytes], draw: random.Random, most: int = 300) -> str:
    """A text of allowed tokens at random; an end as soon as it may be."""
    tokens: list[int] = []
    while END not in (choices := allowed_tokens(allowed(tokens))):
        assert len(tokens) < most
        tokens.append(draw.choice(choices))
    return Detokenizer(TOKENIZER).text(tokens)


# ---- what may follow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "is_right"),
    [
        ({"regex": "(yes|no|maybe later)"}, lambda text: text in ("yes", "no", "maybe later")),
        ({"regex": "[a-f]{3}-[0-9]{2}"}, lambda text: re.fullmatch("[a-f]{3}-[0-9]{2}", text)),
        ({"json_schema": SCHEMA}, lambda text: json.loads(text)["years"] <= 99),
        ({"lark": 'start: ("ab" | "c")~3'}, lambda text: re.fullmatch("(ab|c){3}", text)),
    ],
)
def test_whatever_is_allowed_is_right(
    open_grammar: Open, grammar: Any, is_right: Callable[[str], object]
) -> None:
    opened = open_grammar(**grammar)
    for seed in range(20):
        text = write(opened.allowed, random.Random(seed))
        assert is_right(text), text


TEXT = {"type": "string", "maxLength": 3}
LETTERS = {"type": "array", "items": {"$ref": "#/$defs/Letter"}, "uniqueItems": True}


@pytest.mark.parametrize(
    "schema",
    [
        *({**TEXT, "format": name} for name in ("binary", "path", "password", "file-path", "textarea", "ipv4network")),
        {"type": "integer", "maximum": 99, "format": "int32", "minimum": 0},
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1},
        {"$defs": {"Letter": {"enum": ["a", "b"], "type": "string"}}, **LETTERS, "maxItems": 1},
        {"type": "array", "items": {"enum": [1, 1]}, "uniqueItems": False, "maxItems": 2},
        {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxItems": 2},
        {"type": "object", "properties": {"x": {"enum": [1]}}, "unevaluatedProperties": False},
        {"type": "array", "prefixItems": [{"enum": [1]}], "unevaluatedItems": False},
        {"oneOf": [{"enum": [1]}, {"enum": [2]}], "type": "integer"},
        {"type": "string", "pattern": "^(?=.*[0-9])[a-z0-9]{3,6}$"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_written_by_a_schema_of_everyday_is_right(open_grammar: Open, schema: Any) -> None:
    """`format` says nothing by itself, and of the rest as much is kept as can be."""
    jsonschema = pytest.importorskip("jsonschema")
    opened = open_grammar(json_schema={"type": "object", "properties": {"x": schema}, "required": ["x"],
                                       "additionalProperties": False, "$defs": schema.get("$defs", {})})  # fmt: skip
    for seed in range(10):
        jsonschema.validate(json.loads(write(opened.allowed, random.Random(seed)))["x"], schema)


@pytest.mark.parametrize(
    "keyword", ["dependentRequired", "propertyNames", "if", "x-unknown", "uniqueItems", "$anchor"]
)
def test_a_keyword_that_is_not_known_is_left_out(open_grammar: Open, keyword: str) -> None:
    value = {"uniqueItems": True, "$anchor": "a", "dependentRequired": {}}.get(keyword, {"pattern": "a"})
    assert open_grammar(json_schema={"type": "array", "items": {"type": "integer"}, keyword: value}).allowed(
        []
    )


WORDS = ["", "admin", "admi", "admins", "a1b2c", "Ab1", "12a", "a\n1"]
WORDS += ["".join(letters) for size in range(1, 4) for letters in product("abc01-.", repeat=size)]


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?=.*[a-z])(?=.*\\d)(?!.*c).{2,5}$", "^(?=[ab]{2}$)b|c$", "(?=.*b)(?!c)[abc]+", "^(?!a)[a-c]+$",
        "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$",  # of Decimal, by pydantic 2.12
        "^(?!\\d+$)[a0-9]+$", "^(?!.*[ac])[abc]+$",
        "^(?!\\d)[a0-9]+$", "^(?![0-9-])[a-c0-9-]+(?<![-b])$", "^(?!.*\\.)[a.]+\\Z", "^[abc]+\\b$", "^ab?$",
    ],
)  # fmt: skip
def test_looking_around_is_said_otherwise(pattern: str) -> None:
    """A text that all parts match is one that the whole does, and there are such texts."""
    parts = split_pattern(pattern)
    matched = [word for word in WORDS if all(re.search(part, word) for part in parts)]
    assert matched
    assert all(re.search(pattern, word) for word in matched)
    assert not any("(?=" in part or "(?!" in part or "(?<" in part for part in parts)
    assert make_masks(json_schema={"type": "string", "pattern": pattern}).allowed([])


def test_what_cannot_be_said_otherwise_is_left_out() -> None:
    assert split_pattern(r"^(?!.*(a|b)c)(?!.*c$)a(?=b)[abc]+(?<=c)$") == ["^a[abc]+$"]
    assert split_pattern(r"^(a)\1$") == []
    assert make_masks(json_schema={"type": "string", "pattern": r"^(a)\1$"}).allowed([])


READ = read_tokenizer(*MODEL)


def make_masks(**grammar: Any) -> Masks:
    return Masks(READ, json.dumps(grammar), VOCAB, (END,), LIMITS)


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, VOCAB - 1), max_size=2)), max_size=8))
def test_what_is_allowed_is_a_function_of_the_prefix(jumps: list[tuple[int, list[int]]]) -> None:
    """After drafts that were rolled back, and after tokens that break the rules, as with a new grammar."""
    own = make_masks(json_schema=SCHEMA)
    tokens = [93, 4]  # {"
    while len(tokens) < 9:
        tokens.append(allowed_tokens(own.allowed(tokens))[-1])
    for length, wrong in jumps:
        prefix = [*tokens[:length], *wrong]
        assert own.allowed(prefix) == make_masks(json_schema=SCHEMA).allowed(prefix)


def test_another_process_says_the_same_in_whatever_order_it_is_asked(open_grammar: Open) -> None:
    opened, own, draw = open_grammar(json_schema=SCHEMA), make_masks(json_schema=SCHEMA), random.Random(3)
    tokens: list[int] = []
    for _ in range(200):
        tokens.append(draw.choice(allowed_tokens(own.allowed(tokens))))
        if draw.random() < 0.2:
            del tokens[draw.randrange(len(tokens)) :]
        opened.expect([tokens[:length] for length in range(max(0, len(tokens) - 3), len(tokens) + 1)])
        assert opened.allowed(tokens) == own.allowed(tokens)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ({"regex": "("}, "regex parse error: ( ^ error: unclosed group"),
        ({"lark": "start: nothing"}, "nothing"),
        ({"json_schema": {"type": "object", "required": ["a"], "properties": {"a": False}}}, "unsatisfiable"),
        ({"json_schema": {"type": "thing"}}, "thing"),
        ({}, "unpack"),
        ({"gbnf": "root"}, "gbnf"),
        ([1], "items"),
        ({"regex": 1}, ""),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_one_sentence(
    server: ForkServer, grammar: Any, reason: str
) -> None:
    opened = FollowedGrammar(server, json.dumps(grammar), VOCAB, (END,))
    with pytest.raises(
        QueryError, match=r"^The grammar of the answer cannot be followed \(.*\); correct it"
    ) as caught:
        opened.allowed([])
    opened.close()
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (caught.value.code, caught.value.option) == (Code.INVALID, "grammar")


def test_a_tokenizer_that_llguidance_takes_otherwise_is_one_sentence() -> None:
    other = json.loads(TOKENIZER)
    other["decoder"] = {"type": "ByteFallback"}
    grammar = FollowedGrammar(ForkServer(json.dumps(other), VOCAB, (END,)), '{"regex": "a"}', VOCAB, (END,))
    with pytest.raises(
        GenerationError, match=r"tokenizer cannot be used with a grammar \(.*\); ask without one"
    ):
        grammar.allowed([])
    grammar.close()


# ---- what it may cost ----------------------------------------------------------------------------------------


def check_cost(opened: FollowedGrammar, code: Code, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence) as caught:
        opened.allowed([])
    assert (caught.value.code, caught.value.option) == (code, "grammar")


def test_what_takes_too_much_time_or_memory_to_build_ends_with_one_sentence(open_grammar: Open) -> None:
    sentence = r"takes more than {} s of a processor or {} MB of memory before the first token; simplify it, or leave"
    slow, large = Limits(build_s=0.1, memory_mb=4_000), Limits(build_s=600.0, memory_mb=16)
    for limits, shown in ((slow, ("0.1", "4000")), (large, ("600", "16"))):
        check_cost(open_grammar(limits, **HOSTILE), Code.OVER_LIMIT, sentence.format(*shown))


def test_so_does_what_takes_too_much_at_a_token(open_grammar: Open) -> None:
    long = {"json_schema": {"const": 'ab\\"é' * 8_000}}
    sentence = r"takes more than 0\.005 s of a processor or 128 MB of memory for token 1; simplify it, or leave it out"
    check_cost(open_grammar(Limits(mask_s=0.005), **long), Code.OVER_LIMIT, sentence)


def test_so_does_what_llguidance_itself_gives_up(open_grammar: Open) -> None:
    """Such an answer used to end here as if it were complete."""
    rules = "".join(f'r{n}: r{n + 1} | "{n}" r{n * 7 % 1100}\n' for n in range(1100))
    opened = open_grammar(lark=f'start: "yes" r0\n{rules}r1100: "e"')
    sentence = r"too complex for token \d+ \(Parser Error: .*\); simplify it, or leave it out"
    with pytest.raises(QueryError, match=sentence):
        write(opened.allowed, random.Random(1))
    check_cost(opened, Code.OVER_LIMIT, sentence)  # and stays so


def test_closing_a_grammar_ends_its_process_whatever_it_computes(
    server: ForkServer, open_grammar: Open
) -> None:
    before = set(followers(server.pid))
    opened = open_grammar(ENDLESS, **HOSTILE)
    wait_until(lambda: len(set(followers(server.pid)) - before) == 1)
    opened.close()
    wait_until(lambda: not set(followers(server.pid)) - before)
    with pytest.raises(QueryError, match="has ended"):
        opened.poll()


def test_a_fork_server_that_was_killed_is_replaced() -> None:
    """And its grammars end with a sentence."""
    first = find_server(TOKENIZER, VOCAB, (2,))
    lost = FollowedGrammar(first, '{"regex": "[ab]*"}', VOCAB, (2,))
    assert lost.allowed([])
    os.kill(first.pid, signal.SIGSTOP)  # it starts nothing any more
    waiting = FollowedGrammar(first, '{"regex": "[ab]*"}', VOCAB, (2,))
    assert not waiting.poll()
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(GenerationError, match="which could not be started; ask again") as caught:
        waiting.allowed([])
    assert caught.value.code is Code.LOST
    wait_until(lambda: not first.is_running())
    second = find_server(TOKENIZER, VOCAB, (2,))
    assert second.pid != first.pid
    found = FollowedGrammar(second, '{"regex": "[ab]*"}', VOCAB, (2,))
    assert found.allowed([]) == lost.allowed([])
    for each in (lost, waiting, found):
        each.close()


def memory_mb(server: ForkServer) -> float:
    """What is not shared of the processes that follow a grammar, in the largest."""
    most = 0.0
    for pid in followers(server.pid):
        try:
            shown = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
        except OSError:  # it has ended
            continue
        most = max([most, *(int(number) / 1e3 for number in re.findall(r"Private_Dirty: +(\d+) kB", shown))])
    return most


def follow_at_random(server: ForkServer, opened: FollowedGrammar, draw: random.Random) -> str:
    """What becomes of some tokens, some of which are taken back: a code, or nothing."""
    tokens: list[int] = []
    try:
        for _ in range(60):
            opened.expect([tokens])
            while not opened.poll(lambda: 0.2):
                assert memory_mb(server) < 200
            choices = [token for token in allowed_tokens(opened.allowed(tokens)) if token != END]
            if not choices:
                break
            tokens.append(draw.choice(choices))
            if draw.random() < 0.1:
                del tokens[draw.randrange(len(tokens)) :]
        assert memory_mb(server) < 200
    except QueryError as error:
        expected = r"The grammar of the answer (cannot be followed|takes more than|is too complex)"
        return error.code if re.match(expected, str(error)) else str(error)
    finally:
        opened.close()
    return ""


@pytest.mark.parametrize(
    ("count", "limits"),
    [
        pytest.param(20, Limits(build_s=0.3), id="one of each kind"),
        pytest.param(200, LIMITS, id="all", marks=pytest.mark.nightly("a minute of what a sample is of")),
    ],
)
def test_hostile_grammars_end_with_a_mask_or_a_sentence(
    server: ForkServer, count: int, limits: Limits
) -> None:
    """Also after many tokens, with rollbacks. No process takes more than 200 MB."""
    outcomes = Counter(
        follow_at_random(
            server, FollowedGrammar(server, json.dumps(grammar), VOCAB, (END,), limits), random.Random(number)
        )
        for number, (_, grammar) in enumerate(hostile_grammars(count))
    )
    assert outcomes.keys() == {"", Code.INVALID, Code.OVER_LIMIT}
