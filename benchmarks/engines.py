"""What a person's own model costs per token: bare llama.cpp, Tandem on llama.cpp and on PyTorch, and transformers.

The same model, question, documents, rows and threads for all. Bare llama.cpp decodes as many sequences as Tandem has
rows, each in passes of its own, mixes nothing and takes the likeliest token of the first. transformers generates from
one row, as it has no others. Tandem is the device by itself, greedy, in one process. They take turns.

Targets: Tandem on llama.cpp at least 0.9 of the tokens per second of bare llama.cpp; several questions at once have the
tokens of one at a time. Prediction: what Tandem adds to a token is 0.4 ms for the mixture of rows of 50,000 tokens (1.2
of 152,000) and 0.65 ms of event loop, so 0.90 at 9 ms per pass and 0.92 at 23 ms. Expected run time: 5 minutes;
`--smoke` 1 minute.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem import Config, Tandem
from tandem.actors.loading import load_engine
from tandem.corpora import example_questions, model_path
from tandem.plugins.gguf.header import find_file
from tandem.plugins.llama.library import library, load_model

TARGET = 0.9
NUM_TOKENS = 48
ROUNDS = 5


def settings(model: str, engine: str, rows: int) -> Config:
    """Of a device that answers alone, and a cloud that is only there; both have the model."""
    own = [
        f'{party}.{name}="{value}"'
        for party in ("device", "cloud")
        for name, value in (("model", model), ("engine", engine))
    ]
    return Config.load(
        None, (*own, "cluster.runtime=inline", f"device.num_documents={rows}", "device.kv_store=memory")
    )


class Bare:
    """llama.cpp itself, with the rows that Tandem would have."""

    def __init__(self, file: Path, rows: list[list[int]]) -> None:
        self._lib, self._rows = library(""), rows
        self._model = load_model(file, 0, None)
        params = self._lib.llama_context_default_params()
        longest = max(map(len, rows)) + NUM_TOKENS
        params.n_ctx, params.n_seq_max = len(rows) * -(-longest // 256) * 256, len(rows)
        params.n_threads = params.n_threads_batch = 1
        self._context = self._lib.llama_init_from_model(self._model.pointer, params)
        self._batch = self._lib.llama_batch_init(2048, 0, 1)

    def paces_s(self) -> list[float]:
        """Seconds of each token after the first."""
        memory = self._lib.llama_get_memory(self._context)
        for row, tokens in reversed(list(enumerate(self._rows))):
            self._lib.llama_memory_seq_rm(memory, row, -1, -1)
            logits = self._decode(row, 0, tokens)
        times = []
        for step in range(NUM_TOKENS):
            started_s = time.perf_counter()
            token = int(logits.argmax())
            for row, tokens in reversed(list(enumerate(self._rows))):
                logits = self._decode(row, len(tokens) + step, [token])
            times.append(time.perf_counter() - started_s)
        return times[1:]

    def _decode(self, row: int, start: int, tokens: list[int]) -> Any:
        """The logits after these tokens, which are read only until the next pass."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0] = (
                token,
                start + at,
                1,
                row,
            )
            batch.logits[at] = at == len(tokens) - 1
        assert self._lib.llama_decode(self._context, batch) == 0
        logits = self._lib.llama_get_logits_ith(self._context, len(tokens) - 1)
        return np.ctypeslib.as_array(logits, shape=(self._model.vocab_size,))


class Transformers:
    """The model as transformers generates with it, from the first row."""

    def __init__(self, model: str, row: list[int]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from tandem.plugins.torch.model import convert

        torch.set_num_threads(1)
        auto: Any = AutoModelForCausalLM
        self._model = auto.from_pretrained(convert(model, "float32"), dtype=torch.float32).eval()
        self._ids = torch.tensor([row])

    def paces_s(self) -> list[float]:
        """Seconds of each token after the first."""
        times: list[float] = []

        def note(ids: Any, scores: Any, **_: Any) -> Any:
            times.append(time.perf_counter())
            return scores

        self._model.generate(
            self._ids,
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
            logits_processor=[note],
        )
        return [after - before for before, after in itertools.pairwise(times)]


def tandem_paces_s(rag: Tandem, question: str) -> list[float]:
    """Seconds of each token after the first."""
    answer = rag.query(question, only="device", temperature=0, max_new_tokens=NUM_TOKENS)
    times = [token.committed_s for token in answer.tokens]
    return [after - before for before, after in itertools.pairwise(times)]


async def ask_together(rag: Tandem, questions: list[str]) -> list[list[int]]:
    """The tokens of answers to questions that are asked at once."""
    asked = [
        rag.aquery(question, only="device", seed=place, max_new_tokens=NUM_TOKENS)
        for place, question in enumerate(questions)
    ]
    return [[token.token for token in answer.tokens] for answer in await asyncio.gather(*asked)]


def at_once(rag: Tandem, questions: list[str]) -> dict[str, Any]:
    """Tokens per second of questions one by one and together, and whether the tokens are the same."""
    started_s = time.perf_counter()
    apart = [
        [
            token.token
            for token in rag.query(question, only="device", seed=place, max_new_tokens=NUM_TOKENS).tokens
        ]
        for place, question in enumerate(questions)
    ]
    between_s = time.perf_counter()
    together = asyncio.run(ask_together(rag, questions))
    ended_s = time.perf_counter()
    count = sum(map(len, apart))
    return {
        "questions": len(questions),
        "tokens_per_s_apart": count / (between_s - started_s),
        "tokens_per_s_together": count / (ended_s - between_s),
        "equal": apart == together,
    }


def main() -> int:
    """Measure; 1 if answers at once had other tokens than one at a time."""
    parser = new_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="GGUF file or a name of one (default: smollm2)")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[1, 2, 4], help="of the device (default: 1 2 4)"
    )
    parser.add_argument("--without-torch", action="store_true", help="leave out PyTorch and transformers")
    parser.add_argument("--smoke", action="store_true", help="one round of two rows")
    options = parser.parse_args()
    rounds, all_rows = (1, [2]) if options.smoke else (ROUNDS, options.rows)
    path = model_path(options.model)
    file = find_file(path)
    if file is None:
        parser.error(f"{options.model} is no GGUF file")
    question = example_questions("household")[0]
    lines = []
    for rows in all_rows:
        with ExitStack() as stack:
            config = settings(options.model, "llama", rows)
            rag = stack.enter_context(Tandem.launch(config))
            documents = [
                source.text for source in rag.query(question, only="device", max_new_tokens=1).sources
            ]
            prompt = load_engine(config.device, num_threads=1).build_prompt(
                question, documents[:rows], NUM_TOKENS
            )
            tokens = [[*document, *prompt.query_tokens] for document in prompt.document_tokens]
            measured: dict[str, Callable[[], list[float]]] = {
                "llama.cpp": Bare(file, tokens).paces_s,
                "Tandem on llama.cpp": lambda rag=rag: tandem_paces_s(rag, question),
            }
            if not options.without_torch:
                other = stack.enter_context(Tandem.launch(settings(options.model, "torch", rows)))
                measured["Tandem on PyTorch"] = lambda rag=other: tandem_paces_s(rag, question)
                measured["transformers, one row"] = Transformers(path, tokens[0]).paces_s
            paces: dict[str, list[float]] = {name: [] for name in measured}
            for _ in range(rounds):
                for name, measure in measured.items():
                    paces[name].append(statistics.median(measure()))
            bare = statistics.median(paces["llama.cpp"])
            for name, found in paces.items():
                pace = statistics.median(found)
                spread = f"{1e3 * min(found):.1f} to {1e3 * max(found):.1f}"
                print(
                    f"{len(tokens)} rows  {name:<22} {1e3 * pace:6.1f} ms ({spread})  {1 / pace:6.1f} tokens/s"
                    f"  {bare / pace:5.2f}"
                )
                lines.append({"rows": len(tokens), "system": name, "ms": 1e3 * pace, "of_bare": bare / pace})
            together = at_once(rag, (example_questions("household") * 4)[: 4 if options.smoke else 16])
            print(json.dumps(together))
    finish({"model": options.model, "lines": lines, "at_once": together, "target": TARGET})
    return 0 if together["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
