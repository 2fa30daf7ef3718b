"""What a pass of llama.cpp costs by its shape: rows together or one by one, tokens of a proposal, blocks of a prompt.

Each file on the command line (default: SmolLM2), one row or more behind 256 tokens of context; medians of processor and
clock time in milliseconds. It shows why Tandem computes one row per pass, and answers token by token: together pays
where the time per pass is that of reading the weights, as on a GPU.

Prediction: on a processor without accelerator two rows together take longer than two passes; blocks from 64 tokens on
cost the same per token. Expected run time: 1 minute per file on an idle core; `--smoke` 10 s.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.corpora import model_path
from tandem.plugins.llama.library import load_model

CONTEXT, LARGEST, MAX_ROWS = 256, 512, 16
SHAPES = (
    *((rows, 1, 1) for rows in (1, 2, 4, 8, 16)),
    *((1, count, count) for count in (2, 4, 8)),
    *((1, count, 0) for count in (16, 32, 64, 128, 256)),
)
"""Rows, tokens of each, of how many the logits are wanted."""


class Passes:
    """A context with rows that have some tokens already."""

    def __init__(self, file: Path, num_threads: int) -> None:
        self._model = model = load_model(file)
        self._lib = lib = model.lib
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = MAX_ROWS * (CONTEXT + LARGEST), MAX_ROWS
        params.n_batch = params.n_ubatch = LARGEST
        params.n_outputs_max_per_seq = 0
        params.n_threads = params.n_threads_batch = num_threads
        self._context = lib.llama_init_from_model(model.pointer, params)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(LARGEST, 0, 1)
        self._draw = np.random.default_rng(1)
        for row in range(MAX_ROWS):
            self.run([row], 0, CONTEXT, 0)

    def run(self, rows: list[int], start: int, count: int, wanted: int) -> None:
        """One pass of so many tokens of each row."""
        batch = self._batch
        batch.n_tokens = 0
        for row in rows:
            for number in range(count):
                at = batch.n_tokens
                batch.token[at], batch.pos[at] = int(self._draw.integers(1000)), start + number
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
                batch.logits[at] = number >= count - wanted
                batch.n_tokens += 1
        assert self._lib.llama_decode(self._context, batch) == 0

    def measure(self, num_rows: int, count: int, wanted: int, repeats: int) -> tuple[float, float]:
        """Milliseconds of the processor and of the clock."""
        times: list[tuple[float, float]] = []
        for _ in range(repeats):
            began = time.process_time(), time.perf_counter()
            self.run([*range(num_rows)], CONTEXT, count, wanted)
            times.append((time.process_time() - began[0], time.perf_counter() - began[1]))
            for row in range(num_rows):
                self._lib.llama_memory_seq_rm(self._memory, row, CONTEXT, -1)
        processor, clock = (statistics.median(kind) * 1e3 for kind in zip(*times, strict=True))
        return processor, clock


def main() -> None:
    """All files."""
    parser = new_parser(__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE.gguf")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="each shape once")
    arguments = parser.parse_args()
    print(
        "prediction: two rows together take longer than two passes; blocks from 64 tokens on cost the same per token"
    )
    results: list[dict[str, Any]] = []
    for name in arguments.files or ["smollm2"]:
        passes = Passes(Path(model_path(name)), arguments.threads)
        for rows, count, wanted in SHAPES:
            processor, clock = passes.measure(
                rows, count, wanted, 1 if arguments.smoke else max(3, 9 // rows)
            )
            each = processor / rows / count
            print(
                f"{Path(name).name:44} {rows:2} rows of {count:3} tokens: {processor:7.1f} ms of the processor, "
                f"{clock:7.1f} of the clock, {each:6.2f} per token",
                flush=True,
            )
            results.append(
                {"file": name, "rows": rows, "tokens": count, "processor_ms": processor, "clock_ms": clock}
            )
    finish({"threads": arguments.threads, "results": results})


if __name__ == "__main__":
    main()
