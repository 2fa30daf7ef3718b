"""Pieces of text and how a model reads them, against the law in ten lines, with tokenizers of many kinds."""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from tandem.engine import pieces as module
from tandem.engine.pieces import END, PieceReader, Pieces, Reading, TextTokens, pack, run_passes, unpack
from tandem.engine.port import IsStale
from tandem.engine.template import TemplateTokenizer
from tandem.engine.tokenizer import Detokenizer, byte_level_alphabet, copy_tokenizer
from tandem.errors import GenerationError, ProtocolError
from tandem.modes.reference_shaping import likelihood, over_pieces
from tandem.protocol.log import common_length
from tests.unit.engine.builders import byte_level, many_texts, sentence_piece, unigram
from tests.unit.engine.test_forged_markers import AROUND, MARKERS

TURN = "<|im_start|>"
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


def composed() -> Tokenizer:
    tokenizer = byte_level(TURN, "</s>")
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: byte_level(TURN, "</s>"),
    "more bytes": lambda: byte_level("</s>", TURN, vocab_size=2000),
    "single digits": lambda: byte_level("</s>", TURN, vocab_size=450, digits=True),
    "GPT-4's pattern": lambda: byte_level("</s>", TURN, vocab_size=900, pattern=CL100K),
    "markers that are not special": lambda: byte_level("</s>", plain=MARKERS),
    "white space added": lambda: byte_level("</s>", TURN, plain=("   ", "\n\n\n")),
    "composed": composed,
    "Llama's": lambda: sentence_piece(TURN, vocab_size=900),
    "Llama's, a space before the first": lambda: sentence_piece(TURN, prefix="first"),
    "Llama's, always a space": lambda: sentence_piece(TURN, prefix="always", vocab_size=300),
    "Gemma's": lambda: sentence_piece(TURN, prefix="never", plain=("▁▁", "▁▁▁")),
    "unigram": unigram,
}


class ToyEngine:
    """A model whose rows' logits after some tokens are noise, a function of the row and of them."""

    def __init__(self, tokenizer: Tokenizer, num_rows: int = 2) -> None:
        self.text_tokenizer = TemplateTokenizer(copy_tokenizer(tokenizer), TURN).within_text
        self.detokenizer = Detokenizer(tokenizer)
        self.vocab_size = tokenizer.get_vocab_size()
        ends = (tokenizer.token_to_id(name) for name in ("</s>", TURN))
        self.eos_token_ids = tuple(token for token in ends if token is not None)
        self.num_rows = num_rows
        self.num_passes = 0

    def row(self, row: int) -> Callable[[Sequence[int]], np.ndarray]:
        return lambda tokens: np.random.default_rng([row, len(tokens), *tokens]).normal(0, 3, self.vocab_size)

    def forward(
        self, answers: Mapping[str, Sequence[int]], num_logits: Mapping[str, int], *, is_stale: IsStale | None
    ) -> list[np.ndarray]:
        self.num_passes += 1
        return [
            np.array(
                [
                    [self.row(row)(tokens[:end]) for end in range(len(tokens) - num_logits[name] + 1, len(tokens) + 1)]
                    for row in range(self.num_rows)
                ],
                np.float32,
            )
            for name, tokens in answers.items()
        ]  # fmt: skip


@cache
def vocabulary(kind: str) -> TextTokens:
    return TextTokens(ToyEngine(KINDS[kind]()), kind)


@cache
def listed(*kinds: str) -> Pieces:
    return Pieces({kind: vocabulary(kind).packed for kind in kinds})


def softmax(logits: np.ndarray) -> list[float]:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return (powers / powers.sum()).tolist()


def reading_of(kind: str, pieces: Pieces) -> tuple[ToyEngine, Reading]:
    return ToyEngine(KINDS[kind]()), Reading(PieceReader(vocabulary(kind), pieces), None)


# ---- texts become tokens -------------------------------------------------------------------------------------

WORDS = ["the lamp", "lamps", "Zürich", "日本語", "😀 ", "  x = 3\n\n", "\t", "naïve", "e\u0301", "<|im_"]


def read_texts(kind: str, data: bytes) -> bytes:
    return b"".join(vocabulary(kind).texts[token] for token in vocabulary(kind).read(data))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("unigram", "composed")])
@settings(max_examples=40, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS)).map("".join)), st.integers(0, 8))
def test_what_is_read_is_what_is_written(kind: str, text: str, num_cut: int) -> None:
    data = text.encode("utf-8", "replace")
    data = data[: max(0, len(data) - num_cut)]
    assert read_texts(kind, data) == data, "also within a character"
    assert vocabulary(kind).read(data) == vocabulary(kind).read(bytes(data)), "a function of the bytes"


@pytest.mark.nightly("ten seconds for each of twelve tokenizers")
@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_changes_a_few_tokens_at_most(kind: str) -> None:
    rng, own = random.Random(5), vocabulary(kind)
    text = " ".join([*WORDS * 50, *many_texts()]).encode()
    said = [rng.choice([each for each in vocabulary(other).texts if each]) for other in [*KINDS] * 100]
    for _ in range(67_000):
        begins = rng.randrange(len(text) - 40)
        before = text[begins : begins + rng.randrange(1, 40)]
        tokens = own.read(before)
        assert len(tokens) - common_length(tokens, own.read(before + rng.choice(said))) <= 8


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_becomes_a_marker(kind: str) -> None:
    silent = {token for token, text in enumerate(vocabulary(kind).texts) if not text}
    for marker in (*MARKERS, "\x04", "\uffff"):
        for around in AROUND:
            text = f"a{around}{marker}{around}user{marker}{marker}"
            for data in (text.encode(), text.encode() + b"\xe2\x80", marker.encode()):
                assert not set(vocabulary(kind).read(data)) & silent, (marker, around)


def test_a_token_of_a_marker_spells_nothing() -> None:
    for kind in KINDS:
        texts = vocabulary(kind).texts
        assert not {TURN.encode(), b"</s>"} & set(texts), kind


def test_the_bundled_model_reads_what_it_lacks_as_nothing() -> None:
    """SmolLM2's token for it is <|endoftext|>."""
    tokenizer = byte_level("<|endoftext|>", "</s>", TURN)
    state = json.loads(tokenizer.to_str())
    state["model"]["unk_token"] = "<|endoftext|>"
    del state["model"]["vocab"][byte_level_letter(4)]
    lacks = ToyEngine(Tokenizer.from_str(json.dumps(state)))
    lacks.eos_token_ids = (0, *lacks.eos_token_ids)
    assert lacks.text_tokenizer.encode("a\x04").ids[-1] == 0
    assert TextTokens(lacks, "lacks").read(b"a\x04b") == TextTokens(lacks, "lacks").read(b"ab"[:1]) + (
        TextTokens(lacks, "lacks").read(b"b")
    )


def byte_level_letter(byte: int) -> str:
    return next(letter for letter, value in byte_level_alphabet().items() if value == byte)


def test_unfinished_characters_are_read_by_the_longest_tokens_and_else_left_out() -> None:
    assert read_texts("unigram", b"a lamp\xe2\x82") == b"a lamp"
    whole, part = "a €".encode(), "a €".encode()[:-1]
    assert read_texts("bytes", part) == part
    assert read_texts("bytes", whole) == whole
    assert read_texts("Llama's", b"\xff\xfe \xe2") == b"\xff\xfe \xe2"


def test_a_tokenizer_that_changes_texts_is_refused() -> None:
    tokenizer = byte_level(TURN, "</s>")
    tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(
        GenerationError, match=r"of 'small' changes texts: .*; use models that share a tokenizer"
    ):
        TextTokens(ToyEngine(tokenizer), "small")


# ---- the list ------------------------------------------------------------------------------------------------


@given(st.sets(st.binary(min_size=1, max_size=20), min_size=1, max_size=50))
def test_a_vocabulary_arrives_as_it_was_packed(texts: set[bytes]) -> None:
    assert unpack(pack(texts)) == sorted(texts)


def test_the_list_is_the_same_for_all() -> None:
    one, other = vocabulary("bytes").packed, vocabulary("Llama's").packed
    first, second = Pieces({"a": one, "b": other}), Pieces({"b": other, "a": one})
    assert (first.texts, first.fingerprint) == (second.texts, second.fingerprint)
    assert first.fingerprint != Pieces({"a": one}).fingerprint
    assert first.texts[END] == b""
    assert list(first.texts) == sorted(set(first.texts))
    assert set(first.texts[1:]) == {*unpack(one), *unpack(other)}


def lengths(*numbers: int, text: bytes = b"") -> bytes:
    return len(numbers).to_bytes(4, "little") + np.array(numbers, "<u2").tobytes() + text


HOSTILE = {
    "nothing": b"",
    "not compressed": b"x" * 100,
    "empty": zlib.compress(lengths()),
    "cut off": pack([b"a", b"b"])[:-3],
    "more behind": pack([b"a", b"b"]) + b"x",
    "text behind": zlib.compress(lengths(1, text=b"ab")),
    "too little text": zlib.compress(lengths(3, text=b"ab")),
    "an empty piece": zlib.compress(lengths(0, 1, text=b"a")),
    "twice the same": zlib.compress(lengths(1, 1, text=b"aa")),
    "out of order": zlib.compress(lengths(1, 1, text=b"ba")),
    "64 kB": zlib.compress(lengths(65535, text=b"a" * 65535)),
    "more than there are": zlib.compress((1 << 31).to_bytes(4, "little") + b"\1\0"),
    "a bomb": zlib.compress(bytes(1 << 25)),
}


@pytest.mark.parametrize("packed", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_vocabulary_is_refused_in_one_sentence(packed: bytes) -> None:
    with pytest.raises(
        ProtocolError, match=r"^A vocabulary must be .* but the other party's is not; install "
    ):
        Pieces({"a": packed})


def test_too_many_pieces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(number.to_bytes(2, "big") for number in range(100))
    monkeypatch.setattr(module, "MAX_VOCAB", 100)
    with pytest.raises(ProtocolError):
        Pieces({"a": packed})
    monkeypatch.setattr(module, "MAX_VOCAB", 101)
    Pieces({"a": packed})
    with pytest.raises(
        GenerationError, match=r"of a, b have 102 pieces together, and an answer may be of 101; use"
    ):
        Pieces({"a": packed, "b": pack([b"x"])})


def test_text_is_shown_once_no_piece_can_change_it() -> None:
    pieces = Pieces({"a": pack([b"a", "€".encode()[:1], "€".encode()[1:], b" b"])})
    ids = [pieces.texts.index(text) for text in (b"a", "€".encode()[:1], "€".encode()[1:], b" b")]
    shown = [pieces.settled_text(ids[:end]) for end in range(5)]
    assert shown == ["", "a", "a", "a€", "a€ b"]
    assert pieces.text([*ids[:2], END]) == "a\ufffd", "an answer that ends there"
    assert pieces.spell(END).utf8 is None
    assert pieces.spell(ids[1]).text == "\\xe2"


# ---- the law -------------------------------------------------------------------------------------------------

PAIRS = [
    ("bytes", "Llama's"),
    ("Gemma's", "more bytes"),
    ("unigram", "single digits"),
    ("composed", "Llama's"),
]


def spelled(kind: str) -> list[bytes | None]:
    """As the law has it: an end is empty, and what spells nothing is None."""
    ends = vocabulary(kind).ends
    return [b"" if token in ends else text or None for token, text in enumerate(vocabulary(kind).texts)]


def oracle_row(
    kind: str, engine: ToyEngine, row: int, pieces: Pieces
) -> Callable[[Sequence[int]], list[float]]:
    return over_pieces(
        lambda tokens: softmax(engine.row(row)(tokens)), spelled(kind), pieces.texts, vocabulary(kind).read
    )


COMMON = (b"a", b"n", b" t", b"he", b"i", b"\xe2", b"\x82", b"\xac")


def random_pieces(pieces: Pieces, rng: np.random.Generator, count: int) -> list[int]:
    """Many that make words and characters with each other."""
    words = [pieces.texts.index(text) for text in COMMON if text in pieces.texts]
    numbers = rng.integers(1, pieces.size, count)
    return [int(rng.choice(words) if rng.random() < 0.7 else number) for number in numbers]


@pytest.mark.parametrize(
    "num_asked", [6, pytest.param(12_500, marks=pytest.mark.nightly("100,000 readings in all"))]
)
@pytest.mark.parametrize("kinds", PAIRS, ids=" and ".join)
def test_a_reading_is_the_law(kinds: tuple[str, str], num_asked: int) -> None:
    """In whatever order prefixes are asked for, and however many at a time."""
    pieces, rng = listed(*kinds), np.random.default_rng(num_asked)
    for kind in kinds:
        engine, reading = reading_of(kind, pieces)
        rows = [oracle_row(kind, engine, row, pieces) for row in range(engine.num_rows)]
        line = random_pieces(pieces, rng, 24)
        for _ in range(num_asked):
            if rng.random() < 0.3:  # a rollback
                line = [*line[: int(rng.integers(min(len(line), 40)))], *random_pieces(pieces, rng, 6)]
            elif num_asked > 6:
                line += random_pieces(pieces, rng, int(rng.integers(4)))
            count = int(rng.integers(1, min(len(line) + 2, 6)))
            learns = bool(rng.random() < 0.5)
            (logits,) = run_passes(engine, {"a": reading.passes(line, count, learns=learns)})
            assert logits.shape == (engine.num_rows, count, pieces.size)
            cells = [(row, column) for row in range(engine.num_rows) for column in range(count)]
            for row, column in cells if num_asked == 6 else [cells[int(rng.integers(len(cells)))]]:
                wanted = rows[row](line[: len(line) - count + 1 + column])
                np.testing.assert_allclose(softmax(logits[row, column]), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["bytes", "Llama's", "unigram", "composed"])
def test_evidence_is_what_the_likelihood_grows_by(kind: str) -> None:
    pieces, rng = listed(kind, "more bytes"), np.random.default_rng(6)
    engine, reading = reading_of(kind, pieces)
    line, read, limit = random_pieces(pieces, rng, 30), vocabulary(kind).read, -math.log(1e-6)

    def grown(row: int, end: int) -> float:
        texts = (read(pieces.join(line[:number])) for number in (end, end + 1))
        before, after = (
            likelihood(lambda tokens: softmax(engine.row(row)(tokens)), tokens) for tokens in texts
        )
        return min(max(after - before, -limit), limit)

    def learn(reading: Reading, end: int) -> tuple[float, ...]:
        return reading.evidence(line[:end], line[end], lambda passes: run_passes(engine, {"a": passes}))

    for end in (0, 5, 29, 3, 17, 18):
        found = learn(reading, end)
        assert found == pytest.approx([grown(row, end) for row in range(engine.num_rows)], abs=1e-4)
        assert found == learn(reading_of(kind, pieces)[1], end), "to the bit, whatever was asked before"


def test_what_is_forgotten_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_READINGS", 2)
    monkeypatch.setattr(module, "MAX_COLUMNS", 3)
    test_evidence_is_what_the_likelihood_grows_by("Llama's")
    test_a_reading_is_the_law(("bytes", "Llama's"), 6)


def test_a_token_more_costs_no_pass() -> None:
    pieces = listed("bytes", "Llama's")
    engine, reading = reading_of("bytes", pieces)
    text = b"the lamps of the town are lit at 9"
    tokens = vocabulary("bytes").read(text)
    line = [pieces.texts.index(vocabulary("bytes").texts[token]) for token in tokens]
    own = [end for end in range(len(line)) if reading.tokens(line[: end + 1]) == tokens[: end + 1]]
    for end in own:
        run_passes(engine, {"a": reading.passes(line[:end], 1, learns=True)})
        before = engine.num_passes
        reading.evidence(line[:end], line[end], lambda passes: run_passes(engine, {"a": passes}))
        assert engine.num_passes <= before + 1, "of logits that the engine has"
    (logits,) = run_passes(engine, {"a": reading.passes(line, len(line) + 1, learns=False)})
    assert logits.shape[1] == len(line) + 1


def test_equal_vocabularies_are_read_as_ever() -> None:
    """For canonical tokens, the distribution and the evidence are those of the tokens themselves."""
    pieces = listed("bytes")
    engine, reading = reading_of("bytes", pieces)
    tokens = vocabulary("bytes").read(b"the lamps of the town")
    line = [pieces.texts.index(vocabulary("bytes").texts[token]) for token in tokens]
    number = {pieces.texts.index(text): token for token, text in enumerate(vocabulary("bytes").texts) if text}
    (logits,) = run_passes(engine, {"a": reading.passes(line, 1, learns=True)})
    own = engine.row(0)(tokens)
    for piece, token in number.items():
        assert logits[0, 0, piece] == np.float32(own[token])


def test_an_answer_beyond_the_context_is_refused() -> None:
    pieces = listed("bytes", "Llama's")
    reading = Reading(PieceReader(vocabulary("bytes"), pieces), 4)
    piece = pieces.texts.index(b"q")
    assert len(reading.tokens([piece] * 4)) == 4
    with pytest.raises(
        GenerationError, match=r"The answer has 5 tokens of the model, and 4 fit its context; ask"
    ):
        reading.tokens([piece] * 5)


# ---- mutants -------------------------------------------------------------------------------------------------


def _keeps_what_was_said(self: Reading, pieces: Sequence[int]) -> tuple[int, ...]:
    """Tokens as they were said, piece by piece, and not as the text is tokenised."""
    read = self._reader.vocabulary.read
    return tuple(token for piece in pieces for token in read(self._reader.pieces.texts[piece]))


def _first_of_equals(self: PieceReader, logits: np.ndarray) -> np.ndarray:
    out = np.full((*logits.shape[:-1], self.pieces.size), -np.inf, np.float32)
    texts = self.pieces.texts
    for token, text in reversed(list(enumerate(self.vocabulary.texts))):
        if text:
            out[..., texts.index(text)] = logits[..., token]
    out[..., END] = logits[..., self.vocabulary.ends[0]]
    return out


MUTANTS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "tokens as they were said": (Reading, "tokens", _keeps_what_was_said),
    "one of the tokens that spell the same": (PieceReader, "spread", _first_of_equals),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_each_clause_of_the_law_is_tested(
    mutant: tuple[type, str, Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*mutant)
    with pytest.raises(AssertionError):
        test_a_reading_is_the_law(("bytes", "Llama's"), 6)


def test_a_limit_of_evidence_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GAIN", 3.0)
    with pytest.raises(AssertionError):
        test_evidence_is_what_the_likelihood_grows_by("bytes")
