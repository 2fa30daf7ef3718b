"""Does a row get the same bits whatever else is computed with it?

Small random models of nine families, in float32 and bfloat16, with 1 and 2 threads. A batch: one to eight sessions of
64 rows in all at most, with documents of unequal length, that are fed an answer in random blocks, together and alone,
with rollbacks, in caches of random capacity. Rows drawn from it are computed again, each alone in one go; all logits
must be equal. The control feeds blocks to a cache that grows, as transformers does by default, and must differ from
token by token.

Prediction: 0 differences of 1,000 batches; the control differs for every family in float32.

Expected run time: 8 minutes on two idle cores; `--smoke` 20 s.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from benchmarks._common import finish, new_parser
from tandem.engine.engine import make_rows
from tandem.engine.kv import DocumentCaches
from tandem.engine.prompt import Prompt
from tandem.engine.session import Session, compute
from tandem.engine.torch.batch import BatchModel, PreemptibleModel, find_fault
from tandem.engine.torch.model import decoder_layers

NUM_BATCHES = 1000
VOCAB, CONTEXT, MAX_ROWS, MAX_ANSWER = 1000, 512, 64, 16
SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
WIDE = {**SMALL, "intermediate_size": 688}
SLIDING = {"sliding_window": 24}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", WIDE),
    "qwen2": ("qwen2", {**WIDE, "num_key_value_heads": 2}),
    "qwen2-sliding": (
        "qwen2",
        {**WIDE, **SLIDING, "num_key_value_heads": 2, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "gpt-neox": ("gpt_neox", WIDE),
    "phi": ("phi", WIDE),
    "opt": ("opt", {**SMALL, "ffn_dim": 688, "word_embed_proj_dim": 256}),
    "gemma": ("gemma", {**WIDE, "num_key_value_heads": 1, "head_dim": 64}),
    "gemma2": ("gemma2", {**WIDE, **SLIDING, "num_key_value_heads": 2, "head_dim": 64}),
    "mistral": ("mistral", {**WIDE, **SLIDING, "num_key_value_heads": 2}),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def random_model(family: str, dtype: str) -> Any:
    """A model with random weights; nothing is read from the disk."""
    name, sizes = FAMILIES[family]
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, vocab_size=VOCAB, pad_token_id=0, **sizes)
    return AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()


class Row(NamedTuple):
    """One row of a batch and what it should give."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    logits: torch.Tensor  # [wanted, vocab]


class Sessions:
    """A model and the sessions of one batch."""

    def __init__(self, model: Any) -> None:
        self.batch = BatchModel(PreemptibleModel(model, decoder_layers(model)))
        self.fault = find_fault(self.batch, model, VOCAB, CONTEXT)

    def open(self, rows: list[tuple[int, ...]], question: tuple[int, ...], capacity: int) -> Session:
        """A session of these documents and this question."""
        prompt = Prompt(tuple(rows), question, tuple(range(len(rows))), (), ())
        return Session(make_rows(prompt), self.batch, DocumentCaches(), VOCAB, num_new_tokens=capacity)

    def feed(self, *feeds: tuple[Session, tuple[int, ...], int]) -> None:
        """One batch."""
        with torch.inference_mode():
            for session, tokens, num_logits in feeds:
                session.want(tokens, num_logits)
            compute(self.batch, [session for session, _, _ in feeds])

    def random_batch(self, draw: random.Random) -> Iterator[Row]:
        """Some sessions fed in a random manner; the rows to be compared."""
        left = draw.randint(1, MAX_ROWS)
        cases = []
        while left > 0 and len(cases) < 8:
            num_rows = draw.randint(1, min(left, draw.choice([1, 4, 16, MAX_ROWS])))
            left -= num_rows
            longest = draw.choice([6, 40, 40, 300]) if num_rows <= 4 else 40
            rows = [_tokens(draw, draw.randint(1, longest)) for _ in range(num_rows)]
            question = _tokens(draw, draw.randint(1, 12))
            session = self.open(rows, question, draw.choice([0, 0, 64, 200]))
            cases.append((session, rows, question, _tokens(draw, draw.randint(1, MAX_ANSWER))))
        for _ in range(draw.randint(0, 5)):
            some = draw.sample(cases, draw.randint(1, len(cases)))
            self.feed(*(_random_feed(draw, session, answer) for session, _, _, answer in some))
        wanted = [draw.randint(1, len(answer) + 1) for _, _, _, answer in cases]
        self.feed(*((case[0], case[3], count) for case, count in zip(cases, wanted, strict=True)))
        for _ in range(3):
            session, rows, question, answer = draw.choice(cases)
            index = draw.randrange(len(rows))
            yield Row((*rows[index], *question), answer, session.logits[index].clone())

    def alone(self, row: Row) -> torch.Tensor:
        """The same row by itself, in one go."""
        session = self.open([row.prompt[:-1]], row.prompt[-1:], 0)
        self.feed((session, row.answer, len(row.logits)))
        return session.logits[0]


def _tokens(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.randrange(1, VOCAB) for _ in range(count))


def _random_feed(
    draw: random.Random, session: Session, answer: tuple[int, ...]
) -> tuple[Session, tuple[int, ...], int]:
    """Part of the answer, or something that will be rolled back; logits of some positions."""
    tokens = answer[: draw.randint(0, len(answer))]
    if draw.random() < 0.4:
        tokens += _tokens(draw, draw.randint(1, 5))
    return session, tokens, draw.randint(1, min(3, len(tokens) + 1))


def growing_differs(model: Any, draw: random.Random) -> bool:
    """The control: whether blocks in a growing cache differ from token by token in any bit."""
    tokens = _tokens(draw, 32)

    def logits(block: int) -> torch.Tensor:
        cache, parts = DynamicCache(), []
        with torch.inference_mode():
            for at in range(0, len(tokens), block):
                ids = torch.tensor([tokens[at : at + block]])
                parts.append(model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0])
        return torch.cat(parts)

    return not torch.equal(logits(1), logits(8))


def count_differences(family: str, dtype: str, num_batches: int, seed: int) -> tuple[int, int, str | None]:
    """Of so many random batches: rows compared, rows that differ; and the self-check's fault, if any."""
    sessions = Sessions(random_model(family, dtype))
    if sessions.fault is not None:
        return 0, 0, sessions.fault
    draw, compared, different = random.Random(seed), 0, 0
    for _ in range(num_batches):
        for row in sessions.random_batch(draw):
            compared += 1
            different += not torch.equal(sessions.alone(row), row.logits)
    return compared, different, None


def main() -> None:
    """All families, precisions and numbers of threads."""
    parser = new_parser(__doc__)
    parser.add_argument("--smoke", action="store_true", help="one batch in each setting, one thread")
    parser.add_argument("--batches", type=int, default=NUM_BATCHES)
    arguments = parser.parse_args()
    logging.disable()
    print("prediction: 0 rows differ; the growing cache differs for every family in float32")
    threads = (1,) if arguments.smoke else (1, 2)
    settings = [(count, family, dtype) for count in threads for family in FAMILIES for dtype in DTYPES]
    each = 1 if arguments.smoke else -(-arguments.batches // len(settings))
    num_rows = num_different = num_faults = num_batches = 0
    controls = []
    for seed, (num_threads, family, dtype) in enumerate(settings):
        torch.set_num_threads(num_threads)
        compared, different, fault = count_differences(family, dtype, each, seed)
        num_rows, num_different, num_faults = (
            num_rows + compared,
            num_different + different,
            num_faults + bool(fault),
        )
        num_batches += 0 if fault else each
        print(
            f"{family} {dtype} {num_threads} threads: {different} of {compared} rows differ {fault or ''}",
            flush=True,
        )
        if dtype == "float32" and num_threads == 1:
            controls.append(growing_differs(random_model(family, dtype), random.Random(0)))
    print(f"growing cache: differs for {sum(controls)} of {len(controls)} families")
    finish(
        {
            "batches": num_batches,
            "rows": num_rows,
            "different": num_different,
            "faults": num_faults,
            "controls_that_differ": [sum(controls), len(controls)],
        }
    )
    sys.exit(1 if num_different or num_faults or not all(controls) else 0)


if __name__ == "__main__":
    main()
