"""What a query asks of its answer's tokens one by one: penalties, biases, a grammar.

Each is a function of the answer so far, and each party applies it to its own distribution before anything is drawn or
sent. So every rule and mode stays exact, and nothing crosses the link but the query itself: the target is a mixture of
distributions none of which gives a forbidden token any probability.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tandem.config.sampling import SamplingParams
from tandem.engine.kv import common_length
from tandem.errors import GenerationError, QueryError, explain_missing, first_line
from tandem.tools import JSON_SPACE

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Floats = NDArray[np.float64]
EXTREME = 1e37
"""Temperatures beyond it, or below its inverse, count as these: float32 would round them to infinity and 0, and no
distribution would be another."""


def divisor(temperature: float) -> float:
    """What logits are divided by; 1 at temperature 0, where only the most probable token matters."""
    return min(max(temperature, 1 / EXTREME), EXTREME) if temperature else 1.0


class Shaper:
    """What one query asks of the tokens of one party. Not safe for threads."""

    def __init__(
        self, sampling: SamplingParams, biases: Mapping[int, float], grammar: Grammar | None = None
    ) -> None:
        """biases: what is added to the logits of tokens."""
        self._temperature = divisor(sampling.temperature)
        self._presence, self._frequency = sampling.presence_penalty, sampling.frequency_penalty
        self._biases = biases
        self._grammar = grammar

    def shape(self, dense: Floats, prefix: Sequence[int]) -> Floats:
        """A party's distribution [vocab] as the query wants it after these tokens of the answer; the same array where
        it asks for nothing.

        To the logit of each token its bias is added; a token that the answer has n times loses presence_penalty if
        n > 0, and n times frequency_penalty (as OpenAI defines them). What the grammar forbids gets no probability;
        where all that it allows has none, each such token has the same.
        """
        if shifts := self._shifts(prefix, dense.size):
            ids = np.fromiter(shifts, np.int64, len(shifts))
            with np.errstate(divide="ignore"):
                logits = np.log(dense)
            logits[ids] += np.fromiter(shifts.values(), np.float64, len(shifts)) / self._temperature
            dense = np.exp(logits - logits.max())
            dense /= dense.sum()
        if self._grammar is None:
            return dense
        is_allowed = self._grammar.allowed(prefix)[: dense.size]
        kept = np.where(is_allowed, dense, 0.0)
        total = kept.sum()
        return np.asarray(kept / total if total else is_allowed / is_allowed.sum())

    def _shifts(self, prefix: Sequence[int], vocab_size: int) -> dict[int, float]:
        """What is added to logits, by token."""
        shifts = {token: bias for token, bias in self._biases.items() if token < vocab_size}
        if self._presence or self._frequency:
            for token, count in Counter(prefix).items():
                shifts[token] = shifts.get(token, 0.0) - self._presence - count * self._frequency
        return shifts


class Grammar:
    """The tokens that may come next, by llguidance: a JSON schema, a regular expression or a Lark grammar."""

    def __init__(self, tokenizer: LLTokenizer, grammar: str) -> None:
        """grammar: as of a query. Raises QueryError where it is none."""
        from llguidance import LLMatcher

        self._matcher = LLMatcher(tokenizer, compile_grammar(grammar), log_level=0)
        if problem := self._matcher.get_error():
            raise _no_grammar(problem)
        self._ends = [token for token in tokenizer.eos_tokens if token < tokenizer.vocab_size]
        self._vocab_size = tokenizer.vocab_size
        self._consumed: list[int] = []

    def allowed(self, prefix: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each token may follow, [vocab]; after what no answer may be, an end alone."""
        shared = common_length(self._consumed, prefix)
        if shared < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - shared)
            del self._consumed[shared:]
        rest = list(prefix[shared:])
        self._consumed += rest[: self._matcher.try_consume_tokens(rest)]
        if len(self._consumed) == len(prefix) and not self._matcher.is_error():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            is_allowed = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
            if is_allowed.any():
                return is_allowed
        is_end = np.zeros(self._vocab_size, dtype=bool)
        is_end[self._ends] = True
        return is_end


def check_grammar(grammar: str) -> None:
    """Raises QueryError where llguidance cannot follow it, or is not installed."""
    with explain_missing("A grammar for answers", QueryError):
        from llguidance import LLMatcher

    if problem := LLMatcher.validate_grammar(compile_grammar(grammar)):
        raise _no_grammar(problem)


def compile_grammar(grammar: str) -> str:
    """llguidance's form of a query's grammar. Raises QueryError."""
    from llguidance import LLMatcher

    make: Mapping[str, Any] = {
        "json_schema": lambda schema: LLMatcher.grammar_from_json_schema(schema, overrides=JSON_SPACE),
        "regex": LLMatcher.grammar_from_regex,
        "lark": LLMatcher.grammar_from_lark,
    }
    try:
        ((kind, value),) = json.loads(grammar).items()
        compiled: str = make[kind](value)
        return compiled
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:  # a peer may send anything
        raise _no_grammar(first_line(error)) from None


def _no_grammar(problem: str) -> QueryError:
    reason = problem.strip().splitlines()[0].rstrip(".")
    return QueryError(
        f"The grammar of the answer cannot be followed ({reason:.300}); correct it, or leave it out.",
        option="grammar",
    )


@lru_cache(maxsize=4)
def grammar_tokenizer(tokenizer_json: str, vocab_size: int, ends: tuple[int, ...]) -> LLTokenizer:
    """A model's tokens as llguidance knows them; half a second for 50,000. ends: tokens that end an answer.

    Raises GenerationError where it takes texts apart in another way than the model's tokenizer.
    """
    from llguidance import LLTokenizer

    # What a grammar leaves no choice of is tokenised as the tokenizer would, but not as if a text began there.
    within = json.loads(tokenizer_json, object_hook=_without_prefix_space)
    try:
        tokenizer = LLTokenizer(json.dumps(within), n_vocab=vocab_size, eos_token=list(ends))
        is_faithful = all(
            tokenizer.decode_bytes(tokenizer.tokenize_str(text)).decode() == text for text in _SAMPLES
        )
    except ValueError as error:
        raise _no_tokenizer(first_line(error)) from None
    if not is_faithful:
        raise _no_tokenizer("llguidance takes texts apart otherwise")
    return tokenizer


_SAMPLES = ("yes", " yes", '{"a": 1}', "\n  b", "Zürich 3")


def _without_prefix_space(value: dict[str, Any]) -> dict[str, Any]:
    return value | {"add_prefix_space": False} if "add_prefix_space" in value else value


def _no_tokenizer(reason: str) -> GenerationError:
    return GenerationError(
        f"The model's tokenizer cannot be used with a grammar ({reason:.200}); ask without one."
    )


def make_shaper(
    sampling: SamplingParams,
    biases: Mapping[int, float],
    grammar: str,
    tokenizer_json: str,
    vocab_size: int,
    ends: tuple[int, ...],
) -> Shaper | None:
    """What a query asks of a party's tokens; None: nothing. ends: tokens that end an answer.

    Raises QueryError where the grammar cannot be followed, GenerationError where it cannot be with this model.
    """
    if not (biases or grammar or sampling.presence_penalty or sampling.frequency_penalty):
        return None
    if not grammar:
        return Shaper(sampling, biases)
    with explain_missing("A grammar for answers", GenerationError):
        tokenizer = grammar_tokenizer(tokenizer_json, vocab_size, ends)
    return Shaper(sampling, biases, Grammar(tokenizer, grammar))
