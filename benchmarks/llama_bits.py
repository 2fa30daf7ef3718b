"""Does llama.cpp give a row of a GGUF file the same bits whatever else is computed with it?

Each file on the command line is tried with 1 and 2 threads, in random batches (`benchmarks/_random_batches.py`) of 1 to
16 rows, and in a twentieth as many walks of 40 places along an answer. The control feeds single rows in pieces of any
shape, and differs in most quantisations. Without files: small ones with random weights, of five kinds and of each
family with a recurrent state.

Prediction: 0 rows differ; of F16 some of the control do.

Expected run time: 1,000 batches of SmolLM2-135M in Q4_0 take 30 minutes on two idle cores; `--smoke` 10 s.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from benchmarks._random_batches import count_differences, count_differences_along
from tandem.engine.kv import MemoryStore
from tandem.engine.port import LoadOptions
from tandem.plugins.llama.runner import LlamaRunner
from tests.tiny_gguf import RECURRENT, write_gguf

NUM_BATCHES, MAX_ROWS = 1000, 16
KINDS = ("Q4_0", "Q4_1", "Q8_0", "F16", "F32")


def try_file(file: Path, num_threads: int, num_batches: int, seed: int) -> dict[str, Any]:
    """Rows compared and rows that differ, and those of the control, which has a tenth of the batches."""
    runner = LlamaRunner(file, LoadOptions(num_threads=num_threads))
    runner.caches.store = MemoryStore(1 << 28)
    found: dict[str, Any] = {
        "file": file.name,
        "quantisation": runner.model.quantisation,
        "threads": num_threads,
    }
    runner.turns.max_bytes = 1 << 28
    counts = (
        count_differences(runner, num_batches, seed, MAX_ROWS),
        count_differences_along(runner, max(1, num_batches // 20), seed),
    )
    found["rows"], found["different"] = map(sum, zip(*counts, strict=True))
    runner.turns.max_bytes = 0
    runner.row_model.block, runner.caches.store = None, None
    found["control"] = list(count_differences(runner, max(3, num_batches // 10), seed, max_rows=1))
    return found


def main() -> None:
    """All files, with one thread and two."""
    parser = new_parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.gguf")
    parser.add_argument("--smoke", action="store_true", help="three batches in each setting")
    parser.add_argument("--batches", type=int, default=NUM_BATCHES, help="of each file")
    parser.add_argument("--seed", type=int, default=0, help="of the batches")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers that are tried")
    arguments = parser.parse_args()
    each = 3 if arguments.smoke else -(-arguments.batches // len(arguments.threads))
    print("prediction: 0 rows differ; of F16 some of the control do")
    with tempfile.TemporaryDirectory() as folder:
        files = arguments.files or [
            *(write_gguf(Path(folder) / f"{kind}.gguf", kind=kind) for kind in KINDS),
            *(write_gguf(Path(folder) / f"{each}.gguf", kind="F16", architecture=each) for each in RECURRENT),
        ]
        print(f"{'file':36} threads  differ of rows  control")
        results = []
        for file in files:
            for num_threads in arguments.threads:
                results.append(found := try_file(file, num_threads, each, arguments.seed + num_threads))
                control = " of ".join(map(str, found["control"][::-1]))
                print(
                    f"{found['file']:36} {num_threads:7} {found['different']:6} of {found['rows']:<5}  {control}",
                    flush=True,
                )
    finish({"batches": each * len(results), "results": results})
    sys.exit(any(found["different"] for found in results))


if __name__ == "__main__":
    main()
