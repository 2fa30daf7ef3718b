"""What rolling back a recurrent state costs: its size, a copy before each pass, and going back to one.

Each file on the command line, one row behind 256 tokens of context; medians of processor and clock time in
milliseconds. Without files: small ones with random weights.

Prediction: a copy and a way back take as long as memory needs for twice the state's bytes, about a tenth of a pass of a
model whose state is a twentieth of its weights. Expected run time: 20 s per file on an idle core; `--smoke` 5 s.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._common import finish, new_parser
from tandem.engine.port import LoadOptions
from tandem.engine.session import Segment
from tandem.plugins.llama.rows import BLOCK
from tandem.plugins.llama.runner import LlamaRunner
from tests.tiny_gguf import RECURRENT, write_gguf

CONTEXT, TOKENS = 256, 40


class Row:
    """A row that has some tokens already."""

    def __init__(self, file: Path, num_threads: int) -> None:
        self._model = LlamaRunner(file, LoadOptions(num_threads=num_threads)).row_model
        self.cache = self._model.make_cache(1, CONTEXT + TOKENS)
        self.length = 0
        for _ in range(0, CONTEXT, BLOCK):
            self.compute(BLOCK)

    def compute(self, num_new: int) -> None:
        """One pass."""
        tokens = [7 + at % 90 for at in range(self.length, self.length + num_new)]
        self._model([Segment(self.cache, 0, [self.length], [tokens], 1)])
        self.length += num_new


def measure(row: Row, repeats: int) -> dict[str, float]:
    """Milliseconds of the processor and of the clock of a copy, of a pass of one token, and of going back to a copy."""
    times: dict[str, list[tuple[float, float]]] = {}

    def take(name: str, act: Callable[[], object]) -> None:
        began = time.process_time(), time.perf_counter()
        act()
        times.setdefault(name, []).append((time.process_time() - began[0], time.perf_counter() - began[1]))

    for _ in range(repeats):
        take("copy", lambda: row.cache.mark(0))
        take("pass", lambda: row.compute(1))
    for _ in range(repeats):
        row.compute(1)
        row.length -= 1
        take("back", lambda: row.cache.rewind(0, row.length))
    return {
        f"{name}_{kind}_ms": statistics.median(values) * 1e3
        for name, pairs in times.items()
        for kind, values in zip(("processor", "clock"), zip(*pairs, strict=True), strict=True)
    }


def main() -> None:
    """All files."""
    parser = new_parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.gguf")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="a few passes")
    arguments = parser.parse_args()
    print("prediction: a copy takes a tenth of a pass where the state is a twentieth of the weights")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = arguments.files or [
            write_gguf(Path(folder) / f"{each}.gguf", architecture=each) for each in RECURRENT
        ]
        for file in files:
            row = Row(file, arguments.threads)
            found: dict[str, Any] = measure(row, 3 if arguments.smoke else TOKENS // 2)
            copies = row.cache.marks[0]
            found |= {
                "file": file.name,
                "copies": len(copies),
                "bytes": max(each.nbytes for each in copies.values()),
            }
            results.append(found)
            print(
                f"{file.name:36} {found['bytes'] / 1e6:7.2f} MB, {found['copies']} of them: "
                f"copy {found['copy_processor_ms']:6.2f} ms of the processor, pass {found['pass_processor_ms']:6.2f}, "
                f"back {found['back_processor_ms']:6.2f}",
                flush=True,
            )
    finish({"threads": arguments.threads, "results": results})


if __name__ == "__main__":
    main()
