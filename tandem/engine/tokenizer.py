"""Tokens and text: what two models must share, text whole or as a stream, and when an answer ends.

Needs the `tokenizers` package alone, so a process that only shows an answer never imports PyTorch or transformers.
Everything about an answer is a function of its committed tokens: all parties stop at the same step.

A distribution covers the ids below `vocab_size`, the highest id of the *tokenizer* plus one. Models pad their logits
to a round number beyond it, each size differently (one tokenizer of 151,665 tokens meets 151,936 and 152,064
logits); those columns name no token, so they are cut off before the softmax, and such models work together.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from tokenizers import Tokenizer
from tokenizers.models import BPE

from tandem.config.schema import SamplingParams
from tandem.errors import GenerationError

# ---- What comes with a tokenizer ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """Information that comes with a tokenizer, and that its JSON does not hold."""

    family: str  # "Qwen2"; "" where nothing is said of it
    special_tokens: Mapping[str, str]  # as templates know them: "bos_token" -> "<s>"
    all_special_ids: tuple[int, ...]  # of those
    eos_token_id: int | None
    chat_template: str | None  # in Jinja
    added_tokens: tuple[str, ...]  # that a text is searched for, special or not

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        special_tokens: Mapping[str, str],
        *,
        family: str = "",
        eos_token_id: int | None = None,
        chat_template: str | None = None,
    ) -> TokenizerInfo:
        """Read the information off a tokenizer, given the names of its special tokens."""
        ids = (tokenizer.token_to_id(token) for token in dict.fromkeys(special_tokens.values()))
        added = tokenizer.get_added_tokens_decoder().values()
        return cls(
            family=family,
            special_tokens=special_tokens,
            all_special_ids=tuple(index for index in ids if index is not None),
            eos_token_id=eos_token_id,
            chat_template=chat_template,
            added_tokens=tuple(token.content for token in added),
        )


# ---- Parts of a tokenizer, without its vocabulary ------------------------------------------------------


STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def describe_steps(tokenizer: Tokenizer) -> dict[str, Any]:
    """The steps of a tokenizer besides its model, as its JSON has them."""
    bare = _with_steps(Tokenizer(BPE()), tokenizer)
    state: dict[str, Any] = json.loads(bare.to_str())
    return {name: state[name] for name in STEPS}


def copy_tokenizer(
    tokenizer: Tokenizer, *, steps: Mapping[str, Any] | None = None, special: Collection[str] = ()
) -> Tokenizer:
    """One that shares the model, of which JSON would copy hundreds of thousands of tokens.

    steps: those that differ, as `describe_steps` gives them. special: added tokens that are to be special ones.
    """
    source = tokenizer
    if steps:
        state = json.loads(Tokenizer(BPE()).to_str()) | describe_steps(tokenizer) | steps
        source = Tokenizer.from_str(json.dumps(state))
    copy = _with_steps(Tokenizer(tokenizer.model), source)
    added = [token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    for token in added:
        token.special |= token.content in special
    copy.add_tokens(added)  # ids follow from the model and the order
    return copy


def _with_steps(tokenizer: Tokenizer, source: Tokenizer) -> Tokenizer:
    for name in STEPS:
        setattr(tokenizer, name, getattr(source, name))
    return tokenizer


# ---- The text of tokens --------------------------------------------------------------------------------


BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
"""A byte, in a vocabulary of pieces of text with byte fallback."""
WORD_BEGIN = "\u2581"  # a space, in a vocabulary of pieces of text


class Spelling(NamedTuple):
    """A token as people and programs read it."""

    text: str  # bytes that are no whole character as \xe2; of a special token its name
    utf8: tuple[int, ...] | None  # None: a special token, which spells nothing


def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte: of GPT-2, which shows printable bytes as themselves and the others from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


StopReason = Literal["eos", "stop", "loop", "length"]
LOOP_REPEATS, LOOP_TOKENS = 4, 24
"""An answer that ends with one block of tokens so many times, and with so many tokens of it, is a loop."""

MAX_MORE_TOKENS = 63
"""By how many added tokens at their ends two vocabularies may differ."""
_END, _SPECIAL, _GAP = "\udcff", "\udcfe", "\udcfd"  # the bytes FF, FE and FD, as Python escapes them
_INCOMPLETE = "\ufffd"  # what decoders print for bytes that are not (yet) UTF-8
_ENCODING_OPTIONS = ("add_prefix_space", "trim_offsets", "use_regex", "split")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer, added ones included, by ascending id."""

    ids: Sequence[int]
    tokens: Sequence[str]
    prefixes: tuple[str, ...]
    """Fingerprints of its beginnings, 32 hexadecimal digits, the longest first: the whole, all but the last id, and so
    on, over everything that turns tokens into text: their ids, which are special, the decoder.

    They go back over added tokens, of which models of one family have more or fewer, at most `MAX_MORE_TOKENS`. Where
    two vocabularies have a beginning in common, their models work together with its ids. Which special token *ends* an
    answer does not count: it is agreed on with each query.
    """

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """The tokens of a tokenizer."""
        items = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=itemgetter(1))
        ids, tokens = [index for _, index in items], [token for token, _ in items]
        return cls(ids, tokens, _fingerprint_prefixes(tokenizer, ids, tokens))

    @property
    def size(self) -> int:
        """The highest id plus one."""
        return self.ids[-1] + 1

    def check(self, num_logits: int, model: str) -> None:
        """GenerationError if the model, of `num_logits` outputs, lacks some ids."""
        if self.size > num_logits:
            raise GenerationError(
                f"The tokenizer of {model!r} does not fit its model: its ids reach {self.size - 1} and the model has "
                f"{num_logits} outputs; use the tokenizer that was saved with the model."
            )

    def find_holes(self) -> list[int]:
        """The ids below its size that name no token, ascending."""
        return sorted(set(range(self.size)) - set(self.ids)) if len(self.ids) < self.size else []

    @property
    def longest(self) -> int:
        """Bytes of the longest token, as it is written in the vocabulary."""
        return max(map(len, map(str.encode, self.tokens)))


def _fingerprint_prefixes(tokenizer: Tokenizer, ids: Sequence[int], tokens: Sequence[str]) -> tuple[str, ...]:
    """Digests of the tokens in UTF-8, each with a byte at its end that UTF-8 does not have. Two others mark a special
    token, and the id of one that does not follow the token before it."""
    added, special = tokenizer.get_added_tokens_decoder(), _special(tokenizer)
    marked, expected = list(tokens), 0
    for place, index in enumerate(ids):
        if index != expected:
            marked[place] = f"{index}{_GAP}{marked[place]}"
        if index in special:
            marked[place] += _SPECIAL
        expected = index + 1
    size, last = ids[-1] + 1, set(ids[-MAX_MORE_TOKENS:])
    least = size
    while least > max(1, size - MAX_MORE_TOKENS) and (least - 1 not in last or least - 1 in added):
        least -= 1
    place = bisect_left(ids, least)
    rest = dict(zip(ids[place:], marked[place:], strict=True))
    decoder = [_drop_encoding_options(describe_steps(tokenizer)["decoder"])]
    digest = sha256(json.dumps(decoder, separators=(",", ":"), sort_keys=True).encode())
    digest.update(_end_each(marked[:place]))
    prints = [digest.hexdigest()[:32]]
    for index in range(least, size):
        digest.update(_end_each([rest[index]] if index in rest else []))
        prints.append(digest.hexdigest()[:32])
    return tuple(reversed(prints))


def _end_each(tokens: Sequence[str]) -> bytes:
    return "".join(f"{token}{_END}" for token in tokens).encode(errors="surrogateescape")


def common_size(*described: Mapping[str, Any]) -> int | None:
    """How many ids, from 0 on, mean the same to all parties, which described their engines; None: they do not fit."""
    size = min(int(party["vocab_size"]) for party in described)
    prints = set()
    for party in described:
        prefixes, place = party["vocabulary_prefixes"], int(party["vocab_size"]) - size
        prints.add(prefixes[place] if place < len(prefixes) else None)
    return size if len(prints) == 1 and None not in prints else None


def find_eos_token_ids(
    generation_config: Any, config: Any, info: TokenizerInfo, size: int
) -> tuple[int, ...]:
    """The ids (below `size`) that end an answer, ascending: the tokenizer's, and those of a generation configuration.

    One that transformers derived from the model's configuration, and that configuration itself, count only where there
    is nothing else, or where they are lists, which somebody wrote: their defaults name an id (2 for Llama) whatever the
    tokenizer means by it.
    """
    ids = _as_set(info.eos_token_id)
    if generation_config is not None and not getattr(generation_config, "_from_model_config", False):
        ids |= _as_set(generation_config.eos_token_id)
    configured = getattr(config, "eos_token_id", None)
    if not ids or isinstance(configured, list):
        ids |= _as_set(configured)
    return tuple(sorted(index for index in ids if 0 <= index < size))


class Detokenizer:
    """The decoding half of a tokenizer. It can be pickled."""

    def __init__(self, tokenizer: Tokenizer | str) -> None:
        """tokenizer: nobody else changes it; or its JSON."""
        if isinstance(tokenizer, str):
            try:
                tokenizer = Tokenizer.from_str(tokenizer)
            except Exception as error:  # the tokenizers package raises bare Exception
                raise GenerationError(
                    f"The serialised tokenizer is not the JSON of a fast tokenizer ({error}); "
                    "use Engine.tokenizer_json."
                ) from None
        self._tokenizer = tokenizer
        self._special = _special(tokenizer)

    @cached_property
    def _letters(self) -> Mapping[str, int]:
        """Character -> byte of a byte-level vocabulary; empty for another one."""
        is_byte_level = '"ByteLevel"' in json.dumps(describe_steps(self._tokenizer)["decoder"])
        return byte_level_alphabet() if is_byte_level else {}

    @cached_property
    def _added(self) -> Mapping[int, str]:
        added = self._tokenizer.get_added_tokens_decoder()
        return {index: token.content for index, token in added.items()}

    def spell(self, token: int) -> Spelling:
        """Name and bytes of one token; those of all tokens of an answer are its text."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._special:
            return Spelling(piece or "", None)
        if self._letters and token in self._added:
            raw = self._added[token].encode()
        elif self._letters and self._letters.keys() >= set(piece):
            raw = bytes(self._letters[character] for character in piece)
        elif match := BYTE_TOKEN.fullmatch(piece):
            raw = bytes.fromhex(match.group(1))
        else:
            raw = piece.replace(WORD_BEGIN, " ").encode()
        return Spelling(raw.decode(errors="backslashreplace"), tuple(raw))

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer's `tokens`, special tokens left out.

        Decoded as one sequence: a byte-level tokenizer keeps the space that leads the first word, a
        SentencePiece one drops it, as each does for any text of its own.
        """
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def shows(self, marker: str) -> bool:
        """Whether an answer's text has a marker that the model writes; special tokens have no text."""
        return marker in self.text(self._tokenizer.encode(marker, add_special_tokens=False).ids)

    def settled_text(self, tokens: Sequence[int]) -> str:
        """The beginning of `text(tokens)` that no further token can change.

        Byte-level decoders revise an unfinished character only. Byte fallback (`<0x0A>`) revises a whole run of
        byte tokens, which is valid or not as one; tokens without text do not end a run.
        """
        end = len(tokens)
        while end and self._may_continue_run(tokens[end - 1]):
            end -= 1
        return self.text(tokens[:end]).rstrip(_INCOMPLETE)

    def _may_continue_run(self, index: int) -> bool:
        token = self._tokenizer.id_to_token(index)
        return token is None or index in self._special or BYTE_TOKEN.fullmatch(token) is not None


@dataclass(frozen=True, slots=True)
class StopRule:
    """The rule by which an answer ends: travels with the query, and all parties apply it, to committed tokens only.

    eos_token_ids: tokens that end the answer. stop_strings: texts that end it. max_new_tokens: the most tokens.
    detokenizer: for stop strings, and whoever shows the text. ends_loops: whether `is_loop` ends it.
    """

    eos_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...] = ()
    max_new_tokens: int = 256
    detokenizer: Detokenizer | None = field(default=None, compare=False, repr=False)
    ends_loops: bool = False

    @classmethod
    def of(
        cls,
        eos_token_ids: tuple[int, ...],
        sampling: SamplingParams,
        detokenizer: Detokenizer | None,
        grammar: str = "",
    ) -> StopRule:
        """The rule of a query. At temperature 0 nothing but a grammar or penalties leads out of a loop, so without them
        it ends the answer."""
        leads_out = grammar or sampling.presence_penalty or sampling.frequency_penalty
        return cls(
            eos_token_ids,
            sampling.stop,
            sampling.max_new_tokens,
            ends_loops=sampling.temperature == 0 and not leads_out,
            detokenizer=detokenizer,
        )

    def find_reason(self, tokens: Sequence[int]) -> StopReason | None:
        """The reason why the answer ends with, or before the end of, the committed `tokens`; None before its end."""
        if any(token in self.eos_token_ids for token in tokens):
            return "eos"
        if self.stop_strings and self._find_stop(self.text_before_stop(tokens)) is not None:
            return "stop"
        if self.ends_loops and is_loop(tokens):
            return "loop"
        return "length" if len(tokens) >= self.max_new_tokens else None

    def text(self, tokens: Sequence[int]) -> str:
        """The answer that `tokens` spell, cut before the first end-of-sequence or stop string."""
        text = self.text_before_stop(tokens)
        return text[: self._find_stop(text)]

    def text_before_stop(self, tokens: Sequence[int]) -> str:
        """The text of the tokens before the first end-of-sequence, stop strings not yet cut off."""
        assert self.detokenizer is not None
        ends = (index for index, token in enumerate(tokens) if token in self.eos_token_ids)
        return self.detokenizer.text(tokens[: next(ends, len(tokens))])

    def num_held_back(self, text: str) -> int:
        """Length of the longest end of `text` that could still grow into a stop string."""
        longest = min(max(map(len, self.stop_strings), default=1) - 1, len(text))
        lengths = range(longest, 0, -1)
        return next((length for length in lengths if self._begins_stop(text[-length:])), 0)

    def _begins_stop(self, text: str) -> bool:
        return any(stop.startswith(text) for stop in self.stop_strings)

    def _find_stop(self, text: str) -> int | None:
        places = [index for stop in self.stop_strings if (index := text.find(stop)) >= 0]
        return min(places, default=None)


def is_loop(tokens: Sequence[int]) -> bool:
    """Whether `tokens` end with the same block, of any length, at least LOOP_REPEATS times and for LOOP_TOKENS tokens.

    The last repetition may be the beginning of the block. A function of the tokens alone, asked after each one.
    """
    for period in range(1, len(tokens) // LOOP_REPEATS + 1):
        span = max(LOOP_TOKENS, LOOP_REPEATS * period)
        if span > len(tokens):
            return False
        if all(tokens[-at] == tokens[-at - period] for at in range(1, span - period + 1)):
            return True
    return False


class TextStream:
    """Turns a growing list of tokens into pieces of text that add up to `StopRule.text`.

    A piece is released once no later token can change it: bytes that do not yet make a character and a possible
    beginning of a stop string are held back. The whole answer is decoded each time, since decoders treat the
    first word of a sequence differently from later ones (cost: microseconds for hundreds of tokens).
    """

    def __init__(self, rule: StopRule) -> None:
        assert rule.detokenizer is not None
        self._rule = rule
        self._detokenizer = rule.detokenizer
        self._tokens: list[int] = []
        self._shown = ""

    @property
    def num_tokens(self) -> int:
        """Tokens that were pushed."""
        return len(self._tokens)

    def copy(self) -> TextStream:
        """A stream that continues from here on its own."""
        other = TextStream(self._rule)
        other._tokens, other._shown = list(self._tokens), self._shown
        return other

    def push(self, tokens: Sequence[int]) -> str:
        """Append committed `tokens`; returns the text that is new and settled, often empty."""
        self._tokens += tokens
        if self._rule.find_reason(self._tokens) is not None:
            return self._show(self._rule.text(self._tokens))
        text = self._detokenizer.settled_text(self._tokens)
        return self._show(text[: len(text) - self._rule.num_held_back(text)])

    def finish(self) -> str:
        """The text that was held back, for an answer that ends before its stop rule says so."""
        return self._show(self._rule.text(self._tokens))

    def _show(self, text: str) -> str:
        if not text.startswith(self._shown):  # a decoder revised itself: what was shown stays
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new


def _drop_encoding_options(decoder: Any) -> Any:
    """A decoder's JSON without the options for encoding text, in which tokenizers of one family differ."""
    if isinstance(decoder, dict):
        return {
            key: _drop_encoding_options(value)
            for key, value in decoder.items()
            if key not in _ENCODING_OPTIONS
        }
    return [_drop_encoding_options(step) for step in decoder] if isinstance(decoder, list) else decoder


def _as_set(ids: int | list[int] | None) -> set[int]:
    return set() if ids is None else {ids} if isinstance(ids, int) else set(ids)


# ---- What two tokenizers have and have not in common, in words ---------------------------------------------


def describe_tokenizer(tokenizer: Tokenizer, info: TokenizerInfo) -> str:
    """Its family and size, as in "Qwen2 tokenizer, 151,665 tokens"."""
    kind = info.family or type(tokenizer.model).__name__
    return f"{kind} tokenizer, {tokenizer.get_vocab_size(with_added_tokens=True):,} tokens"


def find_difference(first: Tokenizer, second: Tokenizer, names: tuple[str, str]) -> str | None:
    """The reason why two models with these tokenizers cannot work together, in part of a sentence; None if they can."""
    vocabularies = [Vocabulary.of(tokenizer) for tokenizer in (first, second)]
    described = [{"vocab_size": each.size, "vocabulary_prefixes": each.prefixes} for each in vocabularies]
    if common_size(*described) is not None:
        return None
    return (
        _in_tokens(first, second)
        or find_extra(first, second, names)
        or _in_special_tokens(first, second, names)
        or f"they turn tokens into text differently ({_decoder(first)} and {_decoder(second)})"
    )


def _in_tokens(first: Tokenizer, second: Tokenizer) -> str | None:
    tokens, others = _by_id(first), _by_id(second)
    shared = sorted(set(tokens) & set(others))
    differing = [index for index in shared if tokens[index] != others[index]]
    if not differing:
        return None
    index = differing[0]
    return (
        f"they differ at id {index} ({tokens[index]!r} and {others[index]!r})"
        + f" and at {len(differing) - 1:,} other ids" * (len(differing) > 1)
    )


def find_extra(first: Tokenizer, second: Tokenizer, names: tuple[str, str]) -> str | None:
    """The tokens of two models that work together which only one has, in part of a sentence; None if there is none."""
    tokens, others = _by_id(first), _by_id(second)
    for one, other, name in ((tokens, others, names[0]), (others, tokens, names[1])):
        if extra := sorted(set(one) - set(other)):
            return f"only the {name}'s has id {extra[0]} ({one[extra[0]]!r})" + (
                f" and {len(extra) - 1:,} more" * (len(extra) > 1)
            )
    return None


def _in_special_tokens(first: Tokenizer, second: Tokenizer, names: tuple[str, str]) -> str | None:
    special, others = _special(first), _special(second)
    for one, other, name in ((special, others, names[0]), (others, special, names[1])):
        if extra := sorted(set(one) - set(other)):
            return f"id {extra[0]} ({one[extra[0]]!r}) is a special token for the {name} alone"
    return None


def _by_id(tokenizer: Tokenizer) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}


def _special(tokenizer: Tokenizer) -> dict[int, str]:
    added = tokenizer.get_added_tokens_decoder()
    return {index: token.content for index, token in added.items() if token.special}


def _decoder(tokenizer: Tokenizer) -> str:
    decoder = describe_steps(tokenizer)["decoder"] or {"type": "none"}
    steps = decoder.get("decoders", [decoder])
    return ", ".join(str(step["type"]) for step in steps)
