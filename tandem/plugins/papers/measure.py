"""The profiler's offline stage: how long one party's model takes per token, over the length of its context.

A session of dummy documents is decoded to the end of the context several times, and a line is fitted to the decode
times (DRAGON 5.2). Works on a loaded engine with the caller's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem.errors import TandemError
from tandem.profiler.profiles import OfflineProfile
from tandem.topology import Party

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.engine.drafter import Drafter
    from tandem.engine.engine import Engine

QUERY = "What is it?"
"""Every row ends with a question; the paper's dummy rows have none, so it is short."""

NUM_WARM_UP = 8
"""Tokens decoded before the first that counts."""

LONGEST = 2048
"""Default limit for models with a longer context, or without one, in tokens."""

DraftToken = Callable[[Any, int], int]
"""(logits [rows, vocab], step) -> token: what a decoder does after each forward pass."""


def measure(
    engine: Engine,
    *,
    num_documents: int,
    chunk_tokens: int,
    max_new: int,
    draft: DraftToken,
    clock: Callable[[], float],
    limit: int | None = None,
    runs: int = 3,
    progress: Callable[[int, int], None] = lambda done, total: None,
    seed: int = 0,
) -> OfflineProfile:
    """Decode token by token from dummy documents to the full context, `runs` times; DRAGON 5.2, offline stage.

    num_documents: rows; 0 is one row without a document. chunk_tokens: length of a dummy document. max_new: room
    reserved for an answer, as in a real session; documents too long for that are cut. clock: monotonic seconds. limit:
    context length to stop at, if below the model's (default: LONGEST). progress: called with (tokens decoded, tokens in
    total). Raises TandemError if fewer than two tokens fit.
    """
    if runs < 1:
        raise TandemError(f"A profile needs at least 1 run, got {runs}; raise runs.")
    documents = dummy_documents(engine, num_documents, chunk_tokens, seed)
    prompt_tokens, rows = _measure_prompt(engine, documents, max_new)
    steps = _end(engine, limit) - prompt_tokens
    if steps < 2:
        raise TandemError(
            f"A profile needs at least 2 tokens, but the context ends at {prompt_tokens + steps} and the prompt "
            f"has {prompt_tokens}; raise the limit or use a model with a longer context."
        )
    _run(engine, documents, min(NUM_WARM_UP, steps), draft, clock, lambda: None)
    decoded = count(1)
    times = [
        _run(engine, documents, steps, draft, clock, lambda: progress(next(decoded), runs * steps))
        for _ in range(runs)
    ]
    return OfflineProfile(
        prompt_tokens=prompt_tokens,
        rows=rows,
        runs=runs,
        lengths=tuple(range(prompt_tokens + 1, prompt_tokens + steps + 1)),
        seconds=tuple(median(step) for step in zip(*times, strict=True)),
    )


def measure_drafting(drafter: Drafter, party: Party) -> DraftToken:
    """The decoder's work after each forward pass, so that a profile times a whole draft."""
    from tandem.engine.drafter import DraftPlace

    def draft(logits: Any, step: int) -> int:
        token = drafter.draft(
            logits, [0.0] * logits.shape[0], DraftPlace(seed=0, step=step, party=party)
        ).token
        assert token is not None, "a draft has one"
        return token

    return draft


def row_tokens(engine: Engine, texts: Sequence[str], num_documents: int) -> int:
    """Expected length in tokens of a batch of `num_documents` chunks drawn from `texts`.

    A batch is as long as its longest row, which on average has rank n / (n + 1) among n.
    """
    tokenizer = _tokenizer(engine)
    lengths = sorted(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    rank = ceil(len(lengths) * num_documents / (num_documents + 1))
    return lengths[max(0, rank - 1)] if lengths else 0


def dummy_documents(engine: Engine, count: int, num_tokens: int, seed: int) -> list[str]:
    """`count` texts of random tokens, each of about `num_tokens`: a cut token may merge with its neighbour."""
    tokenizer, rng = _tokenizer(engine), np.random.default_rng(seed)
    return [_dummy(engine, tokenizer, num_tokens, rng) for _ in range(count)]


def _dummy(engine: Engine, tokenizer: Tokenizer, num_tokens: int, rng: np.random.Generator) -> str:
    text = ""
    for _ in range(64):  # special tokens have no text, so one round may be too short
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding.ids) >= num_tokens:
            return text[: encoding.offsets[num_tokens - 1][1]] if num_tokens else ""
        text += engine.detokenizer.text(
            [int(token) for token in rng.integers(engine.vocab_size, size=num_tokens)]
        )
    return text


def _tokenizer(engine: Engine) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(engine.tokenizer_json)


def _measure_prompt(engine: Engine, documents: Sequence[str], max_new: int) -> tuple[int, int]:
    opened = engine.open("profile", QUERY, documents, max_new)
    engine.close("profile")
    return max(map(len, opened.document_tokens)) + len(opened.query_tokens), opened.num_rows


def _end(engine: Engine, limit: int | None) -> int:
    length = LONGEST if limit is None else limit
    return length if engine.context_length is None else min(length, engine.context_length)


def _run(
    engine: Engine,
    documents: Sequence[str],
    steps: int,
    draft: DraftToken,
    clock: Callable[[], float],
    on_step: Callable[[], None],
) -> list[float]:
    """Seconds of each of `steps` drafts after the first, which comes with the prefill."""
    engine.open("profile", QUERY, documents, steps)
    seconds = []
    try:
        tokens = [draft(engine.next_logits("profile", []), 0)]
        for step in range(1, steps + 1):
            started_s = clock()
            # the real decoder checks before each layer whether the pass is still wanted, so this is timed too
            logits = engine.next_logits("profile", tokens, is_stale=lambda: False)
            tokens.append(draft(logits, step))
            seconds.append(clock() - started_s)
            on_step()
    finally:
        engine.close("profile")
    return seconds
